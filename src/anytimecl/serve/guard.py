"""Middleware: authentication, rights and limits of requests; headers of responses."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anytimecl.serve import tracing
from anytimecl.serve.access import HEALTH, OPEN, PAGE, SAFE, Need, needed
from anytimecl.serve.asking import ASKER, Asker
from anytimecl.serve.assets import ASSETS
from anytimecl.serve.bodies import Body, Uploads
from anytimecl.serve.logs import access
from anytimecl.serve.metrics import REFUSALS, Metrics
from anytimecl.serve.options import Options
from anytimecl.serve.origins import check_host, check_origin
from anytimecl.serve.problems import Busy, Problem, respond
from anytimecl.serve.rates import Rates
from anytimecl.serve.rights import EVERYTHING, Grant
from anytimecl.serve.tokens import AccessTokens, name_of

log = logging.getLogger("anytimecl.serve")
NOBODY = Grant("", "read", frozenset())
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")  # accepted from clients
ELSEWHERE = frozenset({"cross-site", "same-site"})  # values of Sec-Fetch-Site
LEAVING = 0.05  # seconds for requests to end whose connections were closed to make room
GONE = 499  # logged status if the client disconnected before the response
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})

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


class Guard:
    """The app behind its checks."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: AccessTokens,
        options: Options,
        metrics: Metrics,
        *,
        read_only: bool = False,
    ) -> None:
        self.app = app
        self._read_only = read_only
        self._under_way = 0  # number of requests
        self._tokens = tokens
        self._options = options
        self._metrics = metrics
        self._rates = Rates(options.per_second, options.burst)
        self._uploads = Uploads(options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        answer = _Answer(scope, send)
        body = Body(self._uploads, receive)
        try:
            self._under_way += 1
            ASKER.set(Asker(request=answer.identity))
            if self._under_way > self._options.connections:
                await asyncio.sleep(LEAVING)
            asker = self._admit(scope, answer.identity)
            ASKER.set(asker)
            body.client = asker.client
            body.expect(Headers(scope=scope).get("content-length"))
            await self._traced(scope, body, answer)
        except Problem as problem:
            if not answer.started:
                # The client may still be sending, so the connection cannot be reused.
                problem.headers["connection"] = "close"
                await respond(problem)(scope, receive, answer.send)
        except ClientDisconnect:
            answer.status = GONE
        except Exception:
            log.exception("request %s failed", answer.identity)
            if not answer.started:
                told = Problem(500, f"An error inside the service; its log has {answer.identity}.")
                await respond(told)(scope, receive, answer.send)
        finally:
            self._under_way -= 1
            body.give_back()
            self._count(scope, answer)

    async def _traced(self, scope: Scope, body: Body, answer: _Answer) -> None:
        if not tracing.on():
            await self._pass_on(scope, body, answer)
            return
        about = {"http.request.method": scope["method"], "anytimecl.request": answer.identity}
        with tracing.request_span(dict(Headers(scope=scope)), **about) as span:
            try:
                await self._pass_on(scope, body, answer)
            finally:
                route = getattr(scope.get("route"), "path", "other")
                span.update_name(f"{scope['method']} {route}")
                span.set_attribute("http.route", route)
                span.set_attribute("http.response.status_code", answer.status)

    async def _pass_on(self, scope: Scope, body: Body, answer: _Answer) -> None:
        """Call the app; cancel it if the client disconnects.

        HEAD is answered like GET, without the body.
        """
        head = scope["method"] == "HEAD"
        asked = {**scope, "method": "GET"} if head else scope
        work = asyncio.ensure_future(self.app(asked, body.receive, answer.send))
        gone = asyncio.ensure_future(answer.begun.wait() if head else body.gone())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            scope["route"] = asked.get("route")
            if head and not work.done():
                await answer.end()  # a stream does not end by itself
                work.cancel()
            elif not work.done() and not answer.started:
                work.cancel()
                answer.status = GONE
            await work
        except asyncio.CancelledError:
            if not work.cancelled():  # the server cancelled this
                work.cancel()
                raise
        finally:
            gone.cancel()

    def _count(self, scope: Scope, answer: _Answer) -> None:
        """Metrics and logs; unknown methods and paths, which could be any number, are "other"."""
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = getattr(scope.get("route"), "path", "other")
        seconds, status = time.monotonic() - answer.began, str(answer.status)
        self._metrics.requests.labels(method, route, status).observe(seconds)
        # By status: most of the app's errors are responses by now, not exceptions.
        if answer.status in REFUSALS:
            self._metrics.refused.labels(status).inc()
        if access.isEnabledFor(logging.INFO):
            fields = {
                "method": method,
                "route": route,
                "status": answer.status,
                "seconds": round(seconds, 4),
                "who": ASKER.get().name,
            }
            access.info("answered", extra={"fields": fields, "request": answer.identity})

    def _admit(self, scope: Scope, identity: str) -> Asker:
        """Check limits, origin and token; returns the client."""
        headers = Headers(scope=scope)
        method, path = scope["method"], scope["path"]
        authorization = headers.get("authorization", "")
        grant = self._tokens.find(authorization) if self._tokens else EVERYTHING
        client = name = str((scope.get("client") or ("unknown",))[0])
        if self._tokens and grant is not None:
            client, name = name_of(authorization), grant.name
        if path not in HEALTH:  # health checks are always answered
            if self._under_way > self._options.connections:
                raise Busy("Too many requests at once; ask again later.", 1)
            # A tab loads all files of the page at once, and they cost nothing.
            if path not in ASSETS and (wait := self._rates.wait(client)):
                raise Busy("You ask too often; ask again later.", wait)
        if not self._tokens:
            check_host(headers.get("host", ""))
        if method not in SAFE:
            check_origin(headers)
        if path not in OPEN and headers.get("sec-fetch-site") in ELSEWHERE:
            raise Problem(403, "Requests from pages of other origins are refused.")
        need = needed(method, path)
        self._allow(need, grant, method)
        allowed = functools.partial(self._still_may, authorization, need)
        return Asker(client, name, identity, grant or NOBODY, allowed)

    def _still_may(self, authorization: str, need: Need) -> bool:
        """Whether the token is still valid; streams check it again while they last."""
        if need.right is None or not self._tokens:
            return True
        grant = self._tokens.find(authorization)
        return grant is not None and grant.covers(need.memories) and grant.includes(need.right)

    def _allow(self, need: Need, grant: Grant | None, method: str) -> None:
        if need.right is None:
            return
        if grant is None:
            raise Problem(401, "Send a token: Authorization: Bearer ...", www_authenticate="Bearer")
        if not grant.covers(need.memories):  # does not reveal whether the memory exists
            raise Problem(403, "This token is not for this memory.")
        if not grant.includes(need.right):
            raise Problem(403, f"This token may only {grant.right}; it takes one that may do more.")
        if need.right != "read" and self._read_only and method not in SAFE:
            raise Problem(403, "This service only reads: nothing can be learned or changed here.")


class _Answer:
    """The response, with the headers that every response has."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._page = scope["path"] in PAGE
        chosen = Headers(scope=scope).get("x-request-id", "")
        self.identity = chosen if REQUEST_ID.fullmatch(chosen) else secrets.token_hex(8)
        self.begun = asyncio.Event()
        self.began = time.monotonic()
        self.started = False
        self.status = 0

    async def send(self, message: Message) -> None:
        """ASGI send."""
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in SECURITY.items():
                headers[name] = value
            headers["cache-control"] = "no-cache" if self._page else "no-store"
            headers["x-request-id"] = self.identity
        await self._send(message)
        if self.started:
            self.begun.set()

    async def end(self) -> None:
        """Send the end of the body."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
