"""What vLLM does between the steps changes no result: chunks of prompts, pre-emption, cancelled requests."""

import asyncio
from contextlib import aclosing
from itertools import accumulate

import pytest
from prometheus_client import REGISTRY

from semspec.engine.torch_engine import TorchEngine
from semspec.engine.vllm.engine import VllmEngine
from tests.test_observability.test_monitoring import asked_of_services
from tests.vllm.support import (
    SMALL_TOKENS,
    assert_same_scores,
    assert_same_segments,
    contexts,
    params,
    segments_of,
    written,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

NUM_STREAMS = 16


async def test_pre_empted_requests_equal_ours(small: VllmEngine, ours: TorchEngine) -> None:
    """The prompts fit and their answers do not, so vLLM drops keys and values of some and computes them again."""
    prompts = await contexts(ours, NUM_STREAMS)
    lengths = list(accumulate(len(one.pieces[0].token_ids) for one in prompts))
    started = [
        one for one, length in zip(prompts, lengths, strict=True) if length <= 0.8 * SMALL_TOKENS
    ]
    wanted = [params(seed, max_tokens=120) for seed in range(len(started))]
    mine = await asyncio.gather(*map(written, [small] * len(started), started, wanted))
    num_tokens = lengths[len(started) - 1] + sum(
        len(one.segment.token_ids) for all_ in mine for one in all_
    )
    assert num_tokens > SMALL_TOKENS
    for context, what, one in zip(started, wanted, mine, strict=True):
        assert_same_segments(ours, context, what, one, await written(ours, context, what))


async def test_long_segments_are_scored_as_ours(small: VllmEngine, ours: TorchEngine) -> None:
    [context] = await contexts(ours, 1)
    segments = segments_of(
        await written(ours, context, params(5, max_tokens=200, max_segment_tokens=200))
    )
    assert sum(len(one.token_ids) for one in segments) > 64
    assert_same_scores(await small.score(context, segments), await ours.score(context, segments))


async def test_proposals_after_prompt_in_chunks_equal_ours(
    small: VllmEngine, ours: TorchEngine
) -> None:
    """No logits after a part of the prompt count towards the confidence that ends a proposal."""
    for seed, context in enumerate(await contexts(ours, 8)):
        assert len(context.pieces[0].token_ids) > 128
        found, expected = [
            await engine.propose(context, (), params(seed, 0.0), 6) for engine in (small, ours)
        ]
        assert found.token_ids == expected.token_ids


async def test_cancelled_requests_leave_others_alone(theirs: VllmEngine, ours: TorchEngine) -> None:
    started = await contexts(ours, NUM_STREAMS)
    cancelled = [asyncio.create_task(written(theirs, one, params(1))) for one in started]
    kept = [asyncio.create_task(written(theirs, one, params(2))) for one in started]
    async with aclosing(theirs.generate(started[0], params(3))) as segments:
        await anext(segments)
    for task in cancelled:
        task.cancel()
    for context, task in zip(started, kept, strict=True):
        expected = await written(ours, context, params(2))
        assert_same_segments(ours, context, params(2), await task, expected)
    ends = await asyncio.gather(*cancelled, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ends)


async def test_metrics_of_vllm_count_every_token(theirs: VllmEngine) -> None:
    """A request draws at most two tokens that no segment has: behind a look-ahead, and behind its last one."""
    started, name = await contexts(theirs, NUM_STREAMS), "vllm:generation_tokens_total"
    before = vllm_metrics()
    streams = await asyncio.gather(
        *(written(theirs, one, params(seed)) for seed, one in enumerate(started))
    )
    num_tokens = sum(len(one.segment.token_ids) for stream in streams for one in stream)
    after = vllm_metrics()
    assert num_tokens <= after[name] - before[name] <= num_tokens + 2 * NUM_STREAMS
    assert asked_of_services("vllm:") <= after.keys()


def vllm_metrics() -> dict[str, float]:
    """By name, as this process shows them."""
    samples = (sample for family in REGISTRY.collect() for sample in family.samples)
    return {sample.name: sample.value for sample in samples if sample.name.startswith("vllm:")}


async def test_slow_reader_gets_every_segment(theirs: VllmEngine, ours: TorchEngine) -> None:
    """vLLM merges outputs that wait for their reader."""
    [context] = await contexts(ours, 1)
    expected = await written(ours, context, params(2))
    async with aclosing(theirs.generate(context, params(2))) as segments:
        first = await anext(segments)
        await asyncio.sleep(0.5)
        mine = [first, *[one async for one in segments]]
    assert len(mine) > 2
    assert_same_segments(ours, context, params(2), mine, expected)
