"""Text of a segment while it is written, and the stop sequences that end it."""

import random
import threading
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.engine.requests import Generate, GenerationState, Result
from semspec.engine.segmentation import TokenSegmenter, prompt_and_output, stops_after
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.worker import Results
from semspec.remote.segmenter import TextSegmenter
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    OpenText,
    Piece,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    Writer,
)
from tests.engine.support import (
    Load,
    before_each_step,
    certainly,
    params,
    prompt,
    sizes_of,
    written,
)
from tests.helpers.processes import GENEROUS_S
from tests.helpers.trained_tokenizers import FORMS, model_tokenizer

PROMPT = "So the ball:"
TEXTS = (
    "Tom sells 6 pens.\n\nSo he has 19. Is it so? Yes.",
    "a🦊🦊🦊🦊b é👩‍👩‍👧‍👦é",
    "我们中文中文。好\n\n吗",
    "  two  spaces\n\n\n and more ",
)
NO_LIMIT = GenerationParams(SamplingParams(), max_segments=0, max_tokens=999)
COUNTING = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"


@pytest.fixture(params=FORMS)
def tokenizer(request: pytest.FixtureRequest) -> ModelTokenizer:
    return model_tokenizer(FORMS[request.param]())


def ids_after_prompt(tokenizer: ModelTokenizer, text: str) -> list[int]:
    return tokenizer.ids_of(PROMPT + text)[len(tokenizer.ids_of(PROMPT)) :]


def streams(tokenizer: ModelTokenizer, ids: list[int], what: GenerationParams) -> Iterator[Segment]:
    """Check the texts of each segment that are shown while `ids` are written."""
    request = Generate(what, is_after_end=False, streams_text=True)
    writing = GenerationState(tokenizer, Writer.TARGET, request, tokenizer.ids_of(PROMPT))
    shown = ""
    for token in ids:
        for generated in writing.take(token):
            text = generated.segment.text
            assert text.startswith(shown), (text, shown)
            yield generated.segment
            shown = ""
        if one := writing.open_text():
            assert one.start == len(shown) and one.text
            shown += one.text
        if writing.is_done:
            return


@pytest.mark.parametrize("segmentation", Segmentation)
@pytest.mark.parametrize("text", TEXTS)
def test_text_is_prefix(tokenizer: ModelTokenizer, text: str, segmentation: Segmentation) -> None:
    ids = [*ids_after_prompt(tokenizer, text), *tokenizer.eos_ids]
    segments = streams(tokenizer, ids, replace(NO_LIMIT, segmentation=segmentation))
    assert "".join(segment.text for segment in segments) == text


@pytest.mark.parametrize("seed", range(20))
def test_shown_text_stays_for_random_tokens(tokenizer: ModelTokenizer, seed: int) -> None:
    """Random tokens have bytes of characters that no other token completes."""
    drawn = random.Random(seed)
    ids = [drawn.randrange(len(tokenizer.raw)) for _ in range(120)]
    ids = [token for token in ids if token not in tokenizer.eos_ids]
    num_tokens = sum(
        len(segment.token_ids)
        for segment in streams(tokenizer, ids, replace(NO_LIMIT, max_tokens=90))
    )
    assert num_tokens == 90


def test_all_but_the_last_token_is_shown(tokenizer: ModelTokenizer) -> None:
    """The first text is there with the first token, not with the segment."""
    request = Generate(NO_LIMIT, is_after_end=False, streams_text=True)
    writing = GenerationState(tokenizer, Writer.TARGET, request, tokenizer.ids_of(PROMPT))
    for number, token in enumerate(ids_after_prompt(tokenizer, " the ball has 12 points, the box")):
        assert not writing.take(token)
        one = writing.open_text()
        assert one is not None and one.token_id == token and (one.start == 0) == (number == 0)
        assert writing.open_text() is None


def ended(
    tokenizer: ModelTokenizer, text: str, *stops: str, prompt: str = PROMPT, **fields: object
) -> list[Segment]:
    """Return the segments of a model that would write `text` after the prompt."""
    what = replace(NO_LIMIT, stops=stops, **fields)  # type: ignore[arg-type]
    search = stops_after(prompt, "", what)
    segmenter = TokenSegmenter(
        tokenizer, Writer.TARGET, what, tokenizer.ids_of(PROMPT), stops=search
    )
    for token in ids_after_prompt(tokenizer, text):
        if not segmenter.take(token):
            break
    return segmenter.segments


@pytest.mark.parametrize("stop", ["7", " 7,", "5, 6, 7", "6, "])
def test_call_ends_with_completed_stop(tokenizer: ModelTokenizer, stop: str) -> None:
    [segment] = ended(tokenizer, COUNTING, "never", stop)
    assert segment.end is SegmentEnd.STOP and stop in segment.text
    ids = list(segment.token_ids)
    assert ids == ids_after_prompt(tokenizer, COUNTING)[: len(ids)]
    assert stop not in tokenizer.text_of(tokenizer.ids_of(PROMPT), ids[:-1])


def test_stop_may_reach_over_segments(tokenizer: ModelTokenizer) -> None:
    segments = ended(tokenizer, "one\n\ntwo\n\nthree", "e\n\ntwo")
    assert [segment.end for segment in segments] == [SegmentEnd.BOUNDARY, SegmentEnd.STOP]
    assert "".join(segment.text for segment in segments).startswith("one\n\ntwo")


@pytest.mark.parametrize("stop", ["中", "🦊", "é"])
def test_stop_of_several_tokens_ends_the_call(tokenizer: ModelTokenizer, stop: str) -> None:
    segments = ended(tokenizer, "a" + stop + " the ball has 12 points", stop)
    assert segments[-1].end is SegmentEnd.STOP
    assert len(segments[-1].text) <= len("a" + stop + " the")


@pytest.mark.parametrize(
    ("prompt", "text", "ends"),
    [
        ("<think>\n", "so 7 it is</think>\n\nIt is 7 now", "is 7"),
        ("", "<think>so 7</think>\n\nIt is 7 now", "is 7"),
        ("", "It is 7 now and then 7", "It is 7"),
    ],
)
def test_stop_in_reasoning(tokenizer: ModelTokenizer, prompt: str, text: str, ends: str) -> None:
    segments = ended(tokenizer, text, "7", prompt=prompt, splits_reasoning=True)
    assert "".join(segment.text for segment in segments).endswith(ends)
    first = ended(tokenizer, text, "7", prompt=prompt)
    assert "".join(segment.text for segment in first).count("7") == 1, (
        "without a split, the first one counts"
    )


def test_stop_is_looked_for_after_earlier_segments() -> None:
    """Half of it may be in the context; one that is there as a whole has been found."""
    segment = Segment("one, t", (), "", Writer.DRAFT, SegmentEnd.LENGTH)
    context = Context((Piece("How?", (), ""), segment))
    search = stops_after(*prompt_and_output(context), replace(NO_LIMIT, stops=("two",)))
    assert search is not None and search.ends_in("wo, three")
    assert stops_after(*prompt_and_output(context), replace(NO_LIMIT, stops=("one",))) is None
    assert stops_after(*prompt_and_output(context), NO_LIMIT) is None


def test_servers_text_ends_with_the_piece_that_completes_a_stop(tokenizer: ModelTokenizer) -> None:
    what = replace(NO_LIMIT, stops=("7",))
    segmenter = TextSegmenter(tokenizer, Writer.TARGET, what, 0, PROMPT, stops_after("", "", what))
    segments = [
        one
        for number in range(1, 20)
        if not segmenter.is_done
        for one in segmenter.take(f" {number},")
    ]
    assert [(one.text, one.end) for one in segments] == [(" 1, 2, 3, 4, 5, 6, 7,", SegmentEnd.STOP)]


async def test_stream_equals_generate(load: Load, checkpoint: Path) -> None:
    engine = load(checkpoint)
    context, what = await prompt(engine), params(max_segments=3, num_logprobs=1)
    whole = await written(engine, context, what)
    segments, text, logprobs = list[GeneratedSegment](), "", list[object]()
    async with aclosing(engine.stream(context, what)) as stream:
        async for one in stream:
            if isinstance(one, OpenText):
                assert (one.start, one.first_logprob) == (len(text), len(logprobs))
                text += one.text
                logprobs += one.logprobs
                continue
            assert text and one.segment.text.startswith(text) and one.logprobs is not None
            assert logprobs == list(one.logprobs[: len(logprobs)])
            segments.append(one)
            text, logprobs = "", []
    assert [one.segment for one in segments] == [one.segment for one in whole]
    tokens, expected = (
        [token for one in some for token in one.logprobs or ()] for some in (segments, whole)
    )
    assert [token.token_id for token in tokens] == [token.token_id for token in expected]
    assert [token.logprob for token in tokens] == pytest.approx(
        [token.logprob for token in expected]
    )


async def test_text_is_sent_before_the_next_token_is_computed(load: Load, checkpoint: Path) -> None:
    engine = load(checkpoint)
    context = await prompt(engine)
    may_go_on = threading.Event()
    before_each_step(engine, lambda sizes: sizes == [1] and may_go_on.wait(GENEROUS_S))
    async with aclosing(engine.stream(context, params(max_segments=0))) as stream:
        first = await anext(stream)
        assert isinstance(first, OpenText) and first.start == 0, "the second token waits for it"
        may_go_on.set()
        assert [type(one) for one in [one async for one in stream]].count(GeneratedSegment) >= 1


async def test_stop_changes_no_draw_and_saves_the_rest(load: Load, checkpoint: Path) -> None:
    engine = load(checkpoint)
    context, what = await prompt(engine), params(max_segments=0, want_states=True)
    whole = await written(engine, context, what)
    same = await written(
        engine, context, replace(what, stops=("never written",), splits_reasoning=True)
    )
    assert [one.segment for one in same] == [one.segment for one in whole]
    text = "".join(one.segment.text for one in whole)
    stop = text[20:26]
    sizes = sizes_of(engine)
    cut = await written(engine, context, replace(what, stops=(stop,)))
    cut_text = "".join(one.segment.text for one in cut)
    assert cut[-1].segment.end is SegmentEnd.STOP and cut[-1].states is not None
    assert text.startswith(cut_text) and cut_text.find(stop) == text.find(stop)
    num_tokens = sum(len(one.segment.token_ids) for one in cut)
    assert sum(sizes) <= num_tokens + 1 < 40, "nothing is computed beyond it"


async def test_verification_ends_with_the_stop(load: Load, checkpoint: Path) -> None:
    engine = load(checkpoint)
    context = await prompt(engine)
    what = params(max_segments=0)
    ids = tuple(
        token for one in await written(engine, context, what) for token in one.segment.token_ids
    )[:12]
    whole = await engine.verify_tokens(context, ids[:4], certainly(engine, ids[4:]), what)
    stop = engine.tokenizer.text_of(engine.tokenizer.context_ids(context), ids[:7])[-9:]
    cut = await engine.verify_tokens(
        context, ids[:4], certainly(engine, ids[4:]), replace(what, stops=(stop,))
    )
    assert cut.segments[-1].end is SegmentEnd.STOP
    assert not cut.open_ids
    assert cut.num_accepted == 3 < whole.num_accepted
    assert sum(len(segment.token_ids) for segment in cut.segments) == 7


async def test_texts_that_wait_are_joined() -> None:
    """A caller that is slower than the model gets fewer and longer ones."""
    results: Results[Result] = Results()
    segment = GeneratedSegment(Segment("one two", (), "", Writer.TARGET, SegmentEnd.EOS), None, 1.0)
    for value in (
        OpenText("one", 0, 1),
        OpenText(" ", 3, 2),
        OpenText("tw", 4, 3),
        segment,
        OpenText("next", 0, 4),
    ):
        results.put(Result(value, 0.0, None))
    results.put(None)
    taken = [await results.get() for _ in range(4)]
    assert [one and one.value for one in taken if not isinstance(one, BaseException)] == [
        OpenText("one tw", 0, 3),
        segment,
        OpenText("next", 0, 4),
        None,
    ]
