"""Generated calls of every operation against a live service with several memories and tokens.

    python -m benchmarks.generated [--calls 100000] [--seconds 7200] [--processes 2] [--seed 0]

A service of its own process on a tiny random model: a memory each with a name, labels, sources,
choices and pictures that are of it alone, and tokens for some memories and rights, most calls under
one that may. Ends with 1 after a 5xx other than 503, an answer that the description does not know,
no answer for 30 seconds, or anything of one memory in an answer about another or under a token that
is not for it; also if what should be seen was not, or if there were fewer calls than asked for.
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
    """Whoever the service belongs to: sees to it that there is always something to be leaked."""

    def __init__(self, url: str) -> None:
        self.url, self.session = url, requests.Session()
        self.session.headers["Authorization"] = f"Bearer {ADMIN.secret}"

    def ask(self, method: str, path: str, **words: Any) -> requests.Response:
        """As whoever may do everything; again where it is told to wait."""
        while True:
            answer = self.session.request(method, self.url + path, timeout=PATIENCE, **words)
            if answer.status_code not in (429, 503):
                return answer
            time.sleep(0.5)

    def teach(self) -> None:
        """Again, since a generated call may have had it forgotten, renamed or undone."""
        names = [one["name"] for one in self.ask("GET", "/v1/memories").json()["memories"]]
        for name in {*NAMES, SCRATCH} - set(names):
            self.ask("POST", "/v1/memories", json={"name": name})
        for number, (name, canary) in enumerate(CANARY.items()):
            lesson = {"image": _text(noise(number)), "label": canary, "source": canary}
            self.ask("POST", f"/v1/memories/{name}/learn", json=lesson)
            self.ask("POST", f"/v1/memories/{name}/choices", json={"add": [f"{canary} to choose"]})

    def secrets(self) -> dict[str, tuple[bytes, ...]]:
        """Its name first, for which somebody may ask anywhere who may ask for it at all."""
        found = {}
        for name, canary in CANARY.items():
            path = f"/v1/memories/{name}/examples"
            [example] = self.ask("GET", path).json()["examples"]
            picture = self.ask("GET", f"{path}/{example['id']}/thumbnail")
            assert picture.status_code == 200, picture.text
            # "default" is in every description; no other memory's name is.
            known = canary if name == "default" else name
            found[name] = (known.encode(), canary.encode(), picture.content)
        return found


def _text(image: bytes) -> str:
    return base64.b64encode(image).decode()


def make_world(owner: Owner) -> World:
    """What the processes that call need to know."""
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
    """In several processes, since making calls takes longer than answering them."""
    world, report = make_world(owner), Report()
    share = -(-given.calls // given.processes)
    context = multiprocessing.get_context("fork")  # they need not import it all again
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
    """What holds, and what does not."""
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
