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
MOST_ROUNDS, LEAST_LOOP = 3, 64
"""A segment repeats itself if it ends with this many rounds of a loop, which have at least this many characters and
are at least half of the segment."""

_NUMBERING = re.compile(r"(?:step\s*)?(?:\d+|[a-z])[.):]\s", re.IGNORECASE)
_LINE_NUMBERING = re.compile(rf"^\s*{_NUMBERING.pattern}", re.IGNORECASE | re.MULTILINE)
_DECORATION = re.compile(r"[*_#>`~]+")
_LOOSE = re.compile(r"[\W_]+")


def repeated_index(segment: Segment, kept: Sequence[Segment]) -> int | None:
    """Return the index of the first segment of the answer that `segment` repeats, its own index if it repeats itself;
    None if it may be accepted.

    Texts are equal if they differ only in white space, letter case, Markdown emphasis, or in the number or bullet that
    they begin with. A long text is refused when it stands in the answer, a short one when it stands there twice: short
    ones recur in code, lists and tables.
    """
    text = normalised(segment.text)
    indices = [index for index, earlier in enumerate(kept) if normalised(earlier.text) == text]
    if len(indices) >= (MOST_OCCURRENCES if _is_short(text) else 1):
        return indices[0]
    return len(kept) if _ends_in_loop(segment.text) else None


@lru_cache(maxsize=4096)
def normalised(text: str) -> str:
    """Return `text` in the form in which segments are compared, whatever its white space is."""
    words = " ".join(_DECORATION.sub("", text).split()).lstrip("-+• ")
    return (_NUMBERING.sub("", words, count=1) if _NUMBERING.match(words) else words).casefold()


def _is_short(text: str) -> bool:
    return len(_LOOSE.sub("", text)) < SHORT


def _ends_in_loop(text: str) -> bool:
    """Return whether `text` ends with rounds of a loop, such as equal lines, by the prefix function of its reverse."""
    backwards = " ".join(_LINE_NUMBERING.sub("", text).split())[::-1]
    borders = [0] * len(backwards)
    for index in range(1, len(backwards)):
        border = borders[index - 1]
        while border and backwards[index] != backwards[border]:
            border = borders[border - 1]
        border += backwards[index] == backwards[border]
        borders[index], size = border, index + 1
        is_long = size >= LEAST_LOOP and 2 * size >= len(backwards)
        if is_long and size >= MOST_ROUNDS * (size - border):
            return True
    return False
