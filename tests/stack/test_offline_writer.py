"""Probe data may be sampled from a served model: here from our own gateway."""

import asyncio

import pytest

from semspec.engine.causal_lm import CausalLM
from semspec.training.config import ServerSampler
from semspec.training.data.writers import CachedModel, EngineWriter, ServerWriter
from semspec.types import (
    Context,
    GenerationParams,
    SamplingParams,
    Segmentation,
    SegmentEnd,
    Writer,
    derive_seed,
)
from tests.helpers.stack import QUESTION, Pair, Running

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

API_KEY = "SEMSPEC_API_KEY"
SEEDS = [3, 14, 159, 2653]


@pytest.mark.parametrize("segmentation", Segmentation)
async def test_served_segments_are_those_of_the_engine(
    running: Running, pair: Pair, segmentation: Segmentation, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = GenerationParams(
        SamplingParams(0.8, 0.9), segmentation, max_segment_tokens=30, max_tokens=30
    )
    models = (await running.http.get("/v1/models")).json()["data"]
    [model] = [one["id"] for one in models if one["id"].endswith(":target")]
    monkeypatch.setenv(API_KEY, running.stack.api_key)
    url = f"{running.stack.base_url}/v1"
    config = ServerSampler(
        backend="openai", base_url=url, model=model, concurrency=2, api_key_env=API_KEY
    )
    lm = CausalLM.load(str(pair.target), None, "cpu", "float32")
    context = Context((lm.tokenizer.encode(QUESTION),))
    streams = [
        derive_seed(seed, "target", 0) for seed in SEEDS
    ]  # as the loop names its target's draws
    local = EngineWriter(CachedModel(lm, 3), Writer.TARGET, recipe).generate(context, streams)
    served = await asyncio.to_thread(
        ServerWriter(config, Writer.TARGET, recipe, lm.tokenizer).generate, context, SEEDS
    )
    assert [one.end for one in served] == [one.end for one in local]
    assert [one.text for one in served] == [one.text for one in local]
    assert segmentation is not Segmentation.PARAGRAPH or SegmentEnd.BOUNDARY in {
        one.end for one in served
    }
    assert all(lm.tokenizer.read_ids(segment, before="So") for segment in served)
