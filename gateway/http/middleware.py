"""What wraps every request: its id, count, span and log line, the size of its body, and defects nobody foresaw."""

import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import CLIENT_GONE_STATUS, error_response, internal_error
from gateway.metrics import Metrics
from semspec.telemetry import request_id
from semspec.tracing import CARRIED, Attributes, Span, span

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
        with _request_span(scope, identity) as opened, opened.active():
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
            opened.fail("internal_error")
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
        level = logging.DEBUG if route in _POLLED else logging.INFO
        _log.log(level, "%s %s -> %d", scope["method"], route, status, extra=fields)


@contextmanager
def _request_span(scope: Scope, identity: str) -> Iterator[Span]:
    """From the request's head to the last byte of the answer, below the client's own span if it sent one."""
    if scope["path"] in _POLLED:
        yield Span(None)
        return
    headers = Headers(scope=scope)
    carried = {key: headers[key] for key in CARRIED if key in headers}
    with span("HTTP", "server", {"semspec.request_id": identity}, carried) as opened:
        yield opened


def _end_span(opened: Span, method: str, route: str, status: int) -> None:
    """The route's template, never the path or the query: those are the client's words."""
    attributes: Attributes = {"http.request.method": method, "http.route": route, "http.response.status_code": status}
    opened.rename(f"{method} {route}")
    opened.set(attributes)
    if status >= 500:
        opened.fail(str(status))


class BodyLimit:
    """Refuses bodies over a limit before they are read, or while they are if their length was not announced."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        num_bytes = int(announced) if announced.isdecimal() else 0

        async def receive_limited() -> Message:
            nonlocal num_bytes
            if num_bytes > self._max_body_bytes:
                raise self._too_large()
            message = await receive()
            if announced == "0":
                num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_limited, send)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body exceeds {self._max_body_bytes} bytes")


def _identity(offered: str) -> str:
    """The client's own id if it is harmless in headers and logs, else a new one."""
    return offered if _REQUEST_ID.fullmatch(offered) else secrets.token_hex(8)
