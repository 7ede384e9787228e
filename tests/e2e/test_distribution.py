"""The wheel and the source archive: what is in them, and that the wheel runs away from here."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "anytimecl"
PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"
# Data of the package, by the functions that look for it.
READ_DATA = """
from anytimecl.backbone.embedded.assemble import has_text, identity
print(has_text(), len(identity()) == 64)
"""


def run(*words: object, cwd: Path, **environment: str) -> str:
    """Run a program that sees neither this checkout nor a network, and return what it printed."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**inherited, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, made by the pinned backend."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", out, cwd=ROOT)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [file] = built.glob("*.whl")
    return file


def sources(folder: Path) -> set[str]:
    """Every file below that belongs to the project, as a path from the folder."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_holds_both_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    packages = (PACKAGE, PACKAGE.with_name("anytimecl_lab"))
    assert inside == {f"{each.name}/{name}" for each in packages for name in sources(each)}
    # Said by name as well: the comparison above would not notice what the checkout lost.
    for name in (
        "py.typed",
        "backbone/embedded/prior.safetensors",
        "backbone/embedded/text.safetensors",
        "backbone/embedded/wheels.json",
        "serve/page/index.html",
        "serve/page/page.js",
        "serve/page/page.css",
        "serve/page/icon.svg",
    ):
        assert f"anytimecl/{name}" in inside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_source_archive_holds_what_its_tests_need(built: Path) -> None:
    [file] = built.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {f"src/anytimecl/{name}" for name in sources(PACKAGE)} <= names
    assert {f"tests/{name}" for name in sources(ROOT / "tests")} <= names
    for name in ("pyproject.toml", "LICENSE", "README.md", "CITATION.cff", "constraints.txt"):
        assert name in names
    for name in ("Makefile", "Containerfile", ".ci/run", ".github/workflows/ci.yml"):
        assert name in names


def test_the_wheel_runs_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """With the packages that are installed here, but not with the checkout that is, too."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    own = Path(run(python, "-c", PURELIB, cwd=tmp_path).strip())
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet"),
        *("--no-deps", "--no-index", wheel),
        cwd=tmp_path,
    )
    # The checkout is reached by .pth files, and those are read in site-packages alone.
    here = {"PYTHONPATH": sysconfig.get_path("purelib")}
    where = run(python, "-c", "import anytimecl; print(anytimecl.__file__)", cwd=tmp_path, **here)
    assert Path(where.strip()).is_relative_to(own)
    told = run(tmp_path / "env" / "bin" / "anytimecl", "--help", cwd=tmp_path, **here)
    assert "predict" in told
    assert "learn" in told
    read = run(python, "-c", READ_DATA, cwd=tmp_path, **here)
    assert read.split() == ["True", "True"]
