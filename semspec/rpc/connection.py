"""A connection to a replica: one channel, and metadata, deadlines, errors and contexts of its calls."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from grpc_health.v1 import health_pb2

from semspec.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Mismatch,
    SemspecError,
    Unavailable,
    from_grpc_status,
)
from semspec.rpc.calls import (
    AUTHORIZATION,
    MAX_MESSAGE_BYTES,
    PARAMETER,
    call_metadata,
    client_span,
    decoding,
    received,
)
from semspec.rpc.contexts import TAIL, LastContexts, put_context
from semspec.rpc.tls import Certificates, channel_credentials
from semspec.types import Context

T = TypeVar("T")

_IDEMPOTENT_CALLS = {
    "semspec.v1.Draft": ("Info", "Encode", "Propose"),
    "semspec.v1.Target": ("Info", "Encode", "Tokenize", "Read", "Verify", "Ask"),
    "semspec.v1.Verifier": ("Info", "Judge"),
}
_RETRIES = {
    "name": [{"service": name, "method": call} for name, calls in _IDEMPOTENT_CALLS.items() for call in calls],
    "retryPolicy": {
        "maxAttempts": 3,
        "initialBackoff": "0.05s",
        "maxBackoff": "0.5s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    },
}

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
_encode = methodcaller("SerializeToString")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options for calls to a service and for its replicas."""

    token: str | None = field(default=None, repr=False)
    """Bearer token, if the service requires one."""
    call_timeout_s: float = 60.0
    """Deadline of a unary call, its retries included."""
    idle_timeout_s: float = 60.0
    """Maximum wait for the next segment of a `Write` stream; the stream as a whole has no deadline."""
    certificates: Certificates | None = None
    """For a service with TLS; None: no TLS."""
    server_name: str = ""
    """Name that the service's certificate must contain; empty: the host of its address."""
    resolve_s: float = 5.0
    """Interval between resolutions of host names."""
    health_interval_s: float = 2.0
    """Interval between health checks of a replica."""
    health_timeout_s: float = 5.0
    """Time without an answer to health checks after which a replica is unreachable."""


DEFAULT_OPTIONS = ClientOptions()


def open_channel(address: str, options: ClientOptions) -> aio.Channel:
    """A channel to `address`. It connects at the first call."""
    if options.certificates is None:
        return aio.insecure_channel(address, _channel_options())
    override = (("grpc.ssl_target_name_override", options.server_name),) if options.server_name else ()
    credentials = channel_credentials(options.certificates)
    return aio.secure_channel(address, credentials, (*_channel_options(), *override))


def _channel_options() -> Sequence[tuple[str, int | str]]:
    return (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.per_rpc_retry_buffer_size", MAX_MESSAGE_BYTES),  # a larger request would not be retried
        ("grpc.service_config", json.dumps({"methodConfig": [_RETRIES]})),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),  # reconnects to a restarted service within seconds
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # no limit on pings during a long prefill
        ("grpc.enable_http_proxy", 0),  # services are in the same network
    )


class _Method(NamedTuple):
    """A method of a service at the other end of a channel."""

    path: str
    call: Any
    """Sends a message; the responses are for `received`."""

    @classmethod
    def of(cls, channel: aio.Channel, method: MethodDescriptor) -> "_Method":
        path = f"/{method.containing_service.full_name}/{method.name}"
        open_method: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
        return cls(path, open_method(path, _encode, decoding(GetMessageClass(method.output_type).FromString)))


class Connection:
    """The calls to one replica, each by the name of its method.

    Those about a context carry what the service does not remember of it. What a response holds is read here, so that
    one that makes no sense is an error of the call.
    """

    def __init__(self, address: str, options: ClientOptions, service: ServiceDescriptor) -> None:
        self._options = options
        self._authorization = ((AUTHORIZATION, f"Bearer {options.token}"),) if options.token else ()
        self._channel = open_channel(address, options)
        self._methods = {one.name: _Method.of(self._channel, one) for one in (*service.methods, *_HEALTH.methods)}
        self._contexts = LastContexts()

    async def aclose(self) -> None:
        """Cancel running calls and disconnect. Later calls raise Unavailable."""
        await self._channel.close()

    async def call(self, name: str, request: Any, read: Callable[[Any], T], context: Context | None = None) -> T:
        """What `read` makes of the response. `context`: sent with the request, without what the service remembers of
        it; or all of it, if the service asks for that."""
        if context is None:
            return await self._call(name, request, read)
        rest, before = self._contexts.rest(request.session, context)
        try:
            response = await self._call(name, put_context(request, rest, before), read)
        except SemspecError as error:
            if not before or not _wants_whole(error):
                raise
            response = await self._call(name, put_context(request, context), read)
        self._contexts.note(request.session, context)
        return response

    async def is_serving(self, service: str) -> bool:
        """What a health check says of `service`; without a deadline."""
        with rpc_errors():
            answer = received(await self._methods["Check"].call(health_pb2.HealthCheckRequest(service=service)))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def _call(self, name: str, request: Any, read: Callable[[Any], T]) -> T:
        method = self._methods[name]
        with client_span(method.path, request) as opened, rpc_errors():
            metadata = self._authorization + call_metadata(opened)
            response = await method.call(request, timeout=self._options.call_timeout_s, metadata=metadata)
        with _checked_response():
            return read(received(response))

    async def stream(
        self, name: str, request: Any, read: Callable[[Any], T], context: Context
    ) -> AsyncGenerator[T, None]:
        """As `call`, of each response of a stream. Raises: DeadlineExceeded after `idle_timeout_s` without one."""
        for rest, before in (self._contexts.rest(request.session, context), (context, b"")):
            is_first = True
            try:
                async with aclosing(self._stream(name, put_context(request, rest, before))) as responses:
                    async for response in responses:
                        if is_first:
                            self._contexts.note(request.session, context)
                            is_first = False
                        with _checked_response():
                            item = read(received(response))
                        yield item
                return
            except SemspecError as error:
                if not (before and is_first and _wants_whole(error)):
                    raise

    async def _stream(self, name: str, request: Any) -> AsyncGenerator[Any, None]:
        method = self._methods[name]
        with client_span(method.path, request) as opened:
            with rpc_errors():
                call = method.call(request, metadata=self._authorization + call_metadata(opened))
            try:
                responses = aiter(call)
                while (response := await self._next(responses)) is not None:
                    yield response
            finally:
                call.cancel()

    async def _next(self, responses: AsyncIterator[T]) -> T | None:
        timeout_s = self._options.idle_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                with rpc_errors():
                    return await anext(responses, None)
        except TimeoutError:
            raise DeadlineExceeded(f"no segment within {timeout_s:g} s") from None


def from_rpc_error(error: aio.AioRpcError) -> SemspecError:
    """The error a service raised, or the equivalent of a transport failure."""
    details, trailer = error.details() or error.code().name, error.trailing_metadata() or ()
    if error.code() is grpc.StatusCode.CANCELLED:
        return Unavailable(f"the service ended the call: {details}")
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:  # the operator's mistake, not the end user's
        return Unavailable(f"the service refuses this caller: {details}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return Mismatch(f"the service has an older version of the gRPC contract ({details}); upgrade it")
    parameters = [str(value) for key, value in trailer if key == PARAMETER]
    if error.code() is grpc.StatusCode.UNAVAILABLE and not parameters:  # of the transport, whose details have addresses
        _log.debug("a connection failed: %s", details)
        return Unavailable("the connection failed")
    parameter = parameters[0] or None if parameters else None
    if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED):  # no service answers so to the end
        return InternalError(f"{error.code().name} is not a status of the gRPC contract: {details}", parameter)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return InvalidRequest(f"too large for the link: {details}; send less")
    return from_grpc_status(error.code().name, details, parameter)


def _wants_whole(error: SemspecError) -> bool:
    """Whether the service does not remember the beginning of a context, or, an older one, got no context."""
    return (isinstance(error, InternalError) and error.parameter == TAIL) or error.parameter == "context"


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
        raise Unavailable(
            "this client was closed during the call"
        ) from None  # gRPC cancels its calls, not the tasks that await them


@contextmanager
def _checked_response() -> Iterator[None]:
    """Raise InternalError for a malformed response: it is the service's defect, not the caller's."""
    try:
        yield
    except InvalidRequest as error:
        raise InternalError(f"malformed answer: {error.message}") from error
