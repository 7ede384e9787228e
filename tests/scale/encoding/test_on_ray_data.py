"""`anytimecl encode --ray` on a real Ray, killed and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from tests.commands.conftest import Run
from tests.scale.encoding.test_encode import imported, rows_in

from anytimecl.scale.encoding import running
from anytimecl.scale.encoding.job import load

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]

PROGRAM = """
import ray, sys
ray.init("local", num_cpus=2, object_store_memory=100_000_000, include_dashboard=False,
         log_to_driver=False, _temp_dir={temp!r})
from anytimecl.cli import main
sys.argv = ["anytimecl", *{words!r}]
main()
"""


def program(tmp_path: Path, *words: object) -> subprocess.Popen[str]:
    """The command in a process of its own, on a small Ray of its own."""
    pytest.importorskip("ray.data", reason="NO RAY: pip install -c constraints.txt -e '.[scale]'")
    text = PROGRAM.format(temp=f"/tmp/{tmp_path.name[-12:]}", words=[str(word) for word in words])
    quiet = {"RAY_worker_niceness": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    quiet["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # sums in the order of `learn` here
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env=os.environ | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that its raylets end with it
    )


def when(file: Path) -> list[int]:
    """When the images of a block were encoded, to the millisecond."""
    found: list[int] = pq.read_table(file).column("time").cast("int64").to_pylist()
    return found


def test_killed_and_gone_on_with_it_gives_the_records_of_learn(
    run: Run, learned: Path, model: Path, tmp_path: Path
) -> None:
    photos, to = learned.parent / "photos", tmp_path / "records"
    words: list[object] = ["encode", photos, "--to", to, "--model", model, "--no-shuffle"]
    words += ["--ray", "--workers", 2, "--block", 1]
    first = program(tmp_path, *words)
    try:
        end = time.monotonic() + 200
        while not list((to / "data").glob("block-*")) if to.exists() else True:
            assert first.poll() is None, first.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
    time.sleep(1)  # until actors that lost their driver are gone
    kept = {file: when(file) for file in (to / "data").glob("block-*.parquet")}
    assert kept
    second = program(tmp_path, *words)
    told = second.communicate(timeout=280)[0]
    assert second.returncode == 0, told
    assert "12 images" in told
    assert running.missing(load(to)) == []
    assert {file: when(file) for file in kept} == kept  # nothing was encoded again
    assert rows_in(imported(run, str(to))) == rows_in(learned)
