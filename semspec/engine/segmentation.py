"""Where a segment ends, decided on text while it grows token by token."""

import re
from collections.abc import Iterator
from typing import Protocol

from semspec.types import Segmentation

ABBREVIATIONS = frozenset(
    (
        "e.g. i.e. etc. cf. vs. al. approx. resp. ca. dr. mr. mrs. ms. prof. st. "
        "fig. figs. eq. eqs. no. nos. sec. ch. vol."
    ).split()
)
"""Words that end in a full stop without ending a sentence, lower case."""

_SENTENCE_END = re.compile(r"[.?!][\"')\]*]*$")
_SENTENCE_END_INSIDE = re.compile(r"[.?!][\"')\]*]*(?=\s)")
# Searched for in what a model was asked to write: each can begin in few places, so that no text takes long.
_LIST_MARKER = re.compile(r"(?:^|\n)[^\S\n]*(?:\d+|[A-Za-z])\.$")
_LAST_WORD = re.compile(r"(?<!\S)\S+$")


class Rule(Protocol):
    """Decides, for a segment's text so far, whether it is complete."""

    marks: frozenset[str]
    """Characters one of which a token must hold (or follow) for the segment to end there: a cheap first test."""

    def ends_inside(self, text: str) -> bool:
        """Whether `text` holds a boundary; it then ends with the token that completed it."""
        ...

    def ends_before(self, text: str, following: str) -> bool:
        """Whether `text` is complete given the text of the token that would follow; that token is not part of it."""
        ...


class Paragraphs:
    """Boundary: the first `\\n\\n` after something that is not white space."""

    marks = frozenset("\n")

    def ends_inside(self, text: str) -> bool:
        return "\n\n" in text.lstrip()

    def ends_before(self, text: str, following: str) -> bool:
        return False


class Sentences:
    """Boundary: `.`, `?` or `!`, closing quotes and brackets included, with white space behind.

    Not after an abbreviation, an initial or a list marker, not inside a number or `\\boxed{}`.
    """

    marks = frozenset(".?!")

    def ends_inside(self, text: str) -> bool:
        return any(self._is_complete(text[: match.end()]) for match in _SENTENCE_END_INSIDE.finditer(text))

    def ends_before(self, text: str, following: str) -> bool:
        return following[:1].isspace() and self._is_complete(text)

    @staticmethod
    def _is_complete(text: str) -> bool:
        if not _SENTENCE_END.search(text) or _LIST_MARKER.search(text):
            return False
        word = _LAST_WORD.search(text)
        stripped = word[0].lstrip("(\"'[").lower() if word else ""
        is_initial = len(stripped) == 2 and stripped[0].isalpha() and stripped[1] == "."
        return stripped not in ABBREVIATIONS and not is_initial and not _is_in_boxed(text)


def _is_in_boxed(text: str) -> bool:
    start = text.rfind("\\boxed{")
    if start < 0:
        return False
    inside = text[start + len("\\boxed") :]
    return inside.count("{") > inside.count("}")


RULES: dict[Segmentation, Rule] = {Segmentation.PARAGRAPH: Paragraphs(), Segmentation.SENTENCE: Sentences()}


def cut(text: str, segmentation: Segmentation) -> Iterator[str]:
    """`text` in segments, as a writer of it would have ended them; together they are the text."""
    rule, start = RULES[segmentation], 0
    for space in re.finditer(r"\s+", text):
        if rule.ends_before(text[start : space.start()], space[0]):
            end = space.start()
        elif rule.ends_inside(text[start : space.end()]):
            end = space.end()
        else:
            continue
        yield text[start:end]
        start = end
    if text[start:]:
        yield text[start:]
