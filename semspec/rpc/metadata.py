"""The metadata keys that travel beside a call."""

from semspec.telemetry import request_id

AUTHORIZATION = "authorization"
"""Request: `Bearer <token>`."""
REQUEST_ID = "x-request-id"
"""Request: whose work this is, for the logs of both sides."""
PARAMETER = "semspec-parameter"
"""Trailer: the request field at fault, if one is."""

MAX_REQUEST_ID_LENGTH = 128


def request_id_metadata() -> tuple[tuple[str, str], ...]:
    """This task's request id, unless there is none or gRPC would refuse it."""
    identifier = request_id.get()[:MAX_REQUEST_ID_LENGTH]
    return ((REQUEST_ID, identifier),) if identifier and identifier.isascii() and identifier.isprintable() else ()
