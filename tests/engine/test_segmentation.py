"""Where segments end."""

import pytest

from semspec.engine.segmentation import RULES
from semspec.types import Segmentation


def cut(text: str, rule_name: Segmentation, size: int) -> list[str]:
    """Segments of `text` if a model wrote it in tokens of `size` characters."""
    rule = RULES[rule_name]
    tokens = [text[i : i + size] for i in range(0, len(text), size)]
    segments, current = [], ""
    for index, token in enumerate(tokens):
        current += token
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if rule.ends_inside(current) or (following and rule.ends_before(current, following)):
            segments.append(current)
            current = ""
    return [*segments, current] if current else segments


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("ab.\n\ncdef\n\nghij", 1, ["ab.\n\n", "cdef\n\n", "ghij"]),
        ("ab.\n\ncdef\n\nghij", 2, ["ab.\n\nc", "def\n\ng", "hij"]),  # with the token that completes the delimiter
        ("step\n", 1, ["step\n"]),
        ("\n\n", 1, ["\n\n"]),
        ("a\n\n\n\n\nstep\n\n", 1, ["a\n\n", "\n\n\nstep\n\n"]),  # surplus newlines belong to the next one
    ],
)
def test_paragraphs(text: str, size: int, expected: list[str]) -> None:
    assert cut(text, Segmentation.PARAGRAPH, size) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is 3.5 now. Then go.", ["It is 3.5 now.", " Then go."]),
        ("Really? Yes! Fine.", ["Really?", " Yes!", " Fine."]),
        ("Use e.g. this, i.e. that. Done.", ["Use e.g. this, i.e. that.", " Done."]),
        ("Dr. Smith met J. Doe. They left.", ["Dr. Smith met J. Doe.", " They left."]),
        ("So \\boxed{1. or 2.} holds. End.", ["So \\boxed{1. or 2.} holds.", " End."]),
        ("Steps:\n1. Add. 2 more.", ["Steps:\n1. Add.", " 2 more."]),
        ('He said "stop." Then left.', ['He said "stop."', " Then left."]),
        ("Version 1.2.3 works. OK", ["Version 1.2.3 works.", " OK"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert cut(text, Segmentation.SENTENCE, 1) == expected
