"""What accompanies every call: bearer token, request id and trace in its metadata, a span on either side, and on the
server the mapping of errors to statuses."""

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Never, TypeAlias, TypeVar, cast

import grpc
from grpc import aio
from opentelemetry.context import Context as OtelContext
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from semspec.errors import InternalError, SemspecError, Unauthenticated, represent
from semspec.observability import Attributes, detached_span, request_id

AUTHORIZATION = "authorization"
"""Request: `Bearer <token>`."""
REQUEST_ID = "x-request-id"
"""Request: whose work this is, for the logs of both sides."""
PARAMETER = "semspec-parameter"
"""Trailer: the request field at fault, if one is."""

MAX_REQUEST_ID_LENGTH = 128
OWN_METHODS = "/semspec."
HEALTH_METHODS = "/grpc.health.v1.Health/"
_HANDSHAKE = "/Info"
_MAX_DETAILS_LENGTH = 500  # a status travels in a header, 8 KiB at most once percent-encoded

Q = TypeVar("Q")
R = TypeVar("R")
Context = aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Unary = Callable[[Q, Context], Awaitable[R]]
Streaming = Callable[[Q, Context], AsyncGenerator[R, None]]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]

logger = logging.getLogger(__name__)
_propagator = TraceContextTextMapPropagator()


def call_metadata(opened: Span) -> tuple[tuple[str, str], ...]:
    """Whose work a call is: its request id, unless there is none or gRPC would refuse it, and its span's trace."""
    carrier: dict[str, str] = {}
    if opened.get_span_context().is_valid:  # else there is no trace
        _propagator.inject(carrier, set_span_in_context(opened))
    identifier = request_id.get()[:MAX_REQUEST_ID_LENGTH]
    if identifier and identifier.isascii() and identifier.isprintable():
        carrier[REQUEST_ID] = identifier
    return tuple(carrier.items())


def client_span(method: object, request: object) -> AbstractContextManager[Span]:
    """The wait for a call, by the stub's `method`; none of a handshake."""
    path: bytes = getattr(method, "_method", b"/")  # gRPC tells the name of a call to interceptors only
    return _rpc_span(path.decode(), SpanKind.CLIENT, request)


@contextmanager
def _rpc_span(method: str, kind: SpanKind, request: object, parent: OtelContext | None = None) -> Iterator[Span]:
    if method.endswith(_HANDSHAKE):
        yield INVALID_SPAN
        return
    name = method.removeprefix("/")
    attributes = {"rpc.system.name": "grpc", "rpc.method": name, **_sizes(request)}
    with detached_span(name, kind, attributes, parent) as opened:
        status = "OK"
        try:
            yield opened
        except (asyncio.CancelledError, GeneratorExit):
            status = "CANCELLED"
            raise
        except Exception as error:
            status = represent(error).grpc_status if isinstance(error, SemspecError) else "INTERNAL"
            raise
        finally:
            opened.set_attribute("rpc.response.status_code", status)


def _sizes(request: object) -> Attributes:
    """How much a request is about, as far as its fields say."""
    segments = getattr(request, "segments", None) or getattr(request, "readings", None)
    proposal = getattr(request, "proposal", None)
    return {
        "semspec.num_segments": len(segments) if segments else None,
        "semspec.num_tokens": getattr(request, "num_tokens", None) if proposal is None else len(proposal.token_ids),
    }


class TokenInterceptor(aio.ServerInterceptor):
    """Refuses calls without the bearer token, in constant time. Health stays open: kubelets carry no token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The handler asked for, or one that refuses."""
        if handler_call_details.method.startswith(HEALTH_METHODS) or self._admits(handler_call_details):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)

    def _admits(self, details: grpc.HandlerCallDetails) -> bool:
        return hmac.compare_digest(_metadata(details).get(AUTHORIZATION, "").encode(), self._expected)


class ErrorInterceptor(aio.ServerInterceptor):
    """Lets servicers raise: maps `SemspecError` by `errors.TABLE`, anything else to INTERNAL, and keeps it to the log.

    Servicers are coroutines (unary) or async generators (streams); a cancelled call closes the generator at once.
    """

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The handler asked for, wrapped; other people's services (health, reflection) as they are."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(OWN_METHODS):
            return handler
        metadata = _metadata(handler_call_details)
        identifier = metadata.get(REQUEST_ID, "")[:MAX_REQUEST_ID_LENGTH]
        origin = _Origin(handler_call_details.method, identifier, _propagator.extract(metadata))
        codecs = handler.request_deserializer, handler.response_serializer
        if handler.response_streaming:
            streaming = cast(Streaming[Any, Any], handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(_guarded_stream(streaming, origin), *codecs)
        unary = cast(Unary[Any, Any], handler.unary_unary)
        return grpc.unary_unary_rpc_method_handler(_guarded(unary, origin), *codecs)


@dataclass(frozen=True, slots=True)
class _Origin:
    """What is called, and for whom."""

    method: str
    request_id: str
    parent: OtelContext
    """With the caller's span."""

    @contextmanager
    def serving(self, request: object) -> Iterator[Span]:
        """The work for a call: its request id, and its span below the caller's."""
        request_id.set(self.request_id)
        with _rpc_span(self.method, SpanKind.SERVER, request, self.parent) as opened:
            yield opened


def _guarded(behaviour: Unary[Q, R], origin: _Origin) -> Unary[Q, R]:
    async def call(request: Q, context: Context) -> R:
        try:
            with origin.serving(request):
                return await behaviour(request, context)
        except Exception as error:
            await _abort(context, error)

    return call


def _guarded_stream(behaviour: Streaming[Q, R], origin: _Origin) -> Callable[[Q, Context], Awaitable[None]]:
    # A coroutine that writes, not a generator: gRPC drops a cancelled generator for the collector to close some day,
    # whereas here the cancellation arrives in `write` or in the generator, and either way closes it now.
    async def call(request: Q, context: Context) -> None:
        try:
            with origin.serving(request) as opened:
                num_segments = 0
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        await _send(context, response)
                        num_segments += 1
                        opened.set_attribute("semspec.num_segments", num_segments)
        except Exception as error:
            await _abort(context, error)

    return call


async def _send(context: Context, response: object) -> None:
    try:
        await context.write(response)
    except aio.BaseError as error:  # how gRPC reports, at times, that the caller has gone
        raise asyncio.CancelledError("the caller has gone") from error


async def _refuse(request: object, context: Context) -> None:
    await _abort(context, Unauthenticated("the bearer token is missing or wrong"))


async def _abort(context: Context, error: Exception) -> Never:
    if not isinstance(error, SemspecError):
        logger.error("unhandled error", exc_info=error)
        error = InternalError("internal error; the service's log has the details")
    trailer = ((PARAMETER, error.parameter),) if error.parameter else ()
    status = grpc.StatusCode[represent(error).grpc_status]
    await context.abort(status, error.message[:_MAX_DETAILS_LENGTH], trailer)


def _metadata(details: grpc.HandlerCallDetails) -> dict[str, str]:
    """Of a key that is repeated, the first value."""
    return {key: str(value) for key, value in reversed(tuple(details.invocation_metadata or ()))}
