"""Where segments end."""

import pytest

from semspec.engine.segmentation import RULES
from semspec.types import Segmentation

PARAGRAPH, SENTENCE = RULES[Segmentation.PARAGRAPH], RULES[Segmentation.SENTENCE]


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


@pytest.mark.parametrize("size", [1, 2])
def test_paragraphs_end_at_the_first_blank_line(size: int) -> None:
    assert cut("ab.\n\ncdef\n\nghij", Segmentation.PARAGRAPH, size)[0].rstrip("c") == "ab.\n\n"
    assert "".join(cut("ab.\n\ncdef\n\nghij", Segmentation.PARAGRAPH, size)) == "ab.\n\ncdef\n\nghij"


def test_delimiter_cut_by_tokens_is_found() -> None:
    assert not PARAGRAPH.ends_inside("step\n")
    assert PARAGRAPH.ends_inside("step\n\n")
    assert PARAGRAPH.ends_inside("step\n\nNext")


def test_surplus_newlines_belong_to_the_next_segment_and_do_not_end_it() -> None:
    assert not PARAGRAPH.ends_inside("\n\n")
    assert not PARAGRAPH.ends_inside("\n\n\nstep")
    assert PARAGRAPH.ends_inside("\n\n\nstep\n\n")


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


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_tokens_of_any_size_lose_nothing(size: int) -> None:
    text = "First, x = 2.5. Is it? Yes!\n\nSo e.g. \\boxed{2.5}. Done."
    for segmentation in Segmentation:
        assert "".join(cut(text, segmentation, size)) == text
