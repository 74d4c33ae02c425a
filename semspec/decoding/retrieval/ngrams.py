"""Exact n-gram matches of a context's last tokens: in the context itself, and in the tokens of a datastore.

Tokens are held as a string with one character a token, since Python compares and searches strings fast.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TokenArray = NDArray[np.uint32]

DOCUMENT_END = 0x10FFFF
"""Follows each document of a datastore. A token id is smaller: it is the largest character."""
LONGEST_MATCH = 16
"""Length of an n-gram in tokens above which longer matches are not told apart."""
MAX_MATCHES = 32
"""Matches whose continuations are compared."""


@dataclass(frozen=True, slots=True)
class Match:
    """Places where the last tokens of a context occur."""

    length: int
    """Length of the n-gram in tokens; 0: it occurs nowhere."""
    continuations: tuple[str, ...]
    """Text that follows at each place, nearest first; may be empty strings."""


NO_MATCH = Match(0, ())


def as_text(token_ids: Sequence[int] | TokenArray) -> str:
    """One character a token. Raises: UnicodeDecodeError for an id above `DOCUMENT_END`."""
    return np.asarray(token_ids, "<u4").tobytes().decode("utf-32-le", "surrogatepass")


def earlier_match(context: str, num_tokens: int) -> Match:
    """The longest n-gram that ends `context` and occurs in it before, with up to `num_tokens` following tokens.

    Takes time in proportion to the context; keeps nothing.
    """
    limit = min(LONGEST_MATCH, len(context) - 1)

    def occurs(length: int) -> bool:
        return context.rfind(context[len(context) - length :], 0, len(context) - 1) >= 0

    # n-grams occur the less often the longer they are
    length = bisect_left(range(1, limit + 1), True, key=lambda length: not occurs(length))
    if length == 0:
        return NO_MATCH
    ngram, end = context[len(context) - length :], len(context) - 1
    found: list[str] = []
    while len(found) < MAX_MATCHES and (start := context.rfind(ngram, 0, end)) >= 0:
        found.append(context[start + length : start + length + num_tokens])
        end = start + length - 1
    return Match(length, tuple(found))


class StaticTokens:
    """The tokens of a datastore, with the order of all places by what precedes them."""

    def __init__(self, tokens: TokenArray, order: TokenArray) -> None:
        """`order`: what `sorted_places` returns for `tokens`."""
        self._text = as_text(tokens)
        self._reversed = self._text[::-1]
        self._places = order.data

    @property
    def documents(self) -> list[list[int]]:
        """The tokens of each document."""
        return [list(map(ord, document)) for document in self._text.split(chr(DOCUMENT_END))[:-1]]

    def match(self, context: str, num_tokens: int) -> Match:
        """The longest n-gram that ends `context` and occurs here, with up to `num_tokens` following tokens."""
        ending = context[-LONGEST_MATCH:][::-1]
        index = bisect_left(self._places, ending, key=self._before(LONGEST_MATCH))
        neighbours = self._places[max(0, index - 1) : index + 1]
        length = max(
            (_num_common(ending, self._before(LONGEST_MATCH)(place)) for place in neighbours),
            default=0,
        )
        if length == 0:
            return NO_MATCH
        ngram, before = ending[:length], self._before(length)
        first = bisect_left(self._places, ngram, hi=index, key=before)
        last = bisect_right(self._places, ngram, lo=index, key=before)
        step = -(-(last - first) // MAX_MATCHES)
        return Match(
            length,
            tuple(self.following(place, num_tokens) for place in self._places[first:last:step]),
        )

    def following(self, place: int, num_tokens: int) -> str:
        """Return up to `num_tokens` tokens from `place` on, within its document."""
        return self._text[place : place + num_tokens].partition(chr(DOCUMENT_END))[0]

    def _before(self, length: int) -> Callable[[int], str]:
        """Return a function from a place to the up to `length` tokens before it, the last one first."""
        text, size = self._reversed, len(self._reversed)
        return lambda place: text[size - place : size - place + length]


def _num_common(one: str, other: str) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def sorted_places(tokens: TokenArray) -> TokenArray:
    """The places 1 to `len(tokens)` in the order of the up to `LONGEST_MATCH` tokens before each, the last one first.

    By prefix doubling: log2(LONGEST_MATCH) sorts.
    """
    ranks = tokens[::-1].astype(np.int64)
    length = 1
    while length < LONGEST_MATCH:
        later = np.zeros_like(ranks)
        later[: max(0, len(ranks) - length)] = ranks[length:] + 1
        pairs = ranks * (later.max(initial=0) + 1) + later
        ranks = np.unique(pairs, return_inverse=True)[1]
        length *= 2
    return (len(tokens) - np.argsort(ranks, kind="stable")).astype(np.uint32)


def agreed(continuations: Sequence[str], num_tokens: int, least_share: float) -> list[int]:
    """Return, token by token, the most frequent one among the continuations that agree so far, until the share of those
    that agree falls below `least_share`. Of equally frequent tokens the first is taken."""
    alive, chosen = list(continuations), list[int]()
    total = len(alive)
    for index in range(num_tokens):
        counts = Counter(text[index] for text in alive if len(text) > index)
        if not counts:
            break
        token, count = counts.most_common(1)[0]
        if count < least_share * total:
            break
        chosen.append(ord(token))
        alive = [text for text in alive if text[index : index + 1] == token]
    return chosen
