"""Texts are tokenized off the event loop, only those that the window may hold; and which token ends a segment that
another model's tokenizer ended."""

import asyncio
from collections.abc import Callable
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
    SamplingParams,
    Segment,
    SegmentEnd,
    TokenIds,
    Writer,
)
from tests.engine.support import CHATML

ASKED = Message("user", "x")
PARAMS = GenerationParams(SamplingParams(), max_tokens=2)


def before_tokenizing(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch, block: Callable[[], None]) -> None:
    """Have `block` called before the tokenizer of `engine` tokenizes."""

    def blocked(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            block()
            return method(*arguments, **options)

        return called

    kind = type(engine.tokenizer.raw)
    for name in ("__call__", "encode"):
        monkeypatch.setattr(kind, name, blocked(getattr(kind, name)))


def foreign(text: str) -> Context:
    return Context((Piece(text, (1, 2), "of another tokenizer"),))


def own(engine: TransformersEngine) -> Context:
    return Context((Piece("x", (5,), engine.tokenizer.info.tokenizer),))


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda engine, text: engine.encode(text), "characters are too many"),
        (lambda engine, text: engine.encode((Message("user", text),)), "characters are too many"),
        (lambda engine, text: engine.encode((ASKED, Message("assistant", "", text))), "characters are too many"),
        (lambda engine, text: engine.encode(Conversation((ASKED,), tools=text)), "characters are too many"),
        (lambda engine, text: engine.encode(TokenIds((1,) * len(text))), "tokens leave no room"),
        (lambda engine, text: engine.tokenize(text), "characters are too many"),
        (lambda engine, text: anext(engine.generate(foreign(text), PARAMS)), "characters are too many"),
        (lambda engine, text: engine.score_choices(own(engine), text, "", ["a", "b"]), "characters are too many"),
    ],
    ids=["text", "message", "call", "tools", "ids", "text to tokenize", "context", "question"],
)
async def test_text_beyond_the_window_is_refused_before_it_is_tokenized(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch, call: Any, complaint: str
) -> None:
    def never() -> None:
        raise AssertionError("the text reached the tokenizer")

    before_tokenizing(engine, monkeypatch, never)
    with pytest.raises(ContextTooLong, match=complaint):
        await call(engine, "a" * (engine.tokenizer.info.max_context_tokens * 16 + 1))


async def test_event_loop_goes_on_while_a_text_is_tokenized(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no health check would be answered meanwhile."""
    done = Event()

    def block() -> None:
        assert done.wait(20)

    before_tokenizing(engine, monkeypatch, block)
    works = engine.encode("x"), engine.tokenize("x"), anext(engine.generate(foreign("So be it."), PARAMS))
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
