"""Before every route: who may ask, how much, how fast. After it: what every answer carries."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anytimecl.serve.metrics import REFUSALS, Metrics
from anytimecl.serve.options import Options
from anytimecl.serve.problems import Busy, Problem, respond
from anytimecl.serve.rates import Rates
from anytimecl.serve.tokens import Scope as Allowed
from anytimecl.serve.tokens import Tokens, name_of

log = logging.getLogger("anytimecl.serve")

# The page holds nothing of the memory, and asks for a token itself.
PAGE = frozenset({"/", "/page.css", "/page.js", "/icon.svg"})
OPEN = PAGE | {"/healthz", "/readyz", "/openapi.json"}
READING_POSTS = frozenset({"/v1/predict", "/label-studio/predict", "/label-studio/setup"})
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def needed(method: str, path: str) -> Allowed | None:
    """The scope that a request needs; whatever is not known to only read, writes.

    >>> needed("GET", "/v1/stats"), needed("DELETE", "/v1/anything"), needed("GET", "/healthz")
    ('read', 'write', None)
    """
    if method in SAFE:
        return None if path in OPEN else "read"
    return "read" if path in READING_POSTS else "write"


class Guard:
    """The app, guarded."""

    def __init__(self, app: ASGIApp, tokens: Tokens, options: Options, metrics: Metrics) -> None:
        self.app = app
        self._tokens = tokens
        self._options = options
        self._metrics = metrics
        self._rates = Rates(options.per_second, options.burst)
        self._uploading = 0  # bytes of all requests under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        answer = _Answer(scope, send)
        body = _Body(self, receive)
        try:
            self._admit(scope)
            body.expect(Headers(scope=scope).get("content-length"))
            await self.app(scope, body.receive, answer.send)
        except Problem as problem:
            if not answer.started:
                # Whoever is turned away may still be sending: that connection is not used again.
                problem.headers["connection"] = "close"
                await respond(problem)(scope, receive, answer.send)
        except Exception:
            log.exception("request %s failed", answer.identity)
            if not answer.started:
                told = Problem(500, f"An error inside the service; its log has {answer.identity}.")
                await respond(told)(scope, receive, answer.send)
        finally:
            self._uploading -= body.size
            self._count(scope, answer)

    def _count(self, scope: Scope, answer: _Answer) -> None:
        """Under names of our own: a client could invent any number of methods and paths."""
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = getattr(scope.get("route"), "path", "other")
        seconds, status = time.monotonic() - answer.began, str(answer.status)
        self._metrics.requests.labels(method, route, status).observe(seconds)
        # By the answer: the app turns most of its own refusals into one before they come here.
        if answer.status in REFUSALS:
            self._metrics.refused.labels(status).inc()

    def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        method, path = scope["method"], scope["path"]
        authorization = headers.get("authorization", "")
        allowed = self._tokens.scope(authorization) if self._tokens else "write"
        client = (scope.get("client") or ("unknown",))[0]
        if self._tokens and allowed is not None:
            client = name_of(authorization)
        if path not in ("/healthz", "/readyz") and (wait := self._rates.wait(client)):
            raise Busy("You ask too often; ask again later.", wait)
        if not self._tokens:
            _check_host(headers.get("host", ""))
        if method not in SAFE:
            _check_origin(headers)
        need = needed(method, path)
        if need is not None and allowed is None:
            raise Problem(401, "Send a token: Authorization: Bearer ...", www_authenticate="Bearer")
        if need == "write" and allowed != "write":
            raise Problem(403, "This token may only read.")

    def take(self, count: int) -> None:
        """Count bytes of an upload against what all may hold together."""
        self._uploading += count
        if self._uploading > self._options.uploads_bytes:
            raise Busy("Too much is being uploaded at once; ask again later.", 2)

    @property
    def options(self) -> Options:
        """Its limits."""
        return self._options


class _Body:
    """The body of a request, bounded in size and time."""

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self._guard, self._receive = guard, receive
        self._deadline = time.monotonic() + guard.options.upload_seconds
        self._complete = False
        self.size = 0

    def expect(self, length: str | None) -> None:
        """Refuse by the head alone what is said to be too large."""
        if length is not None and length.isdecimal():
            self._check(int(length))

    async def receive(self) -> Message:
        """As ASGI has it."""
        if self._complete:  # now it only waits for the client to go away
            return await self._receive()
        try:
            left = self._deadline - time.monotonic()
            message = await asyncio.wait_for(self._receive(), max(left, 0.001))
        except TimeoutError:
            raise Problem(408, "The request did not arrive in time.", connection="close") from None
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.size += size
            self._guard.take(size)
            self._check(self.size)
            self._complete = not message.get("more_body", False)
        return message

    def _check(self, size: int) -> None:
        most = self._guard.options.upload_bytes
        if size > most:
            raise Problem(413, f"A request has at most {most:,} bytes.", connection="close")


class _Answer:
    """The answer to a request, with the headers that every one carries."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._page = scope["path"] in PAGE
        self.identity = secrets.token_hex(8)
        self.began = time.monotonic()
        self.started = False
        self.status = 0

    async def send(self, message: Message) -> None:
        """As ASGI has it."""
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in SECURITY.items():
                headers[name] = value
            headers["cache-control"] = "no-cache" if self._page else "no-store"
            headers["x-request-id"] = self.identity
        await self._send(message)


def _check_host(host: str) -> None:
    """Without tokens only this machine may ask, and by a name that is its own.

    A foreign page can have its own name resolve to this machine; the name gives it away.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # not even a name
        name = ""
    if not is_loopback(name):
        raise Problem(403, "Without tokens the service answers to localhost alone.")


def _check_origin(headers: Headers) -> None:
    """A page from elsewhere may not change anything, even if the browser would let it ask."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise Problem(403, "Requests from pages of other origins are refused.")


def is_loopback(host: str) -> bool:
    """Whether the name or address is this machine's own.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
