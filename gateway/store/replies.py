"""Replies of Redis: bytes as text, what cannot be read, and what Redis refuses, each named with its remedy."""

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, ResponseError

from semspec.errors import Unavailable

_log = logging.getLogger(__name__)


@contextmanager
def reading(subject: str) -> Iterator[None]:
    """Raises: Unavailable instead of the errors of decoding what Redis holds of `subject`, in the body."""
    try:
        yield
    except (ValueError, LookupError, TypeError, StopIteration) as error:
        _log.error("what Redis holds of %s cannot be read: %s", subject, str(error).partition("\n")[0])
        message = f"what Redis holds of {subject} cannot be read: another program or version wrote it; delete it"
        raise Unavailable(message) from error


def decoded(reply: Any) -> Any:
    """The reply with its bytes, also those of keys, as text."""
    match reply:
        case bytes():
            return reply.decode()
        case list() | tuple():
            return list(map(decoded, reply))
        case dict():
            return {decoded(key): decoded(value) for key, value in reply.items()}
        case _:
            return reply


def failure(error: Exception, subject: str) -> str:
    """What is wrong with Redis, in one line with the remedy."""
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        return f"Redis refuses this gateway: {error}; fix its user and password (SEMSPEC_GATEWAY_REDIS_URL)"
    if isinstance(error, ResponseError) and "WRONGTYPE" in str(error):
        return f"a key of {subject} in Redis has a wrong type: another program wrote it; delete it"
    if isinstance(error, ResponseError):
        return f"Redis refuses a call for {subject}: {error}"
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return "no TLS connection to Redis; fix its certificate, or its ssl_ca_certs (SEMSPEC_GATEWAY_REDIS_URL)"
    return "the store of traces and sessions (Redis) does not answer; try again later"
