"""What all calls share: bearer token, request id and trace context in the metadata, a span on client and server, and
the server's mapping of errors to gRPC statuses."""

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any, Never, TypeAlias, TypeVar, cast

import grpc
from grpc import aio
from opentelemetry.context import Context as OtelContext
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from semspec.errors import InternalError, InvalidRequest, SemspecError, Unauthenticated, represent
from semspec.observability import Attributes, detached_span, request_id

AUTHORIZATION = "authorization"
"""Request: `Bearer <token>`."""
REQUEST_ID = "x-request-id"
"""Request: the id of the client request that caused this call, for the logs of both sides."""
PARAMETER = "semspec-parameter"
"""Trailer of every error that a service raises: the invalid request field; empty if there is none."""

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message that clients and services send and receive."""
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
Serving = Callable[[object], AbstractContextManager[Span]]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]

logger = logging.getLogger(__name__)
_propagator = TraceContextTextMapPropagator()


def call_metadata(opened: Span) -> tuple[tuple[str, str], ...]:
    """The metadata of a call: the trace context of its span, and the request id if set and valid in gRPC metadata."""
    carrier: dict[str, str] = {}
    if opened.get_span_context().is_valid:  # else there is no trace
        _propagator.inject(carrier, set_span_in_context(opened))
    identifier = request_id.get()[:MAX_REQUEST_ID_LENGTH]
    if identifier and identifier.isascii() and identifier.isprintable():
        carrier[REQUEST_ID] = identifier
    return tuple(carrier.items())


def client_span(path: str, request: object) -> AbstractContextManager[Span]:
    """A client span for a call of the method at `path`; handshakes have none."""
    return _rpc_span(path, SpanKind.CLIENT, request)


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
    """Span attributes: the number of segments and tokens of a request, if it has such fields."""
    segments = getattr(request, "segments", None) or getattr(request, "readings", None)
    proposal = getattr(request, "proposal", None)
    return {
        "semspec.num_segments": len(segments) if segments else None,
        "semspec.num_tokens": getattr(request, "num_tokens", None) if proposal is None else len(proposal.token_ids),
    }


class TokenInterceptor(aio.ServerInterceptor):
    """Rejects calls without the bearer token, compared in constant time, but for health checks: kubelets send none."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The handler of the call, or one that rejects it."""
        if handler_call_details.method.startswith(HEALTH_METHODS) or self._admits(handler_call_details):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)

    def _admits(self, details: grpc.HandlerCallDetails) -> bool:
        return hmac.compare_digest(_metadata(details).get(AUTHORIZATION, "").encode(), self._expected)


class ErrorInterceptor(aio.ServerInterceptor):
    """Maps the errors that servicers raise: `SemspecError` by `errors.TABLE`, any other to INTERNAL and logged.

    Servicers are coroutines (unary) or async generators (streams); a cancelled call closes the generator at once.
    """

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The handler of the call, wrapped; handlers of other services (health) are returned unchanged."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(OWN_METHODS):
            return handler
        metadata = _metadata(handler_call_details)

        def serving(request: object) -> AbstractContextManager[Span]:
            """Sets the request id, and opens a span below the caller's."""
            request_id.set(metadata.get(REQUEST_ID, "")[:MAX_REQUEST_ID_LENGTH])
            return _rpc_span(handler_call_details.method, SpanKind.SERVER, request, _propagator.extract(metadata))

        codecs = decoding(handler.request_deserializer), handler.response_serializer
        if handler.response_streaming:
            streaming = cast(Streaming[Any, Any], handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(_guarded_stream(streaming, serving), *codecs)
        unary = cast(Unary[Any, Any], handler.unary_unary)
        return grpc.unary_unary_rpc_method_handler(_guarded(unary, serving), *codecs)


def decoding(decode: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """A deserializer that returns an error instead of raising it, to be raised by `received`. gRPC itself logs a
    traceback for bytes that are no message, and has a client continue with None."""

    def decoded(data: bytes) -> Any:
        try:
            return decode(data) if decode else data
        except Exception as error:
            return InvalidRequest(f"the bytes are no message of this method: {' '.join(str(error).split())}")

    return decoded


def received(message: R) -> R:
    """The message. Raises: InvalidRequest when its bytes are none of the method."""
    if isinstance(message, InvalidRequest):
        raise message
    return message


def _guarded(behaviour: Unary[Q, R], serving: Serving) -> Unary[Q, R]:
    async def call(request: Q, context: Context) -> R:
        try:
            with serving(received(request)):
                return await behaviour(request, context)
        except Exception as error:
            await _abort(context, error)

    return call


def _guarded_stream(behaviour: Streaming[Q, R], serving: Serving) -> Callable[[Q, Context], Awaitable[None]]:
    # A coroutine that writes, not a generator: gRPC leaves a cancelled generator to the garbage collector. Here the
    # cancellation is raised in `write` or in the generator, and both close the generator immediately.
    async def call(request: Q, context: Context) -> None:
        try:
            with serving(received(request)) as opened:
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
    except aio.BaseError as error:  # sometimes gRPC reports a disconnected caller this way
        raise asyncio.CancelledError("the caller disconnected") from error


async def _refuse(request: object, context: Context) -> None:
    await _abort(context, Unauthenticated("the bearer token is missing or wrong"))


async def _abort(context: Context, error: Exception) -> Never:
    if not isinstance(error, SemspecError):
        logger.error("unhandled error", exc_info=error)
        error = InternalError("internal error; the service's log has the details")
    trailer = ((PARAMETER, error.parameter or ""),)
    status = grpc.StatusCode[represent(error).grpc_status]
    await context.abort(status, error.message[:_MAX_DETAILS_LENGTH], trailer)


def _metadata(details: grpc.HandlerCallDetails) -> dict[str, str]:
    """Metadata as a dict; for a repeated key, the first value."""
    return {key: str(value) for key, value in reversed(tuple(details.invocation_metadata or ()))}
