"""Texts are tokenized off the event loop, and only those that the window may hold."""

import asyncio
from threading import Event
from typing import Any

import pytest

from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import ContextTooLong
from semspec.types import Context, Conversation, GenerationParams, Message, Piece, Prompt, SamplingParams, TokenIds


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
