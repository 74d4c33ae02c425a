"""What a server of completions is asked and what it answers, whichever API it speaks; its errors as ours."""

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
    """Where it is and how to speak to it."""

    api: Api
    url: str
    """Of TGI itself, or of an OpenAI-compatible API with its `/v1`."""
    model: str | None = None
    """The model's name there; an OpenAI-compatible server wants one."""
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    """Longest wait for the next piece of text."""
    max_retries: int = 0
    """How often OpenAI's client asks again before the first piece."""
    remedy: str = "check its address"
    """What an operator does about a server that refuses."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A text to be continued."""

    prompt: str
    sampling: SamplingParams
    """Its seed is not sent: see `seed`."""
    max_tokens: int
    seed: int | None = None
    """From 0 to 2**63 - 1, which both APIs take; None leaves it to the server."""
    stop_at: str | None = None
    """A hint: the caller does not read beyond this text."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the text that follows."""

    text: str
    end: SegmentEnd | None = None
    """With the last piece, why the server stopped. BOUNDARY: behind `stop_at`, which is part of the text."""


class CompletionClient(Protocol):
    """Speaks to one server."""

    async def served(self) -> list[str]:
        """The models the server says it serves. Raises: as `stream`."""
        ...

    def stream(self, completion: Completion) -> AsyncGenerator[Delta, None]:
        """Yield text as it is written. Closing the generator hangs up, by which the server stops writing.

        Raises: Unavailable, DeadlineExceeded, Overloaded, Mismatch when the server refuses.
        """
        ...

    async def aclose(self) -> None:
        """Close what connections there are."""
        ...


def connect(server: Server) -> CompletionClient:
    """A client of the server. Raises: Mismatch when the package for its API is not installed."""
    if server.api == "tgi":
        from semspec.remote.tgi import TgiClient  # each API's client is a large package of its own

        return TgiClient(server)
    try:
        from semspec.remote.openai import OpenAIClient
    except ModuleNotFoundError as error:
        raise Mismatch(f"the API openai wants the package {error.name!r}: pip install 'semspec[remote]'") from error
    return OpenAIClient(server)


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
"""By the first name among an exception's classes. Names, since the HTTP library beneath the clients changes with their
versions."""


@contextmanager
def translated(server: Server) -> Iterator[None]:
    """What goes wrong inside is raised as one of our errors, with the server's own words."""
    try:
        yield
    except SemspecError:
        raise
    except Exception as error:  # each client has a tree of its own
        kind = _kind(error)
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        remedy = "retry later" if kind is Overloaded else server.remedy
        raise kind(f"{server.url} does not write segments: {reason}; {remedy}") from error


async def paced(events: AsyncIterable[T], timeout_s: float) -> AsyncIterator[T]:
    """`events`, none of which may take longer: a server's signs of life keep a stalled stream from timing out.

    Raises: TimeoutError.
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
    names = {one.__name__ for one in type(error).__mro__}
    for name, kind in BY_NAME:
        if name in names:
            return kind
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return _of_status(int(status))
    return Unavailable if "APIError" in names else Mismatch  # an error told within a stream, or no such API at all


def _of_status(status: int) -> type[SemspecError]:
    if status in (408, 504):
        return DeadlineExceeded
    if status == 429:
        return Overloaded
    return Mismatch if status < 500 else Unavailable
