"""How the engine behaves as a server of many calls."""

import asyncio
import time
from contextlib import aclosing
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from semspec.engine.torch_engine import TorchEngine
from semspec.errors import InvalidRequest, Overloaded
from semspec.types import Context, GenerationParams, Message, SamplingParams
from tests.engine.support import Load, before_each_step, params, prompt, sizes_of, written


async def test_rounds_feed_only_new_tokens(engine: TorchEngine, uncached: TorchEngine) -> None:
    context = await prompt(engine)
    [drafted] = await written(
        uncached, context, params(sampling=SamplingParams(1.0, 1.0, 0, seed=5))
    )
    await engine.score(context, [drafted.segment], "s")
    sizes = sizes_of(engine)
    [rewritten] = await written(
        engine, context, params(session="s", want_states=True)
    )  # the draft was rejected
    assert sizes == [1] * len(rewritten.segment.token_ids)
    assert rewritten.num_cached_tokens == len(context.pieces[0].token_ids)
    sizes.clear()
    [reading] = await engine.score(context.extended(rewritten.segment), [drafted.segment], "s")
    assert sizes == [reading.num_tokens]
    assert reading.num_cached_tokens == rewritten.num_cached_tokens + len(
        rewritten.segment.token_ids
    )
    sizes.clear()
    accepted = context.extended(rewritten.segment, drafted.segment)
    await engine.score(accepted, [drafted.segment, drafted.segment], "s")
    assert sizes == [2 * reading.num_tokens]


async def test_sessions_share_a_prefix(engine: TorchEngine) -> None:
    context = await prompt(engine)
    [first] = await written(engine, context, params(session="a"))
    assert first.num_cached_tokens == 0
    sizes = sizes_of(engine)
    await written(engine, context, params(sampling=SamplingParams(1.0, 1.0, 0, 99), session="b"))
    assert max(sizes) == 1
    sizes.clear()
    await written(engine, context.extended(first.segment), params(session="a", max_tokens=1))
    assert sizes == [1]


async def test_concurrent_sessions_all_start_from_a_cached_prompt(engine: TorchEngine) -> None:
    """The prompt was read before, by a call that ended at it; each of several calls extends a copy."""
    context = await prompt(engine)
    num_tokens = len(context.pieces[0].token_ids)
    await written(engine, context, params(session="a", max_tokens=1))
    calls = [
        written(
            engine, context, params(sampling=SamplingParams(1.0, 1.0, 0, seed), session=f"{seed}")
        )
        for seed in range(4)
    ]
    for [generated] in await asyncio.gather(*calls):
        assert generated.num_cached_tokens == num_tokens


async def test_cache_stays_within_its_budget(checkpoint: Path, load: Load) -> None:
    engine = load(checkpoint, cache_bytes=200_000)
    for index in range(12):
        context = Context((await engine.encode(f"Day {index % 9}: Tom sells {index % 7} pens."),))
        await written(engine, context, params())
        assert engine.cache.num_bytes <= 200_000
    entries = engine.cache.prefixes
    assert 0 < len(entries) < 12
    assert engine.cache.num_bytes == sum(prefix.num_bytes for prefix in entries)
    info = await engine.info()
    assert (info.cache_bytes, info.max_cache_bytes) == (engine.cache.num_bytes, 200_000)


async def test_out_of_memory_refuses(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context((await engine.encode("Day 1: Tom sells 3 pens."),))
    before = await written(engine, context, params())
    assert len(engine.cache.prefixes) > 0
    forward_step, sizes = engine.lm.forward_step, list[int]()

    def no_memory(*arguments: object) -> NoReturn:
        sizes.append(len(engine.cache.prefixes))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine.lm, "forward_step", no_memory)
    other = Context((await engine.encode("Day 2: Tom buys 4 pens."),))
    with pytest.raises(Overloaded, match="no memory left"):
        await written(engine, other, params())
    assert sizes == [1] and len(engine.cache.prefixes) == 0
    monkeypatch.setattr(engine.lm, "forward_step", forward_step)
    assert [one.segment for one in await written(engine, context, params())] == [
        one.segment for one in before
    ]


async def test_event_loop_runs_on_during_a_forward(engine: TorchEngine) -> None:
    during: list[int] = []
    ticks = 0

    def wait(_: list[int]) -> None:
        before = ticks
        time.sleep(0.3)
        during.append(ticks - before)

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    before_each_step(engine, wait)
    ticking = asyncio.create_task(tick())
    await written(engine, await prompt(engine), params(max_tokens=2))
    ticking.cancel()
    assert min(during) >= 5


async def test_closing_a_stream_stops_the_model_between_two_tokens(engine: TorchEngine) -> None:
    context = await prompt(engine)
    sizes = sizes_of(engine)
    what = params(max_segments=0, max_tokens=400, max_segment_tokens=5)
    async with aclosing(engine.generate(context, what)) as stream:
        await anext(stream)
    seen = len(sizes)
    await written(engine, context, params(max_tokens=1))  # a turn of the engine's thread
    await asyncio.sleep(0.1)
    settled = len(sizes)
    await asyncio.sleep(0.1)
    assert len(sizes) == settled < seen + 100


async def test_bad_prompts_are_refused_by_name(engine: TorchEngine) -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        await engine.encode("  ")
    with pytest.raises(InvalidRequest, match="messages"):
        await engine.encode([Message("user", "")])
    with pytest.raises(InvalidRequest, match="context"):
        await written(engine, Context(()), GenerationParams(SamplingParams()))
