"""One table from what the clients of TGI and OpenAI raise to our errors, and the time limit both are held to."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from semspec.errors import DeadlineExceeded, Mismatch, Overloaded, SemspecError, Unavailable
from semspec.remote.protocol import Server

T = TypeVar("T")

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
