"""What stands before every servicer: the bearer token, the request's names, and the table from errors to statuses."""

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Never, TypeAlias, TypeVar, cast

import grpc
from grpc import aio
from opentelemetry import context as otel_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from semspec.errors import InternalError, SemspecError, Unauthenticated, represent
from semspec.observability import request_id
from semspec.rpc.metadata import AUTHORIZATION, MAX_REQUEST_ID_LENGTH, PARAMETER, REQUEST_ID, server_span

OWN_METHODS = "/semspec."
HEALTH_METHODS = "/grpc.health.v1.Health/"
_MAX_DETAILS_LENGTH = 500  # a status travels in a header, 8 KiB at most once percent-encoded

Q = TypeVar("Q")
R = TypeVar("R")
Context = aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Unary = Callable[[Q, Context], Awaitable[R]]
Streaming = Callable[[Q, Context], AsyncGenerator[R, None]]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]

logger = logging.getLogger(__name__)


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
        origin = _origin(handler_call_details)
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
    trace: otel_context.Context
    """The caller's span."""


def _origin(details: grpc.HandlerCallDetails) -> _Origin:
    metadata = _metadata(details)
    identifier = metadata.get(REQUEST_ID, "")[:MAX_REQUEST_ID_LENGTH]
    return _Origin(details.method, identifier, TraceContextTextMapPropagator().extract(metadata))


def _guarded(behaviour: Unary[Q, R], origin: _Origin) -> Unary[Q, R]:
    async def call(request: Q, context: Context) -> R:
        request_id.set(origin.request_id)
        try:
            with server_span(origin.method, request, origin.trace):
                return await behaviour(request, context)
        except Exception as error:
            await _abort(context, error)

    return call


def _guarded_stream(behaviour: Streaming[Q, R], origin: _Origin) -> Callable[[Q, Context], Awaitable[None]]:
    # A coroutine that writes, not a generator: gRPC drops a cancelled generator for the collector to close some day,
    # whereas here the cancellation arrives in `write` or in the generator, and either way closes it now.
    async def call(request: Q, context: Context) -> None:
        request_id.set(origin.request_id)
        try:
            with server_span(origin.method, request, origin.trace) as opened:
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
