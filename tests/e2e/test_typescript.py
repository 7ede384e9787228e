"""The TypeScript client: generated from the description, compiled, and used against a server."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.serve.conftest import png, running
from tests.serve.test_memories import ADMIN, closed_tokens

from anytimecl.client import Client

pytestmark = pytest.mark.e2e
CLIENT = Path(__file__).parents[2] / "clients" / "typescript"
USE = """
import { Memory, ServiceError } from "./dist/index.js";
const [url, token, image] = process.argv.slice(2);
const bytes = Buffer.from(image, "base64");
const cats = new Memory(url, { token, memory: "cats" });
const before = await cats.predict(bytes, ["tabby", "siamese"]);
const first = await cats.learn(bytes, "tabby", "key-1");
const again = await cats.learn(bytes, "tabby", "key-1");
const after = await cats.predict(bytes);
const refused = await new Memory(url, { token: "wrong" }).labels().catch((error) => error);
console.log(JSON.stringify({
  before: before.scores.length, first, again: again.repeated, after: after.label,
  labels: [...await cats.labels()], refused: refused instanceof ServiceError && refused.status,
}));
"""


def run(*words: str, folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_compiles_and_works(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm: `make test-e2e` installs one")
    folder = tmp_path / "client"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    with running(None, closed_tokens(), tmp_path / "memories") as server:
        client = Client(server.url, token=ADMIN)
        client.create_memory("cats")
        described = client._wire.ask("GET", "/openapi.json")
        (folder / "openapi.json").write_text(json.dumps(described))
        run(
            npm,
            "install",
            "--no-package-lock",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            folder=folder,
        )
        run(npm, "run", "build", folder=folder)
        (folder / "use.mjs").write_text(USE)
        node = os.path.join(os.path.dirname(npm), "node")
        image = base64.b64encode(png(1)).decode()
        told = json.loads(run(node, "use.mjs", server.url, ADMIN, image, folder=folder))
    assert told["before"] == 2
    assert told["first"]["label"] == "tabby"
    assert (told["again"], told["after"], told["refused"]) == (True, "tabby", 401)
    assert told["labels"] == [["tabby", 1]]
