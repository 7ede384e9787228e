"""What MkDocs lacks: notebooks and the project's own files as pages, and links that leave docs/."""

from __future__ import annotations

import json
import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PROJECT_PAGES = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()#\s]+)(#[^()\s]*)?\)")

log = logging.getLogger("mkdocs.hooks")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made: one for each notebook, and the files beside docs/."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            notebook = json.loads(file.content_string)
            page = "\n\n".join(as_markdown(notebook, posixpath.basename(file.src_uri)))
            made = File.generated(config, file.src_uri[: -len("ipynb")] + "md", content=page)
            files.append(made)
    for page, name in PROJECT_PAGES.items():
        content = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links that are true in the repository true on the site."""
    own = page.file.src_uri
    origin = PROJECT_PAGES.get(own, f"docs/{own}")

    def mended(found: re.Match[str]) -> str:
        text, target, anchor = found.group(1), found.group(2), found.group(3) or ""
        if re.match(r"[a-z]+:", target):
            return found.group()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        at = page_of(path)
        if at in files.src_uris:
            return f"[{text}]({posixpath.relpath(at, posixpath.dirname(own) or '.')}{anchor})"
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which does not exist.", origin, target)
        return text  # it is there, and not on the site: source files, for one

    return LINK.sub(mended, markdown)


def page_of(path: str) -> str:
    """Where a file of the repository stands on the site, if it does."""
    for page, name in PROJECT_PAGES.items():
        if path == name:
            return page
    return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))


def as_markdown(notebook: dict[str, Any], name: str) -> Iterator[str]:
    """A notebook as the parts of a page: its words, its code, and what the code printed."""
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
        else:
            yield f"```python\n{source}\n```"
            yield from filter(None, map(output, cell["outputs"]))
        if number == 0:
            yield f'<a href="{name}" download>This page is a notebook: download it.</a>'


def output(given: dict[str, Any]) -> str:
    """One output of a cell."""
    if "text" in given:
        return f"```text\n{''.join(given['text'])}```"
    data = given.get("data", {})
    if "image/png" in data:
        return f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})"
    return f"```text\n{''.join(data.get('text/plain', ''))}\n```"
