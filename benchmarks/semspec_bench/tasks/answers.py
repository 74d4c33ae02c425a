"""Extracts the answer from a text."""

import re
from collections.abc import Iterator

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_AND = re.compile(r"[\s$\\()\[\]]*(?:,|and|or|,\s*and|,\s*or)[\s$\\()\[\]]*")
"""Text between two boxes that belong to one answer."""


def conclusion(text: str) -> str:
    """The text after the reasoning, if its end is marked; else all text."""
    return text.rpartition("</think>")[2]


def boxed_answers(text: str) -> list[str]:
    r"""The content of each closed, non-empty `\boxed{}`, in order; boxes joined by `and` make one answer."""
    answers: list[str] = []
    end = 0
    for start, stop, content in _boxes(text):
        if answers and _AND.fullmatch(text, end, start):
            answers[-1] += f", {content}"
        else:
            answers.append(content)
        end = stop
    return answers


def _boxes(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and content of each box."""
    for match in _BOX.finditer(text):
        stop = _closing_brace(text, match.end())
        content = text[match.end() : stop].strip() if stop is not None else ""
        if stop is not None and content:
            yield match.start(), stop + 1, content


def _closing_brace(text: str, start: int) -> int | None:
    r"""Position of the brace that closes the one before `start`; `\{` and `\}` are characters of the answer."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return None
