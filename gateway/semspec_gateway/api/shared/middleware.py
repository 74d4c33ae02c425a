"""ASGI middleware: request id, metrics, span and log line; unhandled errors; HTTP's version and framing; API keys; the
body's size and deadline, and the end of the drain."""

import asyncio
import logging
import re
import secrets
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPMethod
from time import perf_counter
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semspec.errors import Overloaded, SemspecError, Unauthenticated, Unavailable, represent
from semspec.keys import Keys
from semspec.observability import mark_failed, request_id, span
from semspec_gateway.api.shared.bodies import Bodies, HeldBody
from semspec_gateway.api.shared.errors import (
    CLIENT_GONE_STATUS,
    UNAVAILABLE_RETRY_AFTER_S,
    ClientGone,
    HttpError,
    error_response,
    internal_error,
)
from semspec_gateway.metrics import Metrics

T = TypeVar("T")
_OPEN = frozenset({"/", "/health", "/ping", "/ready"})


def is_open(method: str, path: str) -> bool:
    """Whether the path needs no API key: the playground's static files and the health checks."""
    return method in ("GET", "HEAD") and (path in _OPEN or path.startswith("/static/"))


def owner_of(request: Request) -> str:
    """Name of the request's API key; empty when authentication is off."""
    owner: str = getattr(request.state, "owner", "")
    return owner


def is_anonymous(request: Request) -> bool:
    """Whether a request to an open path has no valid API key."""
    return not hasattr(request.state, "owner")


OwnerOf = Annotated[str, Depends(owner_of)]
"""FastAPI dependency: the name of the request's API key."""

_log = logging.getLogger(__name__)
POLLED = ("/health", "/ping", "/ready", "/metrics", "/v1/services")
METHODS = frozenset(HTTPMethod)
"""Methods that HTTP has. Any other is refused, and is `other` in metrics, spans and logs."""
PIECE_BYTES = 64 * 1024
"""Most bytes of an answer that are sent before the client has read some of them."""
ALLOWED = "DELETE, GET, HEAD, OPTIONS, POST"
"""Methods that some route has."""
_REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)


class HttpMiddleware:
    """ASGI middleware of HTTP requests alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.handle if scope["type"] == "http" else self._app)(scope, receive, send)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


def closing(send: Send) -> Send:
    """Return `send` with a header that closes the connection after the response."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
        await send(message)

    return send_and_close


class Observed(HttpMiddleware):
    """Assigns a request id, records metrics, a span and a log line, and answers unhandled exceptions with 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        super().__init__(app)
        self._metrics = metrics

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        id = Headers(scope=scope).get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(id):  # it would not be safe in headers and logs
            id = secrets.token_hex(8)
        request_id.set(id)
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = id
            await send(message)

        start = perf_counter()
        with _request_span(scope, id) as request_span:
            try:
                await self._app(scope, receive, send_with_id)
            except Exception:
                _log.exception("request failed")
                mark_failed(request_span, "internal_error")
                if status is None:
                    await error_response(internal_error(), scope["path"])(
                        scope, receive, send_with_id
                    )
            finally:
                self._record(
                    scope, status or CLIENT_GONE_STATUS, perf_counter() - start, request_span
                )

    def _record(self, scope: Scope, status: int, duration_s: float, request_span: Span) -> None:
        # The route's template and a method of HTTP, never a path, a query or a word that the client has chosen.
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in METHODS else "other"
        label = "any" if route == "unmatched" else method
        self._metrics.request(label, route, status, duration_s)
        request_span.update_name(f"{label} {route}")
        request_span.set_attributes({"http.request.method": label, "http.route": route})
        request_span.set_attribute("http.response.status_code", status)
        if status >= 500:
            mark_failed(request_span, str(status))
        fields = {
            "method": method,
            "route": route,
            "status": status,
            "duration_ms": duration_s * 1e3,
        }
        if owner := scope.get("state", {}).get("owner"):
            fields["owner"] = owner
        level = logging.DEBUG if route in POLLED else logging.INFO
        _log.log(level, "%s %s -> %d", method, route, status, extra=fields)


@contextmanager
def _request_span(scope: Scope, id: str) -> Iterator[Span]:
    """A span from the request's head to the response's last byte; its parent is the client's span if one was sent."""
    if scope["path"] in POLLED:
        yield INVALID_SPAN
        return
    context = TraceContextTextMapPropagator().extract(Headers(scope=scope))
    with span("HTTP", SpanKind.SERVER, {"semspec.request_id": id}, context) as request_span:
        yield request_span


class HttpFraming(HttpMiddleware):
    """Refuses versions and methods that HTTP/1.1 does not have. Closes connections after such a request, and after one
    that others may have framed otherwise: one with both a length and a transfer coding (RFC 9112, 6.3)."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if refusal := _refusal(scope):
            await error_response(HttpError(refusal), scope["path"])(scope, receive, closing(send))
            return
        is_ambiguous = "content-length" in headers and "transfer-encoding" in headers
        await self._app(scope, receive, closing(send) if is_ambiguous else send)


def _refusal(scope: Scope) -> HTTPException | None:
    """Return the refusal of a request with this first line; None if the server reads it."""
    if scope["http_version"].partition(".")[0] != "1":
        return HTTPException(505, "this server speaks HTTP/1.1")
    if scope["method"] not in METHODS:
        return HTTPException(
            405, "HTTP has no such method; use one of those allowed", {"allow": ALLOWED}
        )
    return None


class Authenticated(HttpMiddleware):
    """Requires an API key on every route except static files and health checks.

    Unknown paths require it too, so that a client without a key cannot find out which exist. The body is not read.
    """

    def __init__(self, app: ASGIApp, keys: Keys, metrics: Metrics) -> None:
        super().__init__(app)
        self._keys = keys
        self._metrics = metrics

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        has_key = scheme.lower() == "bearer" and bool(key.strip())
        owner = self._keys.owner(key.strip().encode("latin-1")) if has_key else None
        if owner is not None:
            scope.setdefault("state", {})["owner"] = owner
        elif not is_open(scope["method"], scope["path"]):
            if has_key:  # which the message does not contain
                message = "this API key is not known, or no longer"
                remedy = "get one from the gateway's operator"
            else:
                message = "an API key is missing"
                remedy = "send it as the header `Authorization: Bearer KEY`"
            error = Unauthenticated(message, remedy=remedy)
            self._metrics.refusals.labels(represent(error).code).inc()
            await error_response(error, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)


class ShuttingDown(HTTPException):
    """The drain time is over. FastAPI turns errors while it reads a body into 400, except an `HTTPException`."""

    def __init__(self) -> None:
        headers = {"retry-after": str(UNAVAILABLE_RETRY_AFTER_S), "connection": "close"}
        super().__init__(503, "this gateway is shutting down; send the request to another", headers)


def handed_over(generation: str) -> Unavailable:
    """The error of a request whose generation, if it has begun, another gateway can continue."""
    return Unavailable(
        "this gateway is shutting down",
        remedy=f"attach to generation {generation} at another: GET /v1/generations/{generation}/events, "
        "or repeat the request if that is not found",
    )


class Drain:
    """Whether the time that running requests have at shutdown is over."""

    def __init__(self) -> None:
        self.is_over = False
        self._waiting: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """Make every `receive`, running or later, raise ShuttingDown."""
        self.is_over = True
        for timeout in self._waiting:
            timeout.reschedule(0)

    async def receive(self, receive: Receive) -> Message:
        """The client's next message. Raises: ShuttingDown."""
        if self.is_over:
            raise ShuttingDown
        try:
            async with asyncio.timeout(None) as timeout:
                self._waiting.add(timeout)
                try:
                    return await receive()
                finally:
                    self._waiting.discard(timeout)
        except TimeoutError:
            raise ShuttingDown from None


class BodyGuard(HttpMiddleware):
    """Bounds what clients send: the size of a body, by its `content-length` and while it is read, since with
    `transfer-encoding: chunked` the length is ignored; the time that it takes to arrive; and the memory of all requests
    together.

    When the drain is over, ends the requests that wait for their client. Routes that generate always wait for it, see
    `unless_disconnected`; the others take a moment.
    """

    def __init__(
        self, app: ASGIApp, bodies: Bodies, timeout_s: float, drain: Drain, metrics: Metrics
    ) -> None:
        super().__init__(app)
        self._bodies, self._timeout_s = bodies, timeout_s
        self._drain, self._metrics = drain, metrics

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # These routes read no body, and answer under any load.
        if is_open(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        with ExitStack() as stack:
            try:
                body = stack.enter_context(
                    self._bodies.hold(scope.get("state", {}).get("owner", ""))
                )
            except (Overloaded, Unavailable) as error:
                await self._refuse(error, scope, receive, send)
            else:
                scope.setdefault("state", {})["body"] = body
                await self._handle(body, scope, receive, send)

    async def _refuse(
        self, error: SemspecError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._metrics.refusals.labels(represent(error).code).inc()
        await error_response(error, scope["path"])(scope, receive, closing(send))

    async def _handle(self, body: HeldBody, scope: Scope, receive: Receive, send: Send) -> None:
        announced = Headers(scope=scope).get("content-length", "0")
        max_bytes, num_bytes = self._bodies.max_body_bytes, 0
        is_too_large = announced.isdecimal() and int(announced) > max_bytes
        deadline, is_whole = asyncio.get_running_loop().time() + self._timeout_s, False
        respond, is_refused = send, False

        async def receive_guarded() -> Message:
            nonlocal num_bytes, is_whole, respond
            if is_too_large:
                raise self._too_large()
            try:  # the disconnect, for which a request waits after the body, may come as late as the response's end
                async with asyncio.timeout_at(None if is_whole else deadline):
                    message = await self._drain.receive(receive)
            except TimeoutError:
                reason = f"the body did not arrive within {self._timeout_s:g} seconds"
                raise HTTPException(408, reason, {"connection": "close"}) from None
            is_whole = is_whole or not message.get("more_body", False)
            num_new_bytes = len(message.get("body", b""))
            num_bytes += num_new_bytes
            if num_bytes > max_bytes:
                raise self._too_large()
            try:
                body.add(num_new_bytes)
            except SemspecError:
                # Reading the rest would take as long as reading it for an answer.
                respond = closing(send)
                raise
            return message

        async def send_guarded(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start":
                try:
                    body.replace_by_answer(
                        int(Headers(raw=message["headers"]).get("content-length", "0"))
                    )
                except SemspecError as error:
                    is_refused = True
                    await self._refuse(error, scope, receive, respond)
            if not is_refused:
                await _send_in_pieces(message, respond)

        await self._app(scope, receive_guarded, send_guarded)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body exceeds {self._bodies.max_body_bytes} bytes")


async def _send_in_pieces(message: Message, send: Send) -> None:
    """Send a large part of an answer piece by piece, which waits for the client to read, so that the request lasts as
    long as its answer is in memory."""
    data = message.get("body", b"")
    starts = range(0, len(data), PIECE_BYTES)
    for start in starts[:-1]:
        await send({**message, "body": data[start : start + PIECE_BYTES], "more_body": True})
    await send({**message, "body": data[starts[-1] :]} if len(starts) > 1 else message)


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; when the client disconnects or the drain is over, cancel it and wait for its clean-up.

    The request's body must already be read. Raises: ClientGone, ShuttingDown, and what `work` raises.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        watcher.result()
        raise ClientGone
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
