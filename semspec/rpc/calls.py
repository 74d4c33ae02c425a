"""Calls on both sides: bearer token, request id and trace context in the metadata, spans, and the mapping of errors to
gRPC statuses and back. `Methods` handles the calls of a service: it admits callers and maps errors."""

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager
from operator import methodcaller
from typing import Any, Never, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from opentelemetry.context import Context as OtelContext
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from semspec.errors import (
    InternalError,
    InvalidRequest,
    Mismatch,
    SemspecError,
    Unauthenticated,
    Unavailable,
    from_grpc_status,
    represent,
)
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
_HANDSHAKE = "/Info"
_OF_TRANSPORT = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN
_MAX_DETAILS_LENGTH = 500  # a status travels in a header, 8 KiB at most once percent-encoded

R = TypeVar("R")
Context = aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any], Awaitable[Any] | AsyncGenerator[Any, None]]


logger = logging.getLogger(__name__)
_propagator = TraceContextTextMapPropagator()


def path_of(method: MethodDescriptor) -> str:
    """Return the path of a method in gRPC."""
    return f"/{method.containing_service.full_name}/{method.name}"


def call_metadata(opened: Span) -> dict[str, str]:
    """Return a call's metadata: the trace context of its span, and the request id if it is valid in gRPC metadata."""
    carrier: dict[str, str] = {}
    if opened.get_span_context().is_valid:  # else there is no trace
        _propagator.inject(carrier, set_span_in_context(opened))
    identifier = request_id.get()[:MAX_REQUEST_ID_LENGTH]
    if identifier and identifier.isascii() and identifier.isprintable():
        carrier[REQUEST_ID] = identifier
    return carrier


def client_span(path: str, request: object) -> AbstractContextManager[Span]:
    """Open a client span for a call of the method at `path`; handshakes have none."""
    return _rpc_span(path, SpanKind.CLIENT, request)


@contextmanager
def _rpc_span(
    method: str, kind: SpanKind, request: object, parent: OtelContext | None = None
) -> Iterator[Span]:
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
    """Return span attributes: the number of segments and tokens of a request, if it has such fields."""
    segments = getattr(request, "segments", None) or getattr(request, "scores", None)
    proposal = getattr(request, "proposal", None)
    return {
        "semspec.num_segments": len(segments) if segments else None,
        "semspec.num_tokens": getattr(request, "num_tokens", None)
        if proposal is None
        else len(proposal.token_ids),
    }


class Methods:
    """The methods of a service as handlers of gRPC.

    A behaviour takes a request and returns its response, or generates its responses. Its error sets the status of the
    call: a `SemspecError` by `errors.TABLE`, any other is INTERNAL and logged. A cancelled call closes the generator.
    """

    def __init__(self, token: str | None) -> None:
        """Refuse callers without the bearer `token`, which is compared in constant time; None admits all."""
        self._expected = f"Bearer {token}".encode() if token else None

    def handler(
        self, method: MethodDescriptor, behaviour: Behaviour
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Return the handler of a method with one response, or with a stream of them."""
        path = path_of(method)
        decode = decoding(GetMessageClass(method.input_type).FromString)

        async def one_call(request: Any, context: Context) -> Any:
            try:
                metadata = self._admitted(context)
                with _serving(path, received(request), metadata):
                    return await behaviour(request)  # type: ignore[misc]
            except Exception as error:
                await _abort(context, error)

        async def stream(request: Any, context: Context) -> None:
            # It writes and does not generate: gRPC leaves a cancelled generator to the garbage collector. Here the
            # cancellation is raised in `write` or in the behaviour's generator, which is closed immediately.
            try:
                metadata = self._admitted(context)
                with _serving(path, received(request), metadata) as opened:
                    await _answer(context, behaviour(request), opened)
            except Exception as error:
                await _abort(context, error)

        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, decode, encode)
        return grpc.unary_unary_rpc_method_handler(one_call, decode, encode)

    def _admitted(self, context: Context) -> Mapping[str, str]:
        """Return the metadata of a call; for a repeated key, the first value. Raises: Unauthenticated."""
        metadata = {
            key: str(value) for key, value in reversed(tuple(context.invocation_metadata() or ()))
        }
        authorization = metadata.get(AUTHORIZATION, "").encode()
        if self._expected and not hmac.compare_digest(authorization, self._expected):
            raise Unauthenticated("the bearer token is missing or wrong")
        return metadata


encode = methodcaller("SerializeToString")
"""The serializer of all messages."""


def decoding(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a deserializer that returns its error, for `received` to raise. gRPC itself logs a traceback for invalid
    bytes, and a client continues with None."""

    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception as error:
            return InvalidRequest(
                f"the bytes are not a message of this method: {' '.join(str(error).split())}"
            )

    return decoded


def received(message: R) -> R:
    """Return the message. Raises: InvalidRequest when its bytes were invalid."""
    if isinstance(message, InvalidRequest):
        raise message
    return message


def _serving(
    path: str, request: object, metadata: Mapping[str, str]
) -> AbstractContextManager[Span]:
    """Set the request id, and open a span below the caller's."""
    request_id.set(metadata.get(REQUEST_ID, "")[:MAX_REQUEST_ID_LENGTH])
    return _rpc_span(path, SpanKind.SERVER, request, _propagator.extract(metadata))


async def _answer(context: Context, responses: Any, opened: Span) -> None:
    """Send the responses to a request."""
    num_segments = 0
    async with aclosing(responses):
        async for response in responses:
            try:
                await context.write(response)
            except aio.BaseError as error:  # sometimes gRPC reports a disconnected caller this way
                raise asyncio.CancelledError("the caller disconnected") from error
            num_segments += response.HasField("segment")
            opened.set_attribute("semspec.num_segments", num_segments)


async def _abort(context: Context, error: Exception) -> Never:
    if not isinstance(error, SemspecError):
        logger.error("unhandled error", exc_info=error)
        error = InternalError("internal error", remedy="the service's log has the details")
    if error.operator_hint:
        logger.warning("%s", error)
    trailer = ((PARAMETER, error.parameter or ""),)
    status = grpc.StatusCode[represent(error).grpc_status]
    await context.abort(status, error.text[:_MAX_DETAILS_LENGTH], trailer)


@contextmanager
def rpc_errors() -> Iterator[None]:
    """Map gRPC errors to `SemspecError`."""
    try:
        yield
    except aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except aio.UsageError as error:
        raise Unavailable(f"this client is closed: {error}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # gRPC cancels its calls, not the tasks that await them.
        raise Unavailable("this client was closed during the call") from None


def from_rpc_error(error: aio.AioRpcError) -> SemspecError:
    """Return the error a service raised, or the equivalent of a transport failure."""
    details, trailer = error.details() or error.code().name, error.trailing_metadata() or ()
    if error.code() is grpc.StatusCode.CANCELLED:
        return Unavailable(f"the service ended the call: {details}")
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:  # the operator's mistake, not the user's
        return Unavailable(f"the service refuses this caller: {details}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Mismatch(
            f"the service has another version of the gRPC contract ({details})", remedy="upgrade it"
        )
    parameters = [str(value) for key, value in trailer if key == PARAMETER]
    if error.code() in _OF_TRANSPORT and not parameters:  # whose details have addresses
        logger.debug("a connection failed: %s", details)
        return Unavailable("the connection failed")
    parameter = parameters[0] or None if parameters else None
    if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED):
        return InternalError(
            f"{error.code().name} is not a status of the gRPC contract: {details}", parameter
        )
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return InvalidRequest(f"too large for the link: {details}", remedy="send less")
    return from_grpc_status(error.code().name, details, parameter)
