"""The documentation as a site: built strictly, complete, and readable without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import anytimecl

ROOT = Path(__file__).resolve().parents[1]


class Page(HTMLParser):
    """What a page links to, what it loads by itself, and the places in it that have a name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.names: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.names |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag == "link" and given.get("rel") != "canonical" and "href" in given:
            self.loads.add(given["href"])
        elif "src" in given:
            self.loads.add(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """Every page of the site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {path: Page(path) for path in folder.rglob("*.html")}


def test_every_link_within_the_site_leads_somewhere(site: dict[Path, Page]) -> None:
    checked, broken = 0, []
    for path, page in site.items():
        for link in page.links | page.loads:
            parts = urlsplit(link)
            if parts.scheme or path.name == "404.html":  # that one is served from anywhere
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            named = site[target].names if target in site else set()
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in named):
                broken.append(f"{path.name}: {link}")
            checked += 1
    assert not broken
    assert checked > 500  # a parser that found nothing would pass, too


def test_no_page_loads_anything_from_elsewhere(site: dict[Path, Page]) -> None:
    loads = {load for page in site.values() for load in page.loads}
    assert len(loads) > 10
    parts = [urlsplit(load) for load in loads]
    assert not [part for part in parts if part.scheme not in ("", "data") or part.netloc]


def test_the_reference_has_every_public_name(site: dict[Path, Page]) -> None:
    [names] = [page.names for path, page in site.items() if path.name == "api.html"]
    wanted = {name for name in anytimecl.__all__ if name != "__version__"}
    assert not {name for name in wanted if f"anytimecl.{name}" not in names}
    assert "anytimecl.AnytimeClassifier.learn_one" in names


def test_every_page_of_the_folder_is_on_the_site(site: dict[Path, Page]) -> None:
    built = {path.name for path in site}
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.with_suffix(".html").name in built
