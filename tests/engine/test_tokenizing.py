"""Texts are tokenized off the event loop, only those that the window may hold; and which token ends a segment that
another model's tokenizer ended."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from semspec.engine.causal_lm import CausalLM
from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import ContextTooLong, InvalidRequest
from semspec.types import (
    Context,
    Conversation,
    GenerationParams,
    Message,
    Penalties,
    Piece,
    SamplingParams,
    Segment,
    SegmentEnd,
    TokenIds,
    Writer,
)
from tests.engine.support import CHATML, Load

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


EXTRA = "<|extra|>"
"""An added token beyond the embeddings of `smaller`."""


@pytest.fixture
async def smaller(checkpoints: dict[str, Path], tmp_path: Path, load: Load) -> TransformersEngine:
    """A model whose tokenizer has a token more than the model has embeddings."""
    folder = Path(shutil.copytree(checkpoints["qwen2"], tmp_path / "smaller"))
    raw = load_tokenizer(str(folder))
    raw.add_special_tokens({"additional_special_tokens": [EXTRA]})
    raw.chat_template = CHATML
    raw.save_pretrained(folder)
    return load(folder)


NAMED = r"the token '<\|extra\|>' \(id 310\) is outside the vocabulary of 310 tokens"


@pytest.mark.parametrize(
    ("call", "parameter"),
    [
        (lambda engine: engine.encode(f"So{EXTRA} be it."), "prompt"),
        (lambda engine: engine.encode((Message("user", f"So{EXTRA}"),)), "messages"),
        (lambda engine: engine.encode(Conversation((ASKED, Message("assistant", EXTRA), ASKED))), "messages"),
        (lambda engine: engine.encode(TokenIds((5, 310))), "prompt"),
        (lambda engine: engine.tokenize(f"So{EXTRA}"), "text"),
        (lambda engine: anext(engine.generate(foreign(EXTRA), PARAMS)), "text"),
        (lambda engine: engine.propose(foreign(EXTRA), (), PARAMS, 2), "text"),
        (lambda engine: engine.score(own(engine), [drafted(EXTRA)]), "text"),
        (lambda engine: engine.score_choices(own(engine), f"So{EXTRA}?", "", ["a", "b"]), "question"),
        (lambda engine: engine.score_choices(own(engine), "So?", "", [EXTRA]), "options"),
    ],
    ids="text message turn ids tokenize context propose segment question option".split(),
)
async def test_token_without_an_embedding_is_refused_with_its_field(
    smaller: TransformersEngine, call: Any, parameter: str
) -> None:
    with pytest.raises(InvalidRequest, match=NAMED) as refused:
        await call(smaller)
    assert refused.value.parameter == parameter and refused.value.message.endswith(f"; leave it out of the {parameter}")


def drafted(text: str) -> Segment:
    return Segment(text, (1, 2), "of another tokenizer", Writer.DRAFT, SegmentEnd.BOUNDARY)


async def test_bias_of_a_token_without_an_embedding_is_refused(smaller: TransformersEngine) -> None:
    params = replace(PARAMS, penalties=Penalties(logit_bias=((310, 1.0),)))
    with pytest.raises(InvalidRequest, match="logit_bias: 310 is no token of this model"):
        await anext(smaller.generate(own(smaller), params))


async def test_sampling_never_write_a_token_without_an_embedding(smaller: TransformersEngine) -> None:
    params = GenerationParams(SamplingParams(2.0, 1.0, 0, 3), max_tokens=60, max_segments=0)
    written = [token async for one in smaller.generate(own(smaller), params) for token in one.segment.token_ids]
    assert written and max(written) < 310
