"""Where segments end."""

import pytest

from semspec.engine.segmentation import RULES, TokenSegmenter
from semspec.engine.tokenization import ModelTokenizer
from semspec.remote.segmenter import TextSegmenter
from semspec.types import (
    GenerationParams,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    Writer,
)
from tests.helpers.trained_tokenizers import FORMS, model_tokenizer

PROMPT = "So the ball:"
CHARACTERS = ("a🦊🦊🦊🦊b", "我们中文中文", "é👩‍👩‍👧‍👦é", "So. 🦊 We.\n\n中 is 🦊.\n\nend")
"""Characters of two to four bytes, and one that people see as one and that has seven code points."""
NATURAL = "1. Tom sells 6.\n\n   - a nested one\n\n\n```python\nx = 1\n```\n\nWhy?!"


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
        (
            "ab.\n\ncdef\n\nghij",
            2,
            ["ab.\n\nc", "def\n\ng", "hij"],
        ),  # with the token that completes the delimiter
        ("step\n", 1, ["step\n"]),
        ("\n\n", 1, ["\n\n"]),
        (
            "a\n\n\n\n\nstep\n\n",
            1,
            ["a\n\n", "\n\n\nstep\n\n"],
        ),  # surplus newlines belong to the next one
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


@pytest.fixture(params=FORMS)
def tokenizer(request: pytest.FixtureRequest) -> ModelTokenizer:
    return model_tokenizer(FORMS[request.param]())


def written(tokenizer: ModelTokenizer, text: str, **limits: object) -> list[Segment]:
    """Return the segments of a model that writes `text` after the prompt."""
    segmenter = TokenSegmenter(tokenizer, Writer.TARGET, params(**limits), tokenizer.ids_of(PROMPT))
    for token in ids_after_prompt(tokenizer, text):
        segmenter.take(token)
    return segmenter.segments


def params(**limits: object) -> GenerationParams:
    return GenerationParams(SamplingParams(), **({"max_segments": 0, "max_tokens": 999} | limits))  # type: ignore[arg-type]


def ids_after_prompt(tokenizer: ModelTokenizer, text: str) -> list[int]:
    return tokenizer.ids_of(PROMPT + text)[len(tokenizer.ids_of(PROMPT)) :]


@pytest.mark.parametrize("segmentation", Segmentation)
@pytest.mark.parametrize("text", [*CHARACTERS, NATURAL])
def test_character_ends(tokenizer: ModelTokenizer, text: str, segmentation: Segmentation) -> None:
    ids = (*ids_after_prompt(tokenizer, text), *tokenizer.eos_ids)
    for limit in range(1, len(ids)):
        limits = {"max_segment_tokens": limit, "segmentation": segmentation}
        segmenter = TokenSegmenter(
            tokenizer, Writer.TARGET, params(**limits), tokenizer.ids_of(PROMPT)
        )
        assert all(segmenter.take(token) for token in ids)
        segments = segmenter.segments
        assert "".join(segment.text for segment in segments) == text
        assert tuple(token for segment in segments for token in segment.token_ids) == ids
        assert all(len(segment.token_ids) <= limit + 3 for segment in segments)
        foreign = [tokenizer.ids_of(segment.text) for segment in segments]
        assert "\ufffd" not in "".join(map(tokenizer.raw.decode, foreign))


@pytest.mark.parametrize("text", CHARACTERS)
def test_text_ends_before_character_beyond_budget(tokenizer: ModelTokenizer, text: str) -> None:
    """Its tokens count as written, and the client's continuation follows the text."""
    for budget in range(1, len(ids_after_prompt(tokenizer, text))):
        segments = written(tokenizer, text, max_tokens=budget)
        assert text.startswith("".join(segment.text for segment in segments))
        assert sum(len(segment.token_ids) for segment in segments) == budget
        assert segments[-1].end is not SegmentEnd.EOS


def test_character_goes_on_after_a_budget(tokenizer: ModelTokenizer) -> None:
    """A look-ahead may end inside a character. The same model goes on, and its next segment has the character."""
    ids, start = ids_after_prompt(tokenizer, "中🦊é"), tokenizer.ids_of(PROMPT)
    for budget in range(1, len(ids)):
        texts = [
            tokenizer.text_of(start, ids[:budget]),
            tokenizer.text_of([*start, *ids[:budget]], ids[budget:]),
        ]
        assert "".join(texts) == "中🦊é"


def test_bytes_that_never_make_a_character_end_at_the_limit(tokenizer: ModelTokenizer) -> None:
    [*_, lead, _, _] = tokenizer.ids_of("中")
    segmenter = TokenSegmenter(tokenizer, Writer.TARGET, params(max_segment_tokens=5), ())
    assert all(segmenter.take(lead) for _ in range(16))
    assert [len(segment.token_ids) for segment in segmenter.segments] == [8, 8]


@pytest.mark.parametrize("text", CHARACTERS)
@pytest.mark.parametrize("limit", range(1, 9))
def test_served_text_ends_at_tokens(tokenizer: ModelTokenizer, text: str, limit: int) -> None:
    for limits in ({"max_segment_tokens": limit}, {"max_tokens": limit}):
        segmenter = TextSegmenter(tokenizer, Writer.TARGET, params(**limits), 0, PROMPT)
        served = list(segmenter.take(text, SegmentEnd.LENGTH))
        whole = [
            (segment.text, segment.token_ids) for segment in written(tokenizer, text, **limits)
        ]
        assert [(segment.text, segment.token_ids) for segment in served][: len(whole)] == whole
