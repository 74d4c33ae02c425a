"""The three roles the decoding loop plays with: in-process engines, gRPC clients and fakes alike."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from semspec.core import (
    Context,
    Judgement,
    Message,
    ModelInfo,
    Piece,
    Reading,
    Segment,
    States,
    VerifierInfo,
    WriteOrder,
    Written,
)


class Drafter(Protocol):
    """Writes segments, cheaply."""

    async def info(self) -> ModelInfo:
        """What is served, for the handshake. Raises: Unavailable."""
        ...

    def write(self, context: Context, order: WriteOrder) -> AsyncGenerator[Written, None]:
        """Yield segments as they are finished. Closing the generator stops the model between two tokens.

        Raises: ContextTooLong, Unavailable, DeadlineExceeded, Overloaded.
        """
        ...


class Target(Drafter, Protocol):
    """Writes segments, and reads others' in one parallel forward."""

    async def encode(self, prompt: str | Sequence[Message]) -> Piece:
        """Tokenize a text as it is, or render a conversation with the chat template first.

        Raises: InvalidRequest when the prompt holds nothing; ContextTooLong when it leaves no room to write.
        """
        ...

    async def read(self, context: Context, segments: Sequence[Segment], session: str = "") -> list[Reading]:
        """What the target feels at each of `segments`, which follow `context` and one another.

        Raises: ContextTooLong, Unavailable, DeadlineExceeded, Overloaded.
        """
        ...


class Verifier(Protocol):
    """Turns both models' states into semantic probabilities: a pure function."""

    async def info(self) -> VerifierInfo:
        """Which states the probes were trained on, for the handshake. Raises: Unavailable."""
        ...

    async def judge(self, draft_states: Sequence[States], readings: Sequence[Reading]) -> list[Judgement]:
        """One judgement per segment.

        Raises: Mismatch when the states are not of the models the probes were trained on; Unavailable.
        """
        ...
