"""Segments of natural text, as tokenizers of real checkpoints make them: headings, lists, code, formulas, characters of
many bytes. `SEMSPEC_REAL_MODELS` names a folder with real checkpoints, whose tokenizers are then tried too."""

import os
from functools import cache
from pathlib import Path

import pytest

from semspec.decoding.repeats import repeated_index
from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.segmentation import TokenSegmenter, cut
from semspec.engine.tokenization import ModelTokenizer
from semspec.types import (
    GenerationParams,
    ModelInfo,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    Writer,
)
from tests.helpers.trained_tokenizers import FORMS, model_tokenizer

REAL = os.environ.get("SEMSPEC_REAL_MODELS")
REAL_NAMES = ("smollm2-135m", "qwen-coder-0.5b")
CODE = """```python
def search(items, item):
    left, right = 0, len(items) - 1

    while left <= right:
        middle = (left + right) // 2

        if items[middle] == item:
            return middle

    return -1
```

"""
TEXTS = {
    "headings": "# Solution\n\n## Step 1: Read\n\nThe box has 12.\n\n---\n\n**Answer:** 12.\n\n",
    "formulas": "We have\n\n\\[\nx^2 - 5x + 6 = 0\n\\]\n\nso that\n\n$$x = \\frac{5 \\pm 1}{2}.$$\n\nHence \\boxed{2}.",
    "lists": "1. Tom sells 6 pens.\n\n2. Tom has 19 now.\n\n   - a nested one\n\n\n\n3. The end.\n\n",
    "table": "| day | pens |\n| --- | --- |\n| 1 | 19 |\n| 2 | 13 |\n\nSo 13 are left.",
    "code": f"Here it is:\n\n{CODE}It halves the range.",
    "emoji": "Yes 🎉🎉\n\n👩‍👩‍👧‍👦 and 🇨🇳 are one picture each.\n\n✅ done",
    "chinese": "北京是中国的首都。\n\n它有三千年的历史,人口两千万。\n\n答案:四十二。",
    "mixed ends": 'He said "stop."\n\nWhy?!\n\n(See above.)\n\ne.g. this...\n\n',
}


def tokenizers() -> list[pytest.param]:  # type: ignore[valid-type]
    """Trained tokenizers of four forms, and real ones where there are any."""
    skip = pytest.mark.skipif(
        REAL is None, reason="SEMSPEC_REAL_MODELS names no folder with real checkpoints"
    )
    return [*FORMS, *(pytest.param(name, marks=[pytest.mark.slow, skip]) for name in REAL_NAMES)]


@pytest.fixture(params=tokenizers())
def tokenizer(request: pytest.FixtureRequest) -> ModelTokenizer:
    return loaded_tokenizer(request.param)


@cache
def loaded_tokenizer(name: str) -> ModelTokenizer:
    if name in FORMS:
        return model_tokenizer(FORMS[name]("</s>"))
    raw = load_tokenizer(str(Path(REAL or "") / name))
    info = ModelInfo(name, "fingerprint", name, 2, 8, 8192)
    return ModelTokenizer(raw, info, frozenset({raw.eos_token_id}), len(raw))


def segmented(
    tokenizer: ModelTokenizer,
    text: str,
    max_segment_tokens: int,
    segmentation: Segmentation = Segmentation.PARAGRAPH,
) -> list[Segment]:
    """The segments of a model that writes `text` after a prompt, and then ends its turn."""
    prompt = tokenizer.ids_of("Question?\n")
    params = GenerationParams(
        SamplingParams(0.0),
        segmentation,
        max_segments=0,
        max_tokens=4000,
        max_segment_tokens=max_segment_tokens,
    )
    segmenter = TokenSegmenter(tokenizer, Writer.DRAFT, params, prompt)
    for token in [*tokenizer.ids_of(f"Question?\n{text}")[len(prompt) :], min(tokenizer.eos_ids)]:
        segmenter.take(token)
    return segmenter.segments


@pytest.mark.parametrize("max_segment_tokens", [3, 16, 512])
@pytest.mark.parametrize("segmentation", Segmentation)
@pytest.mark.parametrize("name", TEXTS)
def test_segments_add_up_to_the_text(
    tokenizer: ModelTokenizer, name: str, segmentation: Segmentation, max_segment_tokens: int
) -> None:
    segments = segmented(tokenizer, TEXTS[name], max_segment_tokens, segmentation)
    assert "".join(segment.text for segment in segments) == TEXTS[name]
    assert all(len(segment.token_ids) <= max_segment_tokens + 3 for segment in segments)
    assert segments[-1].end is SegmentEnd.EOS
    assert {segment.end for segment in segments[:-1]} <= {SegmentEnd.BOUNDARY, SegmentEnd.LENGTH}


@pytest.mark.parametrize("name", TEXTS)
def test_paragraph_holds_one_block_without_a_blank_line(
    tokenizer: ModelTokenizer, name: str
) -> None:
    segments = segmented(tokenizer, TEXTS[name], 512)
    blocks = [segment.text.strip() for segment in segments if segment.text.strip()]
    assert blocks == [
        part.strip() for part in cut(TEXTS[name], Segmentation.PARAGRAPH) if part.strip()
    ]
    assert not any("\n\n" in block for block in blocks)
    for segment in segments[:-1]:
        assert segment.end is SegmentEnd.BOUNDARY and segment.text.endswith(("\n", " "))


@pytest.mark.parametrize("name", TEXTS)
def test_guard_against_loops_leaves_ordinary_text_alone(
    tokenizer: ModelTokenizer, name: str
) -> None:
    segments = segmented(tokenizer, TEXTS[name], 512)
    for index, segment in enumerate(segments):
        assert repeated_index(segment, segments[:index]) is None
    again = segmented(tokenizer, f"{TEXTS[name].strip()}\n\n{TEXTS[name].strip()}\n\n", 512)
    found = [repeated_index(segment, again[:index]) for index, segment in enumerate(again)]
    long = [index for index, segment in enumerate(again) if len(segment.text.strip()) > 40]
    assert all(found[index] is not None for index in long if index > len(again) / 2)
