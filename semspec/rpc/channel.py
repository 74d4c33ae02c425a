"""How a client reaches a service: its options, its channel, and which calls gRPC retries."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpc import aio

from semspec.rpc.tls import Certificates, channel_credentials

_IDEMPOTENT_CALLS = {
    "semspec.v1.Draft": ("Info", "Propose"),
    "semspec.v1.Target": ("Info", "Encode", "Tokenize", "Read", "Propose", "Verify", "Ask"),
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
    """How to call a service."""

    token: str | None = field(default=None, repr=False)
    """Bearer token, if the service wants one."""
    call_timeout_s: float = 60.0
    """Deadline of a unary call, its retries included."""
    idle_timeout_s: float = 60.0
    """Longest wait for the next segment of a `write`, which as a whole may take any time."""
    max_message_bytes: int = 64 << 20
    certificates: Certificates | None = None
    """For a service that speaks TLS; None: it does not."""
    server_name: str = ""
    """Name that the service's certificate must hold; empty: the host of its address."""


DEFAULT_OPTIONS = ClientOptions()


def open_channel(address: str, options: ClientOptions) -> aio.Channel:
    """A channel to `address`; it connects with the first call."""
    if options.certificates is None:
        return aio.insecure_channel(address, _channel_options(options))
    named = (("grpc.ssl_target_name_override", options.server_name),) if options.server_name else ()
    credentials = channel_credentials(options.certificates)
    return aio.secure_channel(address, credentials, (*_channel_options(options), *named))


def _channel_options(options: ClientOptions) -> Sequence[tuple[str, int | str]]:
    return (
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.per_rpc_retry_buffer_size", options.max_message_bytes),  # a request beyond it would not be retried
        ("grpc.service_config", json.dumps(_service_config())),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),  # a restarted service is found again within seconds
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # however long a prefill lasts
        ("grpc.enable_http_proxy", 0),  # services are neighbours
    )


def _service_config() -> dict[str, object]:
    names = [{"service": name, "method": call} for name, calls in _IDEMPOTENT_CALLS.items() for call in calls]
    return {"methodConfig": [{"name": names, "retryPolicy": _RETRY_POLICY}]}
