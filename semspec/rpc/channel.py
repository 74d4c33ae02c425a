"""Client options, channel options, and the calls that gRPC retries."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from grpc import aio

from semspec.rpc.calls import decoding
from semspec.rpc.tls import Certificates, channel_credentials

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message that clients and services send and receive."""
_IDEMPOTENT_CALLS = {
    "semspec.v1.Draft": ("Info", "Encode", "Propose"),
    "semspec.v1.Target": ("Info", "Encode", "Tokenize", "Read", "Verify", "Ask"),
    "semspec.v1.Verifier": ("Info", "Judge"),
}
_RETRY_POLICY = {
    "maxAttempts": 3,
    "initialBackoff": "0.05s",
    "maxBackoff": "0.5s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options for calls to a service."""

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


DEFAULT_OPTIONS = ClientOptions()


def open_channel(address: str, options: ClientOptions) -> aio.Channel:
    """A channel to `address`. It connects at the first call. Its calls may return `Undecodable`: `decoded_response`."""
    if options.certificates is None:
        return cast(aio.Channel, _Decoding(aio.insecure_channel(address, _channel_options(options))))
    override = (("grpc.ssl_target_name_override", options.server_name),) if options.server_name else ()
    credentials = channel_credentials(options.certificates)
    channel = aio.secure_channel(address, credentials, (*_channel_options(options), *override))
    return cast(aio.Channel, _Decoding(channel))


class _Decoding:
    """A channel whose calls return `Undecodable` for an answer that is no message."""

    def __init__(self, channel: aio.Channel) -> None:
        self._channel: Any = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def unary_unary(self, *path: Any, response_deserializer: Any = None, **options: Any) -> Any:
        return self._channel.unary_unary(*path, response_deserializer=decoding(response_deserializer), **options)

    def unary_stream(self, *path: Any, response_deserializer: Any = None, **options: Any) -> Any:
        return self._channel.unary_stream(*path, response_deserializer=decoding(response_deserializer), **options)


def _channel_options(options: ClientOptions) -> Sequence[tuple[str, int | str]]:
    return (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.per_rpc_retry_buffer_size", MAX_MESSAGE_BYTES),  # a larger request would not be retried
        ("grpc.service_config", json.dumps(_service_config())),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),  # reconnects to a restarted service within seconds
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # no limit on pings during a long prefill
        ("grpc.enable_http_proxy", 0),  # services are in the same network
    )


def _service_config() -> dict[str, object]:
    names = [{"service": name, "method": call} for name, calls in _IDEMPOTENT_CALLS.items() for call in calls]
    return {"methodConfig": [{"name": names, "retryPolicy": _RETRY_POLICY}]}
