"""The token that ends a segment which another model's tokenizer ended."""

from pathlib import Path

import pytest

from semspec.engine.causal_lm import CausalLM
from semspec.engine.tokenization import ModelTokenizer
from semspec.types import Segment, SegmentEnd, Writer
from tests.engine.support import CHATML

REFUSING = "{{ raise_exception('one turn at a time') }}"


@pytest.fixture
def tokenizer(checkpoints: dict[str, Path]) -> ModelTokenizer:
    """Two end-of-sequence tokens, as QwQ's: that of a document, and `<|im_end|>` with a larger id."""
    lm = CausalLM.load(str(checkpoints["qwen2"]), None, "cpu", "float32")
    raw = lm.tokenizer.raw
    raw.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    both = lm.tokenizer.eos_ids | {raw.convert_tokens_to_ids("<|im_end|>")}
    return ModelTokenizer(raw, lm.info, frozenset(both), len(raw))


def last_token(tokenizer: ModelTokenizer) -> int:
    """Of a segment that a model with another tokenizer ended."""
    ended = Segment("7", (1, 2), "another", Writer.DRAFT, SegmentEnd.EOS)
    return tokenizer.read_ids(ended, is_first=False)[-1]


def test_segment_of_another_tokenizer_ends_as_the_chat_template_ends_a_turn(tokenizer: ModelTokenizer) -> None:
    tokenizer.raw.chat_template = CHATML
    assert last_token(tokenizer) == tokenizer.raw.convert_tokens_to_ids("<|im_end|>") == max(tokenizer.eos_ids)


@pytest.mark.parametrize("template", [None, REFUSING, "{{ messages[1]['content'] }}"])
def test_segment_ends_with_the_first_end_of_sequence_where_no_template_says(
    tokenizer: ModelTokenizer, template: str | None
) -> None:
    tokenizer.raw.chat_template = template
    assert last_token(tokenizer) == min(tokenizer.eos_ids)
