"""The interface to a completion server with any supported API, and the mapping of its errors to `SemspecError`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from semspec.errors import DeadlineExceeded, Mismatch, Overloaded, SemspecError, Unavailable
from semspec.types import SamplingParams, SegmentEnd

T = TypeVar("T")

Api = Literal["tgi", "openai"]


@dataclass(frozen=True, slots=True)
class Server:
    """Address, API and options of a completion server."""

    api: Api
    url: str
    """Base URL of TGI, or of an OpenAI-compatible API including `/v1`."""
    model: str | None = None
    """Name of the model on the server; required for the API openai."""
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    """Maximum wait for the next piece of text."""
    max_retries: int = 0
    """Maximum retries of OpenAI's client before the first piece of text."""
    remedy: str = "check its address"
    """Advice in errors when the server rejects a request."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion request."""

    prompt: str
    sampling: SamplingParams
    """Its seed is not sent; see `seed`."""
    max_tokens: int
    seed: int | None = None
    """Seed from 0 to 2**63 - 1, the range of both APIs; None: chosen by the server."""
    stop_at: str | None = None
    """Optional stop sequence: the caller ignores text after it."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of generated text."""

    text: str
    end: SegmentEnd | None = None
    """Why the server stopped, in the last piece. BOUNDARY: after `stop_at`, which is part of the text."""


class CompletionClient(Protocol):
    """Client of one completion server."""

    async def served(self) -> list[str]:
        """Names of the models on the server. Raises: as `stream`."""

    def stream(self, completion: Completion) -> AsyncGenerator[Delta, None]:
        """Yield text as it is generated. Closing the generator disconnects, which stops the server. Raises:
        Unavailable, DeadlineExceeded, Overloaded; Mismatch when the server rejects the request."""

    async def aclose(self) -> None:
        """Close all connections."""


BY_NAME: tuple[tuple[str, type[SemspecError]], ...] = (
    ("TimeoutError", DeadlineExceeded),  # also huggingface_hub's InferenceTimeoutError
    ("TimeoutException", DeadlineExceeded),
    ("APITimeoutError", DeadlineExceeded),
    ("OfflineModeIsEnabled", Mismatch),
    ("OverloadedError", Overloaded),
    ("ValidationError", Mismatch),
    ("TextGenerationError", Unavailable),
    ("TransportError", Unavailable),
    ("APIConnectionError", Unavailable),
)
"""Class name -> error; the first entry that names a class of the exception applies. Names instead of classes, because
the clients' HTTP library depends on their version."""


@contextmanager
def translate_errors(server: Server) -> Iterator[None]:
    """Translate errors of the client libraries to `SemspecError`. Only `operator_hint` has the server's address."""
    try:
        yield
    except SemspecError:
        raise
    except Exception as error:  # each client library has its own error classes
        kind = _kind(error)
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        message, hint = "the server behind this model does not write segments", server.url
        if issubclass(kind, Unavailable | DeadlineExceeded):  # the reason may name the address
            hint = f"{hint}: {reason}"
        else:
            message = f"{message}: {reason}"
        raise kind(
            message, remedy="retry later", operator_hint=f"{hint}; {server.remedy}"
        ) from error


async def with_timeouts(events: AsyncIterable[T], timeout_s: float) -> AsyncIterator[T]:
    """Yield `events` with a timeout for each, because keep-alive messages would prevent the HTTP client's timeout.

    Raises: TimeoutError when an event takes longer than `timeout_s`.
    """
    iterator = aiter(events)
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                event = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise TimeoutError(f"nothing came for {timeout_s:g} s") from None
        yield event


def _kind(error: Exception) -> type[SemspecError]:
    names = {error_class.__name__ for error_class in type(error).__mro__}
    for name, kind in BY_NAME:
        if name in names:
            return kind
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        default = Mismatch if status < 500 else Unavailable
        return {408: DeadlineExceeded, 429: Overloaded, 504: DeadlineExceeded}.get(status, default)
    # An error within a stream, or an answer of another API.
    return Unavailable if "APIError" in names else Mismatch
