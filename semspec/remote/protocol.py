"""What a server of completions is asked and what it answers, whichever API it speaks."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from semspec.types import SamplingParams, SegmentEnd

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
