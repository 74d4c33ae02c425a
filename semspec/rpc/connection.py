"""A connection to a replica: a channel, and the metadata, deadlines, errors and contexts of its calls."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from grpc_health.v1 import health_pb2

from semspec.errors import DeadlineExceeded, InternalError, InvalidRequest, SemspecError
from semspec.rpc.calls import (
    AUTHORIZATION,
    MAX_MESSAGE_BYTES,
    call_metadata,
    client_span,
    decoding,
    encode,
    path_of,
    received,
    rpc_errors,
)
from semspec.rpc.contexts import TAIL, LastContexts, put_context
from semspec.rpc.tls import Certificates, channel_credentials
from semspec.types import Context

T = TypeVar("T")

DEADLINE_MARGIN_S = 5.0
"""Time after the wait for a response until the deadline of a unary call."""
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options for calls to a service and for its replicas."""

    token: str | None = field(default=None, repr=False)
    """Bearer token, if the service requires one."""
    timeout_s: float = 300.0
    """Maximum wait for a response; of a call that generates segments, for each of them: 512 tokens on a busy CPU."""
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
    """Return a channel to `address`. It connects at the first call."""
    if options.certificates is None:
        return aio.insecure_channel(address, _channel_options())
    override = (
        (("grpc.ssl_target_name_override", options.server_name),) if options.server_name else ()
    )
    credentials = channel_credentials(options.certificates)
    return aio.secure_channel(address, credentials, (*_channel_options(), *override))


def _channel_options() -> Sequence[tuple[str, int | str]]:
    return (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),  # a restarted service is back within seconds
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # no limit on pings during a long prefill
        ("grpc.enable_http_proxy", 0),  # services are in the same network
    )


class _Method:
    """A method of a service at the other end of a channel."""

    def __init__(self, channel: aio.Channel, method: MethodDescriptor) -> None:
        self.path = path_of(method)
        self.is_stream = method.server_streaming
        make: Any = channel.unary_stream if self.is_stream else channel.unary_unary
        self.open = make(
            self.path, encode, decoding(GetMessageClass(method.output_type).FromString)
        )
        """Begins a call; its responses are for `received`."""


class Connection:
    """The calls to one replica, each by the name of its method.

    Calls about a context carry the pieces that the service does not remember. Responses are parsed here, so that a
    malformed one is an error of the call.
    """

    def __init__(self, address: str, options: ClientOptions, service: ServiceDescriptor) -> None:
        self._options = options
        self._authorization = ((AUTHORIZATION, f"Bearer {options.token}"),) if options.token else ()
        self._channel = open_channel(address, options)
        self._methods = {
            method.name: _Method(self._channel, method)
            for method in (*service.methods, *_HEALTH.methods)
        }
        self._contexts = LastContexts()

    async def aclose(self) -> None:
        """Cancel running calls and disconnect. Later calls raise Unavailable."""
        await self._channel.close()

    async def is_serving(self, service: str) -> bool:
        """Return what a health check says of `service`, without a deadline."""
        with rpc_errors():
            response = await self._methods["Check"].open(
                health_pb2.HealthCheckRequest(service=service)
            )
        with _checked_response():
            return bool(received(response).status == health_pb2.HealthCheckResponse.SERVING)

    async def call(
        self, name: str, request: Any, read: Callable[[Any], T], context: Context | None = None
    ) -> T:
        """Make a call and return its response as parsed by `read`. `context`: see `stream`."""
        [response] = [item async for item in self.stream(name, request, read, context)]
        return response

    async def stream(
        self, name: str, request: Any, read: Callable[[Any], T], context: Context | None = None
    ) -> AsyncGenerator[T, None]:
        """Make a call and yield its responses as parsed by `read`.

        `context` is sent without the pieces that the service remembers, or whole if the service asks for it. Raises:
        DeadlineExceeded after `timeout_s` without a response.
        """
        for may_need_whole in self._put(context, request):
            is_first = True
            try:
                async with aclosing(self._responses(self._methods[name], request)) as responses:
                    async for response in responses:
                        if is_first and context is not None:
                            self._contexts.note(request.session, context)
                        is_first = False
                        with _checked_response():
                            item = read(response)
                        yield item
                return
            except SemspecError as error:
                if not (may_need_whole and is_first and _needs_whole_context(error)):
                    raise

    def _put(self, context: Context | None, request: Any) -> Iterator[bool]:
        """Fill in the part of the context that the service does not remember, then, if that is not all, the whole."""
        before = b""
        if context is not None:
            rest, before = self._contexts.rest(request.session, context)
            put_context(request, rest, before)
        yield bool(before)
        if context is not None:
            put_context(request, context)
            yield False

    async def _responses(self, method: _Method, request: Any) -> AsyncGenerator[Any, None]:
        with client_span(method.path, request) as opened:
            metadata = (*self._authorization, *call_metadata(opened).items())
            # A service whose caller is lost ends a unary call by itself; here the wait below ends it first.
            timeout_s = None if method.is_stream else self._options.timeout_s + DEADLINE_MARGIN_S
            with rpc_errors():
                call = method.open(request, timeout=timeout_s, metadata=metadata)
            try:
                if not method.is_stream:
                    yield await self._waited(call)
                    return
                while (response := await self._waited(call.read())) is not aio.EOF:
                    yield response
            finally:
                call.cancel()

    async def _waited(self, response: Awaitable[Any]) -> Any:
        timeout_s = self._options.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                with rpc_errors():
                    message = await response
        except TimeoutError:
            raise DeadlineExceeded(f"no response within {timeout_s:g} s") from None
        with _checked_response():
            return received(message)


def _needs_whole_context(error: SemspecError) -> bool:
    """Return whether the service does not remember the beginning of a context."""
    return isinstance(error, InternalError) and error.parameter == TAIL


@contextmanager
def _checked_response() -> Iterator[None]:
    """Raise InternalError for a malformed response: it is the service's defect, not the caller's."""
    try:
        yield
    except InvalidRequest as error:
        raise InternalError(f"malformed answer: {error.text}") from error
