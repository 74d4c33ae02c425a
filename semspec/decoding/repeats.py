"""The guard against loops: which drafted segments repeat their answer, so that the target writes them instead.

A small model repeats paragraphs, one after another or several in turn. To every judge a paragraph looks likely that
stands in the context, so no rule about probabilities ends such a loop. The target may repeat itself all the same.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from semspec.types import Segment

MOST_OCCURRENCES = 2
"""No drafted segment is accepted whose text the answer has this many times."""
SHORT = 16
"""Letters and digits below which a text may stand twice: a heading, a rule, a bracket, "```", "Output:"."""

_NUMBERING = re.compile(r"(?:step\s*)?(?:\d+|[a-z])[.):]\s", re.IGNORECASE)
_DECORATION = re.compile(r"[*_#>`~]+")
_LOOSE = re.compile(r"[\W_]+")


def repeated_index(segment: Segment, kept: Sequence[Segment]) -> int | None:
    """Return the index of the first segment of the answer that `segment` repeats; None if it may be accepted.

    Texts are equal if they differ only in white space, letter case, Markdown emphasis, or in the number or bullet that
    they begin with. A long text is refused when it stands in the answer, a short one when it stands there twice: short
    ones recur in code, lists and tables.
    """
    text = _normalised(segment.text)
    indices = [index for index, other in enumerate(kept) if _normalised(other.text) == text]
    if not indices or (_is_short(text) and len(indices) < MOST_OCCURRENCES):
        return None
    return indices[0]


@lru_cache(maxsize=4096)
def _normalised(text: str) -> str:
    """Return `text` in the form in which segments are compared; a function of its words and their order alone."""
    words = " ".join(_DECORATION.sub("", text).split()).lstrip("-+•–— ")
    return _NUMBERING.sub("", words, count=1).casefold() if _NUMBERING.match(words) else words.casefold()


def _is_short(text: str) -> bool:
    return len(_LOOSE.sub("", text)) < SHORT
