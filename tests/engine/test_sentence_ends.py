"""A sentence ends where the token drawn after it says so; that token is the next writer's to draw."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from semspec.decoding import Backends, Generation
from semspec.engine.batch import ContextBatch
from semspec.engine.logits import renormalised
from semspec.engine.segmentation import cut, ended_by_look_ahead
from semspec.engine.torch_engine import TorchEngine
from semspec.types import Context, SamplingParams, Segment, Segmentation, SegmentEnd, Writer
from tests.decoding.support import ConstantVerifier
from tests.engine.support import (
    Load,
    assert_distributed,
    params,
    prompt,
    segment,
    segments_of,
    speculated,
)
from tests.helpers.engines import trace
from tests.helpers.variants import PLAIN, changed

SENTENCE = Segmentation.SENTENCE
WORDS = (".", "5", " 3", " Tom", " has")
HOT = SamplingParams(1.0, 1.0)
NUM_SEEDS = 300

Engines = tuple[TorchEngine, TorchEngine]


def save_with_few_words(source: Path, folder: Path) -> Path:
    """The model of `source` that writes nothing but `WORDS`: one dimension of its states is nearly constant."""
    model = AutoModelForCausalLM.from_pretrained(source)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    model.get_input_embeddings().weight.data[:, 0] = 5.0
    bias = model.get_output_embeddings().weight.data[:, 0]
    bias[:] = -12.0
    for word in WORDS:
        [token] = tokenizer.encode(word, add_special_tokens=False)
        bias[token] = 2.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
async def engines(checkpoints: dict[str, Path], tmp_path: Path, load: Load) -> Engines:
    """Draft and target."""
    draft, target = (
        save_with_few_words(checkpoints[name], tmp_path / name) for name in ("llama", "qwen2")
    )
    return load(draft, Writer.DRAFT), load(target)


async def after(engine: TorchEngine, text: str, end: SegmentEnd = SegmentEnd.BOUNDARY) -> Context:
    """A context whose last segment is `text`."""
    return (await prompt(engine)).extended(segment(engine, text, end))


def first(segments: list[Segment]) -> int:
    return segments[0].token_ids[0]


@pytest.mark.parametrize("verified", [False, True])
async def test_first_token_after_sentence_distribution(engines: Engines, verified: bool) -> None:
    draft, target = engines
    context = await after(target, " Tom has 3.")
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(NUM_SEEDS):
        what = params(
            sampling=replace(HOT, seed=seed),
            segmentation=SENTENCE,
            max_tokens=2,
            max_segments=0,
            session="s",
        )
        if verified:
            segments, _ = await speculated(draft, target, context, what, gamma=1)
        else:
            segments = await segments_of(target, context, replace(what, max_tokens=1))
        counts[first(segments),] += 1
    ids = target.tokenizer.context_ids(context)
    row = renormalised(target.lm.forward(ids, target.lm.new_kv()).logits, HOT)[0].double()
    expected: dict[tuple[int, ...], float] = {
        (token,): float(row[token]) for word in WORDS[2:] for token in target.tokenizer.ids_of(word)
    }
    assert sum(expected.values()) < 0.9
    assert_distributed(counts, expected)


async def test_draw_of_the_look_ahead_is_kept_where_it_confirms_the_end(engines: Engines) -> None:
    """So that the model that wrote the sentence goes on with the token it has seen."""
    target, kept = engines[1], 0
    ended = await after(target, " Tom has 3.")
    cut_short = await after(target, " Tom has 3.", SegmentEnd.LENGTH)
    assert ended_by_look_ahead(ended, SENTENCE) and not ended_by_look_ahead(cut_short, SENTENCE)
    for sampling in [SamplingParams(0), *(replace(HOT, seed=seed) for seed in range(20))]:
        what = params(sampling=sampling, segmentation=SENTENCE, max_tokens=1)
        plain, drawn = [
            first(await segments_of(target, context, what)) for context in (cut_short, ended)
        ]
        is_space = target.tokenizer.token_text(plain).startswith(" ")
        assert drawn == plain if is_space else target.tokenizer.token_text(drawn).startswith(" ")
        kept += is_space
    assert 0 < kept < 21


async def test_other_boundaries_leave_next_token_free(engines: Engines) -> None:
    target = engines[1]
    for text in (" Tom has 3.\n\n", " Tom has"):
        assert not ended_by_look_ahead(await after(target, text), SENTENCE)
    assert not ended_by_look_ahead(await after(target, " Tom has 3."), Segmentation.PARAGRAPH)
    assert not ended_by_look_ahead(await prompt(target), SENTENCE)


async def test_batch_draws_after_a_sentence_what_the_engine_draws(engines: Engines) -> None:
    target = engines[1]
    context, seeds = await after(target, " Tom has 3."), list(range(12))
    batch = ContextBatch(target.lm, target.tokenizer.context_ids(context))
    for sampled, seed in zip(
        batch.sample(HOT, seeds, SENTENCE, 8, is_after_end=True), seeds, strict=True
    ):
        what = params(
            sampling=replace(HOT, seed=seed),
            segmentation=SENTENCE,
            max_segments=1,
            max_segment_tokens=8,
        )
        [alone] = await segments_of(target, context, what)
        assert tuple(sampled.token_ids) == alone.token_ids and sampled.end is alone.end


@pytest.mark.parametrize("strategy", ["random", "semantic+token-level", "token-level", "target"])
async def test_sentences_stay_sentences(engines: Engines, strategy: str) -> None:
    """Segmented again, the whole text has the same segments: no token is lost, doubled or joined to another."""
    backends = Backends(*engines, ConstantVerifier(1.0, 0.5))
    context, writers = await prompt(engines[1]), set()
    for seed in range(3):
        plain = Generation(
            context, replace(HOT, seed=seed), 60, segmentation=SENTENCE, session="s", strategy=PLAIN
        )
        generation = changed(plain, strategy)
        segments = [record.segment for record in await trace(generation, backends)]
        assert list(cut("".join(segment.text for segment in segments), SENTENCE)) == [
            one.text for one in segments
        ]
        ids = [token for segment in segments for token in segment.token_ids]
        assert len(ids) == 60
        assert ids == engines[1].tokenizer.ids_of("".join(segment.text for segment in segments))
        writers |= {segment.writer for segment in segments}
    assert len(segments) > 3 and (len(writers) == 2 or strategy in ("token-level", "target"))
