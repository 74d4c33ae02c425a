"""Tokenizing off the event loop and within the window, and reading text of another tokenizer."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from string import ascii_lowercase
from threading import Event
from typing import Any

import psutil
import pytest
from transformers import AutoTokenizer

from semspec.engine.causal_lm import CausalLM
from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.segmentation import cut
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import ContextTooLong, InvalidRequest
from semspec.reasoning import FORMS as FORMS_OF_REASONING
from semspec.reasoning import ReasoningForm
from semspec.stack import BUNDLED_PAIR
from semspec.types import (
    Context,
    Conversation,
    GenerationParams,
    Message,
    ModelInfo,
    Piece,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    TokenIds,
    ToolCall,
    Writer,
)
from tests.engine.support import CHATML, Load, assert_same, tensor
from tests.helpers.checkpoints import model_of, randomise
from tests.helpers.trained_tokenizers import FORMS, SENTENCES, model_tokenizer

ASKED = Message("user", "x")
PARAMS = GenerationParams(SamplingParams(), max_tokens=2)


def before_tokenizing(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, block: Callable[[], None]
) -> None:
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


def own(engine: TorchEngine) -> Context:
    return Context((Piece("x", (5,), engine.tokenizer.info.tokenizer),))


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda engine, text: engine.encode(text), "are too many"),
        (lambda engine, text: engine.encode((Message("user", text),)), "are too many"),
        (
            lambda engine, text: engine.encode(
                (ASKED, Message("assistant", "", (ToolCall("", "f", text),)))
            ),
            "are too many",
        ),
        (
            lambda engine, text: engine.encode(Conversation((ASKED,), ({"name": text},))),
            "are too many",
        ),
        (lambda engine, text: engine.encode(TokenIds((1,) * len(text))), "tokens leave no room"),
        (lambda engine, text: engine.tokenize(text), "are too many"),
        (lambda engine, text: anext(engine.generate(foreign(text), PARAMS)), "are too many"),
    ],
    ids=["text", "message", "call", "tools", "ids", "text to tokenize", "context"],
)
async def test_text_beyond_the_window_is_refused_before_it_is_tokenized(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, call: Any, complaint: str
) -> None:
    def never() -> None:
        raise AssertionError("the text reached the tokenizer")

    before_tokenizing(engine, monkeypatch, never)
    with pytest.raises(ContextTooLong, match=complaint):
        await call(engine, "a" * (engine.tokenizer.info.max_context_tokens * 16 + 1))


async def test_event_loop_goes_on(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no health check would be answered meanwhile."""
    done = Event()

    def block() -> None:
        assert done.wait(20)

    before_tokenizing(engine, monkeypatch, block)
    works = (
        engine.encode("x"),
        engine.tokenize("x"),
        anext(engine.generate(foreign("So be it."), PARAMS)),
    )
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
    return tokenizer.read_ids(ended, before="So")[-1]


def test_foreign_segment_ends_as_template_ends_a_turn(tokenizer: ModelTokenizer) -> None:
    tokenizer.raw.chat_template = CHATML
    assert (
        last_token(tokenizer)
        == tokenizer.raw.convert_tokens_to_ids("<|im_end|>")
        == max(tokenizer.eos_ids)
    )


@pytest.mark.parametrize("template", [None, REFUSING, "{{ messages[1]['content'] }}"])
def test_segment_ends_with_first_end(tokenizer: ModelTokenizer, template: str | None) -> None:
    tokenizer.raw.chat_template = template
    assert last_token(tokenizer) == min(tokenizer.eos_ids)


EXTRA = "<|extra|>"
"""An added token beyond the embeddings of `smaller`."""


@pytest.fixture
async def smaller(checkpoints: dict[str, Path], tmp_path: Path, load: Load) -> TorchEngine:
    """Return a model whose tokenizer has a token more than the model has embeddings."""
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
        (
            lambda engine: engine.encode(Conversation((ASKED, Message("assistant", EXTRA), ASKED))),
            "messages",
        ),
        (lambda engine: engine.encode(TokenIds((5, 310))), "prompt"),
        (lambda engine: engine.tokenize(f"So{EXTRA}"), "text"),
        (lambda engine: anext(engine.generate(foreign(EXTRA), PARAMS)), "text"),
        (lambda engine: engine.propose(foreign(EXTRA), (), PARAMS, 2), "text"),
        (lambda engine: engine.score(own(engine), [drafted(EXTRA)]), "text"),
    ],
    ids="text message turn ids tokenize context propose segment".split(),
)
async def test_token_without_embedding(smaller: TorchEngine, call: Any, parameter: str) -> None:
    with pytest.raises(InvalidRequest, match=NAMED) as refused:
        await call(smaller)
    assert refused.value.parameter == parameter
    assert str(refused.value).endswith(f"; leave it out of the {parameter}")


def drafted(text: str) -> Segment:
    return Segment(text, (1, 2), "of another tokenizer", Writer.DRAFT, SegmentEnd.BOUNDARY)


async def test_sampling_never_write_a_token_without_an_embedding(smaller: TorchEngine) -> None:
    params = GenerationParams(SamplingParams(2.0, 1.0, 0, 3), max_tokens=60, max_segments=0)
    results = [result async for result in smaller.generate(own(smaller), params)]
    written = [token for result in results for token in result.segment.token_ids]
    assert written and max(written) < 310


TEXTS = (
    "".join(SENTENCES[:2]) + "It is.",
    "Tom's pens: 25.\n\n1. He sells 6.\n   So 19.\n\n(x + 1) is 中文, 🦊.\n\n\\boxed{19}",
    "Is it?\n\n'Tis.\n\n- No.\n\n...\n\nend.",
)


@pytest.fixture(params=FORMS)
def reader(request: pytest.FixtureRequest) -> ModelTokenizer:
    return model_tokenizer(FORMS[request.param](), request.param)


def by_another(text: str, end: SegmentEnd = SegmentEnd.BOUNDARY) -> Segment:
    return Segment(text, (1, 2), "another", Writer.TARGET, end)


def ids_of_whole(reader: ModelTokenizer, text: str) -> list[int]:
    """Return the ids of a whole text, with the tokens that the tokenizer puts before a prompt."""
    return reader.ids_of(text, add_special_tokens=True)


@pytest.mark.parametrize("text", TEXTS)
def test_foreign_segments_have_ids_of_whole_text(reader: ModelTokenizer, text: str) -> None:
    prompt, *segments = cut(text, Segmentation.PARAGRAPH)
    context = Context((Piece(prompt, (1, 2), "another"), *map(by_another, segments)))
    assert reader.context_ids(context) == ids_of_whole(reader, text)


def test_piece_keeps_its_ids_when_the_context_grows(reader: ModelTokenizer) -> None:
    """Else a longer context would not find the shorter one in the cache, also where the whole text has other tokens."""
    pieces = tuple(
        map(by_another, ("So.\n\n", "\n\n  It is", "n't ", "much", "\n", "\n\nWe", " add ", "é"))
    )
    whole = reader.context_ids(Context(pieces))
    for size in range(1, len(pieces)):
        part = reader.context_ids(Context(pieces[:size]))
        assert whole[: len(part)] == part


def test_ids_of_the_reader_stay_as_they_were_drawn(reader: ModelTokenizer) -> None:
    drawn = tuple(
        token
        for letter in "So.\n\n"
        for token in reader.ids_of(f"\n{letter}")[len(reader.ids_of("\n")) :]
    )
    segment = Segment("So.\n\n", drawn, reader.info.tokenizer, Writer.DRAFT, SegmentEnd.BOUNDARY)
    ids = reader.context_ids(
        Context((Piece("We:\n\n", (1,), "another"), segment, by_another("So it is.\n\n")))
    )
    start, end = reader.ids_of("We:\n\nWe"), reader.ids_of("We:\n\nSo it is.\n\nWe")
    middle = len(start) - 1
    assert ids[:middle] == start[:-1] and tuple(ids[middle : middle + len(drawn)]) == drawn
    assert ids[middle + len(drawn) :] == end[middle:-1]


def test_text_after_an_added_token_has_the_ids_of_the_whole(reader: ModelTokenizer) -> None:
    """Llama 2's marks the beginning of the text after such a token, others only that of the whole text."""
    prompt, segments = "<|im_start|>We add.<|im_end|>", ("So it is.\n\n", "We add.")
    context = Context((Piece(prompt, (1, 2), "another"), *map(by_another, segments)))
    assert reader.context_ids(context) == ids_of_whole(reader, prompt + "".join(segments))


def test_text_before_end_of_sequence_is_end_of_text(reader: ModelTokenizer) -> None:
    segments = by_another("We add.\n\n"), by_another("So it is.\n\n", SegmentEnd.EOS)
    ids = reader.context_ids(Context((Piece("We:\n\n", (1,), "another"), *segments)))
    assert ids == [*ids_of_whole(reader, "We:\n\nWe add.\n\nSo it is.\n\n"), reader.end_of_turn]


async def test_foreign_scores(reader: ModelTokenizer, load: Load, tmp_path: Path) -> None:
    """States and surprisal are those of the same ids in one text."""
    randomise(model_of("qwen2", vocab_size=len(reader.raw), bos_token_id=None)).save_pretrained(
        tmp_path
    )
    reader.raw.save_pretrained(tmp_path)
    engine = load(tmp_path)
    prompt, *texts = cut(TEXTS[0], Segmentation.PARAGRAPH)
    segments, fingerprint = list(map(by_another, texts)), engine.tokenizer.info.tokenizer
    foreign = await engine.score(Context((Piece(prompt, (1,), "another"),)), segments)
    start = engine.tokenizer.ids_of(prompt + "We")[:-1]
    ids, native, place = engine.tokenizer.ids_of(TEXTS[0]), list[Segment](), len(start)
    for segment, score in zip(segments, foreign, strict=True):
        token_ids = tuple(ids[place : place + score.num_tokens])
        native.append(replace(segment, token_ids=token_ids, tokenizer=fingerprint))
        place += score.num_tokens
    assert place == len(ids)
    expected = await engine.score(Context((Piece(prompt, tuple(start), fingerprint),)), native)
    for score, expected_score in zip(foreign, expected, strict=True):
        assert_same(tensor(score.states), tensor(expected_score.states))
        assert score.surprisal == pytest.approx(expected_score.surprisal, abs=1e-3)


@pytest.mark.parametrize("form", FORMS_OF_REASONING, ids=lambda form: form.opening)
def test_reasoning_marks_are_part_of_text(form: ReasoningForm, reader: ModelTokenizer) -> None:
    """Other special tokens are not part of it. Another tokenizer reads the marks as text, and Llama 2's form puts a
    space after each."""
    writer = model_tokenizer(FORMS[reader.info.model](*sorted(form.marks), "<pad>"), "other")
    start = writer.ids_of("<|im_start|>So:")
    text = f"{form.opening}We add.\n\nSo it{form.answer} is 🦊."
    whole = writer.ids_of(f"<|im_start|>So:{text}")
    ids = whole[len(start) :]
    assert len(writer.mark_ids) == len(form.marks)
    spaces = ("", "") if reader.info.model != "llama2" else (" ", "")
    decoded = writer.text_of(start, [*ids[:2], *writer.ids_of("<pad><|im_end|>"), *ids[2:]])
    assert decoded.replace(*spaces) == text.replace(*spaces)
    assert b"".join(map(writer.token_bytes, ids)).decode() == decoded
    segment = Segment(text, tuple(ids), "other.added", Writer.TARGET, SegmentEnd.BOUNDARY)
    context = Context((Piece("So:", (1,), "other.added"), segment))
    assert reader.context_ids(context) == ids_of_whole(reader, f"So:{text}")


def test_mark_that_ends_the_sequence_or_has_no_partner_is_not_text() -> None:
    lonely = model_tokenizer(FORMS["qwen"]("<think>", "<|end|>"))
    assert lonely.text_of((), lonely.ids_of("<think>So<|end|>")) == "So"


@pytest.mark.parametrize(
    ("marks", "is_reported"),
    [
        (("<think>", "</think>"), False),
        (("<|START_THINKING|>", "<|END_THINKING|>"), True),
        (("<|channel|>",), True),
    ],
)
async def test_reasoning_marks_of_an_unknown_form_are_reported_at_the_start(
    load: Load,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    marks: tuple[str, ...],
    is_reported: bool,
) -> None:
    raw = FORMS["qwen"](*marks)
    randomise(model_of("qwen2", vocab_size=len(raw), bos_token_id=None)).save_pretrained(tmp_path)
    raw.save_pretrained(tmp_path)
    load(tmp_path)
    lines = [line for line in caplog.messages if "seems to mark its reasoning with" in line]
    assert len(lines) == is_reported
    assert all(marks[0] in line and "\n" not in line for line in lines)


@pytest.mark.slow
def test_words_and_tokens_that_are_remembered_are_bounded() -> None:
    """Distinct words would take 90 MB if all were remembered; each token is remembered once."""
    raw = AutoTokenizer.from_pretrained(BUNDLED_PAIR / "target")
    info = ModelInfo("target", "fingerprint", "tokens", 1, 1, 1 << 30)
    tokenizer, chance = ModelTokenizer(raw, info, frozenset({0}), len(raw)), Random(1)
    before = psutil.Process().memory_info().rss
    for _ in range(300):
        words = [
            "".join(chance.choices(ascii_lowercase, k=length)) for length in (*[100] * 100, 100_000)
        ]
        for token in tokenizer.encode(" ".join(words)).token_ids:
            tokenizer.token_text(token)
            tokenizer.token_bytes(token)
    assert psutil.Process().memory_info().rss - before < 48 << 20
