"""Draft-ahead calls start after the others, for a limited time, and their output is unchanged."""

import asyncio
from pathlib import Path

import pytest

from semspec.engine import worker
from semspec.types import Context, GenerationParams
from tests.engine.support import Load, params, written


@pytest.mark.parametrize(("ahead_s", "order"), [(1e9, ["needed", "ahead"]), (0.0, ["ahead", "needed"])])
async def test_waiting_call_that_is_ahead_starts_after_one_that_is_needed(
    checkpoints: dict[str, Path], load: Load, monkeypatch: pytest.MonkeyPatch, ahead_s: float, order: list[str]
) -> None:
    monkeypatch.setattr(worker, "AHEAD_S", ahead_s)
    engine = load(checkpoints["qwen2"], cache_bytes=0, kv_bytes=1)  # room for one call at a time
    context = Context((await engine.encode("Tom has pens."),))
    ended: list[str] = []

    async def write(name: str, what: GenerationParams) -> None:
        await written(engine, context, what)
        ended.append(name)

    long = params(max_segments=0, max_tokens=60, max_segment_tokens=60)
    calls = [asyncio.create_task(write("first", long))]
    await asyncio.sleep(0)
    calls.append(asyncio.create_task(write("ahead", params(max_tokens=5, is_ahead=True))))
    await asyncio.sleep(0)
    calls.append(asyncio.create_task(write("needed", params(max_tokens=5))))
    await asyncio.gather(*calls)
    assert ended == ["first", *order]


async def test_running_call_that_is_ahead_is_evicted_before_a_younger_one(
    checkpoints: dict[str, Path], load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "AHEAD_S", 1e9)
    alone = load(checkpoints["qwen2"], cache_bytes=0)
    layout = alone.lm.decoder.layout  # type: ignore[union-attr]
    engine = load(checkpoints["qwen2"], cache_bytes=0, kv_bytes=3 * layout.num_bytes(256) + 1)
    texts = [f"Day {index}: Tom sells {index} pens. " * 30 for index in range(2)]
    started = [Context((await engine.encode(text),)) for text in texts]  # near 256 tokens, where buffers double
    what = params(max_segments=0, max_tokens=80, max_segment_tokens=80)
    ended: list[int] = []

    async def write(index: int, is_ahead: bool) -> list[str]:
        wanted = params(max_segments=0, max_tokens=80, max_segment_tokens=80, is_ahead=is_ahead)
        segments = await written(engine, started[index], wanted)
        ended.append(index)
        return [one.segment.text for one in segments]

    ahead = asyncio.create_task(write(0, True))
    await asyncio.sleep(0)
    texts_written = await asyncio.gather(ahead, write(1, False))
    assert ended == [1, 0]
    for context, mine in zip(started, texts_written, strict=True):
        assert mine == [one.segment.text for one in await written(alone, context, what)]
