"""A full disk: a clear error, nothing lost, and all goes on when there is room again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.disks import with_ballast, with_limit

# Runs apart, with `full` and `room` before it.
SCRIPT = """
import sys
import warnings
from pathlib import Path
from anytimecl.errors import StoreError
from anytimecl.memory import StoreWarning, backup, compact, open_memory, verify

folder = Path(sys.argv[1]) / "memory"
memory = open_memory(folder, create={}, cache_bytes=0)

def content(n):
    return n.to_bytes(4, "big") * (500 + n % 1000)

def check(stored):
    assert dict(memory.ids()) == {i: "cat" for i in stored}
    assert memory.read(list(stored)) == [content(n) for n in stored.values()]
    report = verify(memory)
    assert report.ok, str(report)

def fails(action, *arguments):
    try:
        action(*arguments)
    except StoreError as error:
        assert "the disk is full or failing. Nothing stored is lost" in str(error), error
        return True
    return False

stored = {memory.append("cat", content(n)): n for n in range(50)}
full()
for n in range(50, 100_000):
    if fails(lambda: stored.update({memory.append("cat", content(n)): n})):
        break
else:
    raise AssertionError("the disk never became full")
assert fails(memory.append_many, [("dog", content(7))] * 1000)
check(stored)
room()
stored[memory.append("cat", content(n))] = n
check(stored)

gone = list(stored)[5:40:3]
assert memory.forget(gone) == len(gone)
for example in gone:
    del stored[example]
full()
assert fails(compact, memory)
check(stored)
if fails(backup, memory, folder.parent / "copy"):
    assert not list(folder.parent.glob("copy/*"))
example, n = stored.popitem()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    if fails(memory.forget, [example]):
        stored[example] = n
        assert not told
    else:
        assert [warning.category for warning in told] in ([], [StoreWarning])
check(stored)
room()
compact(memory)
check(stored)
assert example in stored or n.to_bytes(4, "big") * 500 not in b"".join(
    path.read_bytes() for path in folder.iterdir()
)
memory.close()
memory = open_memory(folder)
check(stored)
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_files_that_may_not_grow(tmp_path: Path) -> None:
    # The log, which begins anew after `forget`, cannot reach what the database has already.
    with_limit(SCRIPT, 100_000, tmp_path)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with_ballast(SCRIPT, 8, tmp_path)
