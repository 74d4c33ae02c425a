"""What wraps every request: its id, count, span and log line, its API key, its body's size, and unforeseen defects."""

import asyncio
import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Annotated

from fastapi import Depends, Request
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semspec.errors import Unauthenticated, represent
from semspec.gateway.api.errors import CLIENT_GONE_STATUS, error_response, internal_error
from semspec.gateway.metrics import Metrics
from semspec.keys import Keys
from semspec.observability import mark_failed, request_id, span

_OPEN = frozenset({"/", "/health", "/ready"})


def is_open(method: str, path: str) -> bool:
    """Whether no key is asked for: the playground's own files, and what probes of a process's health ask."""
    return method in ("GET", "HEAD") and (path in _OPEN or path.startswith("/static/"))


def key_of(headers: Headers) -> bytes | None:
    """The key of `Authorization: Bearer KEY`; None without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip().encode("latin-1") if scheme.lower() == "bearer" and key.strip() else None


def unauthenticated(key: bytes | None) -> Unauthenticated:
    """What becomes of a request with no key, or with one that is not known. It is not repeated."""
    if key is None:
        return Unauthenticated("an API key is missing; send it as the header `Authorization: Bearer KEY`")
    return Unauthenticated("this API key is not known here; the gateway's operator gives one out")


def owner_of(request: Request) -> str:
    """Name of the API key the request came with; empty where none is asked for."""
    owner: str = getattr(request.state, "owner", "")
    return owner


def is_anonymous(request: Request) -> bool:
    """Whether this request, to an open path, came without an API key that is known."""
    return not hasattr(request.state, "owner")


OwnerOf = Annotated[str, Depends(owner_of)]
"""A route's parameter of this type is given the name of the caller's API key."""


_log = logging.getLogger(__name__)
_POLLED = ("/health", "/ready", "/metrics", "/v1/services")
_REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)


class Observed:
    """Names, counts, traces and logs each request, and answers for exceptions that no handler knows."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity = _identity(Headers(scope=scope).get("x-request-id", ""))
        request_id.set(identity)
        with _request_span(scope, identity) as opened:
            await self._answer(scope, receive, send, identity, opened)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, identity: str, opened: Span) -> None:
        status: int | None = None

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = identity
            await send(message)

        start = perf_counter()
        try:
            await self._app(scope, receive, send_named)
        except Exception:
            _log.exception("request failed")
            mark_failed(opened, "internal_error")
            if status is None:
                await error_response(internal_error(), scope["path"])(scope, receive, send_named)
        finally:
            self._note(scope, status or CLIENT_GONE_STATUS, perf_counter() - start, opened)

    def _note(self, scope: Scope, status: int, duration_s: float, opened: Span) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if route != "unmatched" else "any"
        self._metrics.request(method, route, status, duration_s)
        _end_span(opened, method, route, status)
        fields = {"method": scope["method"], "route": route, "status": status, "duration_ms": duration_s * 1e3}
        if owner := scope.get("state", {}).get("owner"):
            fields["owner"] = owner
        level = logging.DEBUG if route in _POLLED else logging.INFO
        _log.log(level, "%s %s -> %d", scope["method"], route, status, extra=fields)


@contextmanager
def _request_span(scope: Scope, identity: str) -> Iterator[Span]:
    """From the request's head to the last byte of the answer, below the client's own span if it sent one."""
    if scope["path"] in _POLLED:
        yield INVALID_SPAN
        return
    context = TraceContextTextMapPropagator().extract(Headers(scope=scope))
    with span("HTTP", SpanKind.SERVER, {"semspec.request_id": identity}, context) as opened:
        yield opened


def _end_span(opened: Span, method: str, route: str, status: int) -> None:
    """The route's template, never the path or the query: those are the client's words."""
    opened.update_name(f"{method} {route}")
    opened.set_attributes({"http.request.method": method, "http.route": route})
    opened.set_attribute("http.response.status_code", status)
    if status >= 500:
        mark_failed(opened, str(status))


class Authenticated:
    """Asks for an API key wherever there is more to be had than the page's files and the probes of health.

    Paths that do not exist are no exception: without a key a client does not learn which exist. The body is not read.
    """

    def __init__(self, app: ASGIApp, keys: Keys, metrics: Metrics) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        key = key_of(Headers(scope=scope))
        owner = None if key is None else self._keys.owner(key)
        if owner is not None:
            scope.setdefault("state", {})["owner"] = owner
        elif not is_open(scope["method"], scope["path"]):
            error = unauthenticated(key)
            self._metrics.refusal(represent(error).code)
            await error_response(error, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses bodies over a limit before they are read, or while they are, if more comes than was announced.

    More may come: a length beside `transfer-encoding: chunked` counts for nothing.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        is_announced_too_large = announced.isdecimal() and int(announced) > self._max_body_bytes
        num_bytes = 0

        async def receive_limited() -> Message:
            nonlocal num_bytes
            if is_announced_too_large:
                raise self._too_large()
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_limited, send)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body exceeds {self._max_body_bytes} bytes")


class BodyDeadline:
    """Refuses a body that takes too long, so that a slow client cannot hold a connection."""

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline, is_whole = asyncio.get_running_loop().time() + self._timeout_s, False

        async def receive_in_time() -> Message:
            nonlocal is_whole
            if is_whole:  # what follows is the client hanging up, which may take as long as the answer
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise self._too_slow() from None
            is_whole = not message.get("more_body", False)
            return message

        await self._app(scope, receive_in_time, send)

    def _too_slow(self) -> HTTPException:
        message = f"the body did not come within {self._timeout_s:g} seconds"
        return HTTPException(408, message, {"connection": "close"})


def _identity(offered: str) -> str:
    """The client's own id if it is harmless in headers and logs, else a new one."""
    return offered if _REQUEST_ID.fullmatch(offered) else secrets.token_hex(8)
