"""Generated calls of every operation against a live service with several memories and tokens.

    python -m benchmarks.generated [--calls 100000] [--seconds 7200] [--processes 2] [--seed 0]

The service runs in a process of its own with a tiny random model. Each memory has a name, labels,
sources, choices and pictures that occur in no other; tokens are for some memories and rights, and
most calls use a valid one. Exits with 1 after a 5xx other than 503, a response that is not in the
description, no response for 30 seconds, or content of one memory in a response about another or to
a token without access to it; also if expected content was not seen, or if there were too few calls.
"""

from __future__ import annotations

import argparse
import base64
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import requests
from benchmarks.calls import KINDS, PATIENCE, Report, Token, World, work
from benchmarks.service import Server, Verdicts, noise
from tests.backbone import tiny
from tests.serve.test_label_studio import CONFIG

NAMES = ("default", "alpha-5ca1ab1e", "beta-0ddba115", "gamma-b01dface")
SCRATCH = "scratch"
CANARY = {name: f"canary {number:08x}" for number, name in enumerate(NAMES, 0xC0FFEE)}
ADMIN = Token("admin-" + 20 * "0", (*NAMES, SCRATCH), 70)
WRITES = Token("writes-" + 20 * "0", NAMES[1:2], 12)
READS = Token("reads-" + 20 * "0", NAMES[2:], 12)
TOKENS = (ADMIN, WRITES, READS, Token("a token that nobody knows", (), 3), Token("", (), 3))


class Owner:
    """The administrator: ensures that every memory has content that could leak."""

    def __init__(self, url: str) -> None:
        self.url, self.session = url, requests.Session()
        self.session.headers["Authorization"] = f"Bearer {ADMIN.secret}"

    def ask(self, method: str, path: str, **words: Any) -> requests.Response:
        """A request with all rights; retried while the service is busy."""
        while True:
            answer = self.session.request(method, self.url + path, timeout=PATIENCE, **words)
            if answer.status_code not in (429, 503):
                return answer
            time.sleep(0.5)

    def teach(self) -> None:
        """Restore the content, since a generated call may have forgotten, renamed or undone it."""
        names = [one["name"] for one in self.ask("GET", "/v1/memories").json()["memories"]]
        for name in {*NAMES, SCRATCH} - set(names):
            self.ask("POST", "/v1/memories", json={"name": name})
        for number, (name, canary) in enumerate(CANARY.items()):
            lesson = {"image": _text(noise(number)), "label": canary, "source": canary}
            self.ask("POST", f"/v1/memories/{name}/learn", json=lesson)
            self.ask("POST", f"/v1/memories/{name}/choices", json={"add": [f"{canary} to choose"]})

    def secrets(self) -> dict[str, tuple[bytes, ...]]:
        """By memory: its name first, which any permitted request may contain; then its content."""
        found = {}
        for name, canary in CANARY.items():
            path = f"/v1/memories/{name}/examples"
            [example] = self.ask("GET", path).json()["examples"]
            picture = self.ask("GET", f"{path}/{example['id']}/thumbnail")
            assert picture.status_code == 200, picture.text
            # "default" is in every description, unlike the other names.
            known = canary if name == "default" else name
            found[name] = (known.encode(), canary.encode(), picture.content)
        return found


def _text(image: bytes) -> str:
    return base64.b64encode(image).decode()


def make_world(owner: Owner) -> World:
    """What the calling processes need to know."""
    told = owner.ask("GET", "/v1/stats").json()
    return World(
        url=owner.url,
        description=owner.ask("GET", "/openapi.json").json(),
        tokens=TOKENS,
        secrets=owner.secrets(),
        scratch=SCRATCH,
        images=(noise(101), noise(102)),
        texts={
            "label-studio-config": CONFIG,
            "model-fingerprint": told["fingerprint"],
            "codec-name": told["codec"],
        },
    )


def call(owner: Owner, given: argparse.Namespace) -> Report:
    """Call in several processes, since generating calls takes longer than processing them."""
    world, report = make_world(owner), Report()
    share = -(-given.calls // given.processes)
    context = multiprocessing.get_context("fork")  # forked, to save the imports
    with ProcessPoolExecutor(given.processes, context) as pool:
        first = given.seed * given.processes
        jobs = [
            pool.submit(work, world, share, given.seconds, first + number)
            for number in range(given.processes)
        ]
        while wait(jobs, 5).not_done:
            owner.teach()
    for job in jobs:
        report.add(job.result())
    return report


def judge(report: Report, asked: int, alive: bool) -> Verdicts:
    """Check the results."""
    verdicts = Verdicts()
    verdicts.say(report.total >= asked, f"calls: {report.total} of {asked}")
    for kind in KINDS:
        verdicts.say(not report.wrong[kind], f"{kind}: {report.wrong[kind] or 'none'}")
    seen = {name: report.seen[name] for name in NAMES}
    verdicts.say(all(seen.values()), f"what is of one memory alone, told to those who may: {seen}")
    verdicts.say(alive, "the server is the one that was started")
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # the model is tiny
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tokens = folder / "tokens"
        tokens.write_text(
            f"admin {ADMIN.secret} admin\nwrite {WRITES.secret} writes memories={NAMES[1]}\n"
            f"read {READS.secret} reads memories={','.join(NAMES[2:])}\n"
        )
        tokens.chmod(0o600)
        server = Server(
            folder / "first", "--memories", str(folder / "others"), "--tokens", str(tokens),
            "--model", str(tiny.clip(folder / "model")),
        )  # fmt: skip
        try:
            owner = Owner(f"http://{server.host}:{server.port}")
            owner.teach()
            began, before = time.monotonic(), server.resident()
            report = call(owner, given)
            seconds, after = time.monotonic() - began, server.resident()
            alive = server.process.poll() is None
        finally:
            server.stop()
    beyond = report.total - sum(report.statuses[status] for status in (401, 403))
    print(
        f"{report.total} calls in {seconds:.0f} s ({report.total / seconds:.0f} a second), "
        f"{beyond} of them past the door; {report.unsent} could not even be sent\n"
        f"answers: {dict(sorted(report.statuses.items()))}; slowest {report.slowest:.1f} s\n"
        f"RAM: {before >> 20} MiB at first, {after >> 20} at the end"
    )
    judge(report, given.calls, alive).end()


if __name__ == "__main__":
    main()
