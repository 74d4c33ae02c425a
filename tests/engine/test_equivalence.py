"""What the engine may do in several ways, it does with the same result."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from semspec.engine import batch as batch_module
from semspec.engine.batch import ContextBatch
from semspec.engine.causal_lm import CausalLM
from semspec.engine.torch_engine import TorchEngine
from semspec.types import Context, SamplingParams, Segmentation, SegmentEnd
from tests.engine.support import (
    HOT,
    Load,
    assert_same,
    one_by_one,
    params,
    prompt,
    segments_of,
    tensor,
    written,
)


@pytest.mark.parametrize("seed", range(4))
async def test_cached_equals_fresh(engine: TorchEngine, uncached: TorchEngine, seed: int) -> None:
    rng = random.Random(seed)
    context = await prompt(engine)
    for step in range(12):
        what = params(
            sampling=SamplingParams(1.0, 0.95, 0, seed=100 * seed + step),
            want_states=True,
            num_logprobs=1,
            session=rng.choice(["", "a", "b"]),
        )
        [mine] = await written(engine, context, what)
        [fresh] = await written(uncached, context, what)
        assert mine.segment == fresh.segment
        assert_same(tensor(mine.states), tensor(fresh.states))
        told, again = (
            [one.logprob for one in generated.logprobs or ()] for generated in (mine, fresh)
        )
        assert told == pytest.approx(again, abs=1e-4) and len(told) == len(mine.segment.token_ids)
        [read] = await engine.score(context, [mine.segment], what.session)
        [read_fresh] = await uncached.score(context, [mine.segment])
        assert_same(tensor(read.states), tensor(read_fresh.states))
        assert read.surprisal == pytest.approx(read_fresh.surprisal, rel=1e-3, abs=1e-4)
        if mine.segment.end is not SegmentEnd.EOS and rng.random() < 0.6:
            context = context.extended(mine.segment)
        elif len(context.pieces) > 1 and rng.random() < 0.5:
            context = Context(context.pieces[:-1])


async def test_read_at_once_equals_one_by_one(engine: TorchEngine, uncached: TorchEngine) -> None:
    context = await prompt(engine)
    generated = await written(engine, context, params(max_segments=0, want_states=True))
    together = await engine.score(context, [one.segment for one in generated])
    for one, reading in zip(generated, together, strict=True):
        [alone] = await uncached.score(context, [one.segment])
        for states in (one.states, reading.states):
            assert_same(tensor(states), tensor(alone.states))
        assert reading.surprisal == pytest.approx(alone.surprisal, rel=1e-3, abs=1e-4)
        assert alone.num_tokens == len(one.segment.token_ids)
        context = context.extended(one.segment)


@pytest.mark.parametrize("segmentation", Segmentation)
async def test_one_stream_of_segments_equals_one_call_a_segment(
    engine: TorchEngine, uncached: TorchEngine, segmentation: Segmentation
) -> None:
    context, what = await prompt(engine), params(segmentation=segmentation, max_segments=0)
    assert await segments_of(engine, context, what) == await one_by_one(uncached, context, what)


async def test_segmentation_never_changes_the_text(engine: TorchEngine) -> None:
    texts = set()
    for segmentation in Segmentation:
        stream = await written(
            engine, await prompt(engine), params(segmentation=segmentation, max_segments=0)
        )
        texts.add(tuple(token for one in stream for token in one.segment.token_ids))
    assert len(texts) == 1


@pytest.mark.parametrize(
    "patch",
    [{}, {"MAX_SCORES": 0}, {"unsupported_reason": lambda _: "other"}],
    ids=["shared", "in parts", "copied"],
)
@pytest.mark.parametrize("segmentation", Segmentation)
async def test_batch_equals_one_by_one(
    engine: TorchEngine,
    checkpoint: Path,
    segmentation: Segmentation,
    patch: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the rows share the context's keys or copy them, and read segments whole or a token at a time; a context
    may be fed in two parts."""
    for name, value in patch.items():
        monkeypatch.setattr(batch_module, name, value)
    context = await prompt(engine)
    tokens = context.pieces[0].token_ids
    batch = ContextBatch(
        CausalLM.load(str(checkpoint), None, "cpu", "float32"), tokens[: len(tokens) // 2]
    )
    assert not batch.extend(tokens[1:]) and batch.extend(tokens) and batch.extend(tokens)
    seeds = [3, 14, 15, 92, 65, 35, 89]
    rows = batch.sample(HOT, seeds, segmentation, max_tokens=40)
    read = batch.read([row.token_ids for row in rows])
    for index, seed in enumerate(seeds):
        what = params(
            sampling=SamplingParams(1.0, 1.0, 0, seed), segmentation=segmentation, want_states=True
        )
        [alone] = await written(engine, context, what)
        assert list(alone.segment.token_ids) == rows[index].token_ids
        assert alone.segment.end == rows[index].end
        assert_same(read.states[index], tensor(alone.states))
        [reading] = await engine.score(context, [alone.segment])
        assert reading.surprisal == pytest.approx(
            tuple(read.surprisal[index].tolist()), rel=1e-3, abs=1e-4
        )
    assert len({row.end for row in rows}) > 1


async def test_greedy_equals_generate(engine: TorchEngine, checkpoint: Path) -> None:
    context = await prompt(engine)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = torch.tensor([context.pieces[0].token_ids])
    generated = model.generate(ids, max_new_tokens=60, do_sample=False, pad_token_id=0)[
        0, ids.shape[1] :
    ].tolist()
    greedy = params(
        sampling=SamplingParams(temperature=0), max_segments=0, max_tokens=60, max_segment_tokens=17
    )
    assert [
        token for one in await written(engine, context, greedy) for token in one.segment.token_ids
    ] == generated


async def test_states_are_those_before_the_norm(engine: TorchEngine, checkpoint: Path) -> None:
    context = await prompt(engine)
    [one] = await written(engine, context, params(want_states=True))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = torch.tensor([[*context.pieces[0].token_ids, *one.segment.token_ids]])
    caught: list[Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states
    own = slice(-len(one.segment.token_ids), None)
    expected = torch.stack([*hidden[:-1], caught[0]])[:, 0, own].mean(1)
    assert one.states is not None and one.states.shape == (4, 32)
    assert_same(tensor(one.states), expected)


async def test_bf16_states_equal_fp32(engine: TorchEngine, checkpoint: Path, load: Load) -> None:
    half = load(checkpoint, dtype="bfloat16")
    context = await prompt(engine)
    [one] = await written(engine, context, params(want_states=True))
    [reading] = await half.score(context, [one.segment])
    assert_same(tensor(reading.states), tensor(one.states), tolerance=2e-2)
