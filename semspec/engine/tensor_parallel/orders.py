"""What rank 0 tells the others, and all it tells them: lists of 64-bit integers, each after its length."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO, TypeAlias


class _Kind(IntEnum):
    FORWARD = 0
    COPY = 1
    FORGET = 2


@dataclass(frozen=True, slots=True)
class Forward:
    """Feed `tokens` after the first `start` ones of a sequence; what it had behind them is forgotten."""

    sequence: int
    start: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `num_tokens` tokens of a sequence are those of `twin` too."""

    sequence: int
    twin: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Forget:
    """A sequence is over."""

    sequence: int


Order: TypeAlias = Forward | Copy | Forget


def encoded(params: Order) -> bytes:
    """An order as it travels."""
    match params:
        case Forward(sequence, start, tokens):
            words = [_Kind.FORWARD, sequence, start, *tokens]
        case Copy(sequence, twin, num_tokens):
            words = [_Kind.COPY, sequence, twin, num_tokens]
        case Forget(sequence):
            words = [_Kind.FORGET, sequence]
    return array("q", [len(words), *words]).tobytes()


def orders_from(stream: BinaryIO) -> Iterator[Order]:
    """Orders as they come, to the end of the stream."""
    while length := _words(stream, 1):
        yield _decoded(_words(stream, length[0]))


def _words(stream: BinaryIO, count: int) -> Sequence[int]:
    data = stream.read(8 * count)
    return array("q", data if len(data) == 8 * count else b"")


def _decoded(words: Sequence[int]) -> Order:
    match words:
        case [_Kind.FORWARD, sequence, start, *tokens]:
            return Forward(sequence, start, tokens)
        case [_Kind.COPY, sequence, twin, num_tokens]:
            return Copy(sequence, twin, num_tokens)
        case [_Kind.FORGET, sequence]:
            return Forget(sequence)
    raise EOFError("an order broke off")
