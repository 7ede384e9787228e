"""A stand-in for the Hugging Face hub on loopback, with the few answers that loading asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from huggingface_hub import constants

Files = dict[str, bytes]


@dataclass
class Repository:
    """Commits and the names that point to them."""

    commits: dict[str, Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)  # branch, tag or "refs/pr/N" to a commit
    requests: list[dict[str, Any]] = field(default_factory=list)  # pull requests
    gated: bool = False

    def commit(self, files: Files, *refs: str) -> str:
        """A new commit under these names."""
        sha = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits[sha] = dict(files)
        for ref in refs:
            self.refs[ref] = sha
        return sha

    def pull_request(self, number: int, author: str, title: str, files: Files) -> str:
        """A pull request that would leave these files."""
        self.requests.append(
            {
                "num": number, "title": title, "author": {"name": author}, "status": "open",
                "createdAt": "2023-01-01T00:00:00.000Z", "isPullRequest": True,
                "repo": {"name": "x/y", "type": "model"},
            }
        )  # fmt: skip
        return self.commit(files, f"refs/pr/{number}")


class Hub:
    """What the server knows, and what it was asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[str] = []
        self.url = ""

    def repository(self, name: str) -> Repository:
        """A new one."""
        return self.repositories.setdefault(name, Repository())


def files_of(folder: Path) -> Files:
    """A folder's files."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers on loopback until the end of the block."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(*_answer(hub, self.path))

        def do_HEAD(self) -> None:
            self._answer(*_answer(hub, self.path))

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def point_to(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub ask this hub, with a cache of its own."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    huggingface_hub.close_session()  # one that was made before knows a proxy, if there is one


Answer = tuple[int, dict[str, str], bytes]


def _answer(hub: Hub, path: str) -> Answer:
    steps = [unquote(step) for step in urlsplit(path).path.split("/") if step]
    hub.asked.append("/".join(steps))
    api = steps[:2] == ["api", "models"]
    if api:
        steps = steps[2:]
    found = hub.repositories.get("/".join(steps[:2]))
    if found is None:
        return _refused(404, "RepoNotFound")
    kind, rest = (steps[2] if len(steps) > 2 else "revision"), steps[3:]
    if kind == "discussions":
        page = {"count": len(found.requests), "start": 0, "discussions": found.requests}
        return _json(page)
    if kind == "refs":
        named = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha}
            for name, sha in found.refs.items()
            if not name.startswith("refs/")
        ]
        return _json({"branches": named, "tags": [], "converts": []})
    asked = rest[0] if rest else "main"
    sha = found.refs.get(asked, asked)
    if sha not in found.commits:
        return _refused(404, "RevisionNotFound")
    files = found.commits[sha]
    if kind == "revision":
        return _json({"id": "/".join(steps[:2]), "sha": sha, "siblings": []})
    if kind == "tree":
        return _json(
            [
                {"type": "file", "path": name, "size": len(body), "oid": _oid(body)}
                for name, body in files.items()
            ]
        )
    if found.gated:
        return _refused(403, "GatedRepo")
    name = "/".join(rest[1:])
    if name not in files:
        return _refused(404, "EntryNotFound")
    body = files[name]
    return 200, {"X-Repo-Commit": sha, "ETag": f'"{_oid(body)}"'}, body


def _oid(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


def _json(values: Any) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(values).encode()


def _refused(status: int, code: str) -> Answer:
    return status, {"X-Error-Code": code}, b"{}"
