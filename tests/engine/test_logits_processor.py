"""Penalties and biases: as their formulas say, counted over the output, in the draw alone."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from semspec.engine.logits import renormalised
from semspec.engine.logits_processor import Penalizer
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import InvalidRequest
from semspec.types import GeneratedSegment, GenerationParams, Penalties, SamplingParams
from tests.engine.support import (
    answered,
    assert_distributed,
    one_by_one,
    probabilities,
    prompt,
    segments_of,
)

LOGITS = torch.tensor([2.0, -1.0, 0.5, 0.0, 3.0, -2.0])


def test_formulas() -> None:
    penalties = Penalties(
        presence=0.5, frequency=0.25, repetition=2.0, logit_bias=((3, 4.0), (4, -100.0))
    )
    counts = Penalizer(penalties, prompt=[1, 1], written=[0, 0], num_token_ids=6)
    counts.add(2)
    expected = [
        2.0 / 2 - 2 * 0.25 - 0.5,  # twice in the output
        -1.0 * 2,  # in the prompt alone: repetition, and nothing else
        0.5 / 2 - 0.25 - 0.5,
        4.0,
        3.0 - 100.0,
        -2.0,
    ]
    assert counts.apply(LOGITS).tolist() == pytest.approx(expected)
    assert LOGITS.tolist() == [2.0, -1.0, 0.5, 0.0, 3.0, -2.0], "the logits stay as they are"


def test_half_precision_is_penalised_in_full() -> None:
    counts = Penalizer(Penalties(frequency=0.001), [], [0], 6)
    shaped = counts.apply((LOGITS + 4).bfloat16())
    assert shaped.dtype == torch.float32 and float(shaped[0]) == pytest.approx(5.999)


def params(
    penalties: Penalties, seed: int = 0, temperature: float = 1.0, **fields: Any
) -> GenerationParams:
    defaults = {
        "sampling": SamplingParams(temperature, 1.0, 0, seed),
        "max_segments": 0,
        "max_tokens": 40,
    }
    return GenerationParams(**{**defaults, "penalties": penalties, **fields})


def ids_of(generated: list[GeneratedSegment]) -> list[int]:
    return [token for one in generated for token in one.segment.token_ids]


async def test_draws_follow_the_penalised_distribution(engine: TorchEngine) -> None:
    """Of the token after a segment, which counts as written; chi-square at fixed seeds, 0.1% level."""
    info = await engine.info()
    assert info.supports_penalties and info.num_token_ids == engine.tokenizer.num_embeddings
    context = await prompt(engine)
    [segment] = await segments_of(
        engine, context, params(Penalties(), 5, max_tokens=12, max_segments=1)
    )
    asked = context.pieces[0].token_ids
    logits = engine.lm.forward([*asked, *segment.token_ids], engine.lm.new_kv()).logits[-1]
    penalties = Penalties(3.0, 1.0, 1.5, ((int(logits.argmax()), 2.0),))
    shaped = Penalizer(penalties, asked, segment.token_ids, len(logits)).apply(logits)
    sampling, counts = SamplingParams(0.8, 1.0, 4), Counter[tuple[int, ...]]()
    for seed in range(300):
        what = params(penalties, sampling=replace(sampling, seed=seed), max_tokens=1)
        counts[tuple(ids_of(await answered(engine, what, segment)))] += 1
    assert_distributed(counts, probabilities(renormalised(shaped[None], sampling)[0]))


async def test_one_call_writes_what_several_do(engine: TorchEngine, uncached: TorchEngine) -> None:
    penalties, context = Penalties(0.4, 0.3, 1.3, ((5, 2.0),)), await prompt(engine)
    for seed in range(3):
        what = params(penalties, seed, max_tokens=60, max_segment_tokens=12)
        assert await segments_of(engine, context, what) == await one_by_one(uncached, context, what)


async def test_end_is_drawn_once_it_may_be(engine: TorchEngine, uncached: TorchEngine) -> None:
    """By a model that would end at once, in one call or in several."""
    end, context = min(engine.tokenizer.eos_ids), await prompt(engine)
    for least in (1, 30, 60):
        eager = params(
            Penalties(logit_bias=((end, 50.0),)),
            max_tokens=60,
            max_segment_tokens=12,
            min_tokens=least,
        )
        segments = await segments_of(engine, context, eager)
        ids = [token for segment in segments for token in segment.token_ids]
        assert [place for place, token in enumerate(ids) if token == end] == [least] * (least < 60)
        assert len(ids) == min(least + 1, 60)
        assert segments == await one_by_one(uncached, context, eager)


async def test_forbidden_token_is_not_drawn_and_logprobs_do_not_know(engine: TorchEngine) -> None:
    plain = await answered(engine, params(Penalties(), temperature=0, max_tokens=8, num_logprobs=1))
    likeliest = ids_of(plain)[0]
    barred = Penalties(logit_bias=((likeliest, -100.0),))
    other = await answered(engine, params(barred, temperature=0, max_tokens=8, num_logprobs=1))
    assert likeliest not in ids_of(other)
    first, second = ((one[0].logprobs or ())[0] for one in (plain, other))
    assert (
        [one.token_id for one in second.alternatives]
        == [likeliest]
        == [one.token_id for one in first.alternatives]
    )
    assert second.alternatives[0].logprob == pytest.approx(first.logprob, abs=1e-5)
    assert second.logprob < first.logprob


async def test_bias_on_no_token_is_refused(engine: TorchEngine) -> None:
    limit = engine.tokenizer.num_embeddings
    with pytest.raises(InvalidRequest, match=f"logit_bias: {limit} is not a token id"):
        await answered(engine, params(Penalties(logit_bias=((limit, 1.0),))))
