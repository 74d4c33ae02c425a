"""Text on its way: pieces with their token ids, segments, contexts."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Writer(StrEnum):
    """Who wrote a piece of a context."""

    USER = "user"
    DRAFT = "draft"
    TARGET = "target"


class Segmentation(StrEnum):
    """Where a segment ends."""

    PARAGRAPH = "paragraph"
    """After `\\n\\n`."""
    SENTENCE = "sentence"
    """After sentence-ending `.`, `?` or `!`."""


class SegmentEnd(StrEnum):
    """Why a segment ended."""

    BOUNDARY = "boundary"
    EOS = "eos"
    LENGTH = "length"


class FinishReason(StrEnum):
    """Why a generation ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text with its writer's token ids. A reader with the same tokenizer takes the ids, any other the text."""

    text: str
    token_ids: tuple[int, ...]
    tokenizer: str
    """Fingerprint of the tokenizer the ids belong to."""


@dataclass(frozen=True, slots=True)
class Segment(Piece):
    """A piece a model wrote: reasoning up to a boundary, end-of-sequence, or a budget."""

    writer: Writer
    end: SegmentEnd


@dataclass(frozen=True, slots=True)
class Context:
    """Everything before the next segment: the rendered prompt, then the segments kept so far."""

    pieces: tuple[Piece, ...]

    def extended(self, *segments: Segment) -> "Context":
        return Context(self.pieces + segments)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text, and where in it."""

    id: int
    text: str
    start: int
    """Of its first character, counted in characters."""
    stop: int
    """Behind its last one."""
