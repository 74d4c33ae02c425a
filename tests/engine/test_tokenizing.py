"""Texts are tokenized off the event loop, only those that the window may hold; and which token ends a segment that
another model's tokenizer ended."""

import asyncio
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from semspec.engine.causal_lm import CausalLM
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import ContextTooLong
from semspec.types import (
    Context,
    Conversation,
    GenerationParams,
    Message,
    Piece,
    Prompt,
    SamplingParams,
    Segment,
    SegmentEnd,
    TokenIds,
    Writer,
)
from tests.engine.support import CHATML


class Tokenizer:
    """Calls `block` before the tokenizer tokenizes."""

    def __init__(self, raw: Any, block: Any) -> None:
        self._raw, self._block = raw, block

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self._block()
        return self._raw(*arguments, **options)

    def encode(self, *arguments: Any, **options: Any) -> Any:
        self._block()
        return self._raw.encode(*arguments, **options)


def never() -> None:
    raise AssertionError("the text reached the tokenizer")


@pytest.fixture
def too_long(engine: TransformersEngine) -> str:
    return "a" * (engine.tokenizer.info.max_context_tokens * 16 + 1)


@pytest.mark.parametrize(
    "prompt_of",
    [
        lambda text: text,
        lambda text: (Message("user", text),),
        lambda text: (Message("user", "x"), Message("assistant", "", tool_calls=text)),
        lambda text: Conversation((Message("user", "x"),), tools=text),
        lambda text: TokenIds((1,) * len(text)),
    ],
    ids=["text", "message", "call", "tools", "ids"],
)
async def test_prompt_beyond_the_window_is_refused_before_it_is_tokenized(
    engine: TransformersEngine, too_long: str, monkeypatch: pytest.MonkeyPatch, prompt_of: Any
) -> None:
    monkeypatch.setattr(engine.tokenizer, "raw", Tokenizer(engine.tokenizer.raw, never))
    prompt: Prompt = prompt_of(too_long)
    with pytest.raises(ContextTooLong):
        await engine.encode(prompt)


async def test_other_texts_beyond_the_window_are_refused_before_they_are_tokenized(
    engine: TransformersEngine, too_long: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = await engine.encode("x")
    monkeypatch.setattr(engine.tokenizer, "raw", Tokenizer(engine.tokenizer.raw, never))
    foreign = Context((Piece(too_long, (1, 2), "of another tokenizer"),))
    with pytest.raises(ContextTooLong, match="characters are too many"):
        await engine.tokenize(too_long)
    with pytest.raises(ContextTooLong, match="characters are too many"):
        await anext(engine.generate(foreign, GenerationParams(SamplingParams())))
    with pytest.raises(ContextTooLong, match="characters are too many"):
        await engine.score_choices(Context((piece,)), too_long, "", ["a", "b"])


async def test_event_loop_goes_on_while_a_text_is_tokenized(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no health check would be answered meanwhile."""
    done = Event()

    def block() -> None:
        assert done.wait(20)

    monkeypatch.setattr(engine.tokenizer, "raw", Tokenizer(engine.tokenizer.raw, block))
    foreign = Context((Piece("So be it.", (1, 2), "of another tokenizer"),))
    works = [
        engine.encode("x"),
        engine.tokenize("x"),
        anext(engine.generate(foreign, GenerationParams(SamplingParams(), max_tokens=2))),
    ]
    asking = asyncio.gather(*works)
    for _ in range(20):
        await asyncio.sleep(0.005)
    done.set()  # reached: nothing holds the loop
    assert all(await asking)


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
