"""Generated calls of one process, for `benchmarks.generated`: what is sent, and what is looked for.

Most requests are made by Schemathesis from the description, valid ones and broken ones; some by
Hypothesis from paths, methods, headers and bytes, as nobody has described them.
"""

from __future__ import annotations

import base64
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

PATIENCE = 30.0  # seconds
CHUNK = 20  # calls of an operation in a row
NEAR = 0.5  # share of numbers of examples that are drawn among those there are
FAILURE, HANG, LEAK = "5xx other than 503", "no answer", "something of another memory"
UNDESCRIBED = "an answer that is not described"
KINDS = (FAILURE, HANG, LEAK, UNDESCRIBED)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@dataclass(frozen=True)
class Token:
    """Who may ask about which memories, and how often it does."""

    secret: str
    memories: tuple[str, ...]
    weight: int


@dataclass(frozen=True)
class World:
    """The service as whoever made it knows it."""

    url: str
    description: dict[str, Any]
    tokens: tuple[Token, ...]
    secrets: dict[str, tuple[bytes, ...]]  # of each memory: what is in no other
    scratch: str  # the memory that may be deleted
    images: tuple[bytes, ...]
    texts: dict[str, str]  # by format: what no schema can say


@dataclass
class Report:
    """What came of the calls."""

    statuses: Counter[int] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)  # secrets, by those who may
    wrong: Counter[str] = field(default_factory=Counter)  # by kind
    unsent: int = 0  # what the HTTP client itself refuses
    slowest: float = 0.0

    @property
    def total(self) -> int:
        """Answers that came."""
        return sum(self.statuses.values())

    def add(self, other: Report) -> None:
        """Take in those of another process."""
        self.statuses += other.statuses
        self.seen += other.seen
        self.wrong += other.wrong
        self.unsent += other.unsent
        self.slowest = max(self.slowest, other.slowest)


class Calls:
    """Sends what is generated, and keeps what came of it."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.draw, self.report = world, random.Random(number), Report()
        self.session = requests.Session()

    def described(self, case: Any) -> None:
        """One call from the description, under a token and to a memory drawn at random."""
        token, asked = self._token(), "default"
        places = case.path_parameters or {}
        if "example" in places and self.draw.random() < NEAR:
            places["example"] = self.draw.randint(1, 9)
        if "memory" in places:
            asked = places["memory"] = self._memory(case, token)
        headers = {"Authorization": f"Bearer {token.secret}"} if token.secret else None
        try:
            words = case.as_transport_kwargs(base_url=self.world.url, headers=headers)
        except (ValueError, TypeError):
            self.report.unsent += 1
            return
        what = f"{case.method} {case.path}"
        answer = self._send(what, endless=case.path.endswith("/events"), **words)
        if answer is None:
            return
        status = answer.status_code
        if str(status) not in case.operation.definition.raw["responses"] and status != 405:
            self._complain(UNDESCRIBED, what, str(status))
        self._look(what, token, asked, answer)

    def wild(self, method: str, path: str, header: str, body: bytes) -> None:
        """One call that nobody described, under a token that is not for everything."""
        token = self.draw.choice([one for one in self.world.tokens if len(one.memories) < 3])
        headers = {"Authorization": f"Bearer {token.secret}", "Content-Type": header}
        what = f"{method} {path[:60]!r}"
        url = f"{self.world.url}{path}"
        answer = self._send(what, method=method, url=url, headers=headers, data=body)
        if answer is not None:
            self._look(what, token, None, answer)

    def _token(self) -> Token:
        tokens = self.world.tokens
        return self.draw.choices(tokens, [one.weight for one in tokens])[0]

    def _memory(self, case: Any, token: Token) -> str:
        """Mostly one that the token is for."""
        if case.method == "DELETE" and case.path.endswith("{memory}"):
            return self.world.scratch
        if token.memories and self.draw.random() < 0.7:
            return self.draw.choice(token.memories)
        return self.draw.choice(list(self.world.secrets))

    def _send(self, what: str, *, endless: bool = False, **words: Any) -> requests.Response | None:
        began = time.monotonic()
        try:
            answer = self.session.request(timeout=PATIENCE, stream=endless, **words)
            if endless:  # its first event is enough
                answer._content = next(answer.iter_content(4096), b"")
                answer.close()
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, ValueError):
            self.report.unsent += 1
            return None
        except requests.RequestException as error:
            self._complain(HANG, what, repr(error)[:300])
            return None
        self.report.slowest = max(self.report.slowest, time.monotonic() - began)
        self.report.statuses[answer.status_code] += 1
        if answer.status_code >= 500 and answer.status_code != 503:
            self._complain(FAILURE, what, f"{answer.status_code}: {answer.content[:200]!r}")
        return answer

    def _look(self, what: str, token: Token, asked: str | None, answer: requests.Response) -> None:
        """What is of one memory alone comes from that one alone, to a token that is for it."""
        told = answer.content
        for name, secrets in self.world.secrets.items():
            if not any(secret in told for secret in secrets):
                continue
            if name in token.memories and asked in (name, None):
                self.report.seen[name] += 1
            elif name not in token.memories or any(secret in told for secret in secrets[1:]):
                self._complain(LEAK, what, f"of {name}, under a token for {token.memories}")

    def _complain(self, kind: str, what: str, told: str) -> None:
        self.report.wrong[kind] += 1
        print(f"{kind}: {what}: {told}", flush=True)


def work(world: World, most: int, seconds: float, number: int) -> Report:
    """Every operation in turn, valid and broken, until there were enough calls."""
    warnings.simplefilter("ignore")
    _teach_formats(world)
    calls, end = Calls(world, number), time.monotonic() + seconds
    kinds = [*_described(world, calls), (_wild(world), lambda case: calls.wild(*case))]
    rounds = 0
    while calls.report.total < most and time.monotonic() < end:
        rounds += 1
        for strategy, send in kinds:
            left = most - calls.report.total
            if left <= 0 or time.monotonic() > end:
                break
            _draw(strategy, send, min(CHUNK, left), 1_000_003 * number + rounds)
        print(f"process {number}: {calls.report.total} calls", flush=True)
    return calls.report


def _draw(strategy: Any, send: Callable[[Any], None], count: int, number: int) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def call(case: Any) -> None:
        send(case)

    call()


def _described(world: World, calls: Calls) -> list[tuple[Any, Callable[[Any], None]]]:
    for methods in world.description["paths"].values():
        for raw in methods.values():
            raw.pop("security", None)  # tokens are drawn here
    described = schemathesis.openapi.from_dict(world.description)
    kinds = []
    for path, methods in world.description["paths"].items():
        for method, raw in methods.items():
            operation = described[path][method.upper()]
            takes = raw.get("parameters") or raw.get("requestBody")
            modes = list(GenerationMode) if takes else [GenerationMode.POSITIVE]
            for mode in modes:  # where it takes nothing, there is nothing to get wrong
                strategy = operation.as_strategy(generation_mode=mode)
                kinds.append((strategy, partial(Calls.described, calls)))
    return kinds


def _wild(world: World) -> Any:
    words = {word for path in world.description["paths"] for word in path.split("/")[1:]}
    known = sorted(words | set(world.secrets) | {"..", "%2e%2e", "", "1"})
    part = st.sampled_from(known) | st.text(max_size=12).map(partial(quote, safe=""))
    query = st.text(max_size=12).map(lambda text: f"?{quote(text)}" if text else "")
    path = st.builds(lambda parts, more: f"/{'/'.join(parts)}{more}", st.lists(part), query)
    kind = st.sampled_from(["application/json", "multipart/form-data; boundary=x", "text/plain"])
    body = st.binary(max_size=200) | st.sampled_from([b"{}", b"[]", b"null", b"--x--", b"{" * 999])
    return st.tuples(st.sampled_from(METHODS), path, kind, body)


def _teach_formats(world: World) -> None:
    for name, text in world.texts.items():
        schemathesis.openapi.format(name, st.just(text))
    texts = [base64.b64encode(image).decode() for image in world.images]
    schemathesis.openapi.format("byte", st.sampled_from(texts))
    files = st.sampled_from(world.images)
    schemathesis.openapi.format("binary", files)
    for kind in ("image/png", "image/jpeg"):
        schemathesis.openapi.media_type(kind, files)
