"""Calls that share steps get what they get alone, whatever is evicted, split or cancelled between the steps; those that
are ahead of need start after the others, for a limited time."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from semspec.engine import worker
from semspec.engine.causal_lm import EngineName
from semspec.engine.steps import Feed
from semspec.engine.torch_engine import TorchEngine
from semspec.engine.worker import Scheduler
from semspec.errors import InternalError
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    Proposal,
    SamplingParams,
    Segment,
    SegmentScore,
    VerifiedTokens,
)
from tests.engine.support import (
    Load,
    assert_same,
    before_each_step,
    params,
    prompt,
    segments_of,
    steps_of,
    tensor,
    written,
)
from tests.helpers.gateway import eventually
from tests.vllm.support import assert_same_scores

AllKinds = tuple[list[GeneratedSegment], list[SegmentScore], Proposal, VerifiedTokens]


@pytest.fixture
async def alone(checkpoints: dict[str, Path], load: Load) -> TorchEngine:
    """Serves one call at a time in these tests, and keeps nothing between them."""
    return load(checkpoints["qwen2"], cache_bytes=0)


@pytest.fixture
async def batched(checkpoints: dict[str, Path], load: Load) -> TorchEngine:
    return load(checkpoints["qwen2"])


def with_step_tokens(engine: TorchEngine, step_tokens: int) -> None:
    engine.steps.scheduler = Scheduler(engine.cache, 4 << 30, step_tokens)


async def contexts(
    engine: TorchEngine, number: int, num_sentences: int | None = None
) -> list[Context]:
    """Of so many sentences each; None: of unequal length."""
    texts = [
        f"Day {i % 9}: Tom sells {i % 7} pens. " * (num_sentences or 1 + i % 5)
        for i in range(number)
    ]
    return [Context((await engine.encode(text),)) for text in texts]


def assert_same_streams(mine: list[GeneratedSegment], expected: list[GeneratedSegment]) -> None:
    assert [one.segment for one in mine] == [one.segment for one in expected]
    for one, other in zip(mine, expected, strict=True):
        assert_same(tensor(one.states), tensor(other.states))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["fast", "transformers"])
async def test_streams_that_share_steps_write_what_each_writes_alone(
    checkpoint: Path, load: Load, name: EngineName, temperature: float
) -> None:
    engine, reference = load(checkpoint, engine=name), load(checkpoint, cache_bytes=0)
    started, steps = await contexts(engine, 12), steps_of(engine)
    wanted = [
        params(
            sampling=SamplingParams(temperature, 0.95, 0, seed),
            max_segments=0,
            max_tokens=30,
            want_states=True,
        )
        for seed in range(12)
    ]
    together = await asyncio.gather(*map(written, [engine] * 12, started, wanted))
    assert max(map(len, steps)) >= 6
    for context, what, mine in zip(started, wanted, together, strict=True):
        assert_same_streams(mine, await written(reference, context, what))


async def test_mixed_calls_in_a_step_equal_alone(alone: TorchEngine, batched: TorchEngine) -> None:
    started = await contexts(alone, 8)
    what = params(max_segments=0, max_tokens=25, want_states=True, num_logprobs=2)
    segments = [await segments_of(alone, context, what) for context in started]
    proposals = [await alone.propose(context, (), what, 5) for context in started]

    async def all_kinds(engine: TorchEngine, index: int) -> AllKinds:
        context, own = started[index], segments[index]
        return await asyncio.gather(
            written(engine, context, what),
            engine.score(context, own),
            engine.propose(context, (), what, 5),
            engine.verify_tokens(context, (), proposals[index], what),
        )

    steps = steps_of(batched)
    together = await asyncio.gather(*(all_kinds(batched, index) for index in range(8)))
    assert any(1 in step and max(step) > 5 for step in steps), "tokens beside prompts"
    for index, (streams, scores, proposal, verified) in enumerate(together):
        other_streams, other_scores, other_proposal, other_verified = await all_kinds(alone, index)
        assert_same_streams(streams, other_streams)
        for one, other in zip(streams, other_streams, strict=True):
            assert logprobs(one) == pytest.approx(logprobs(other), rel=1e-3, abs=1e-4)
        assert_same_scores(scores, other_scores)
        assert proposal.token_ids == other_proposal.token_ids
        assert replace(verified, duration_ms=0) == replace(other_verified, duration_ms=0)


def logprobs(one: GeneratedSegment) -> list[float]:
    assert one.logprobs is not None
    return [token.logprob for token in one.logprobs]


@pytest.mark.parametrize("step_tokens", [2, 7, 64])
async def test_chunked_reading(alone: TorchEngine, batched: TorchEngine, step_tokens: int) -> None:
    context = await prompt(alone)
    segments = await segments_of(alone, context, params(max_segments=0))
    with_step_tokens(batched, step_tokens)
    steps = steps_of(batched)
    assert_same_scores(await batched.score(context, segments), await alone.score(context, segments))
    assert len(steps) > 2 and max(map(sum, steps)) == step_tokens


@pytest.mark.parametrize("num_buffers", [1, 3])
async def test_evicted_calls_are_computed_again_with_the_same_result(
    checkpoints: dict[str, Path], load: Load, alone: TorchEngine, num_buffers: int
) -> None:
    """Each call's second buffer, past 256 tokens, needs the memory of another call."""
    layout = alone.lm.decoder.layout  # type: ignore[union-attr]
    engine = load(
        checkpoints["qwen2"], cache_bytes=0, kv_bytes=num_buffers * layout.num_bytes(256) + 1
    )
    started = await contexts(engine, 6, num_sentences=30)
    lengths = [len(context.pieces[0].token_ids) for context in started]
    assert min(lengths) > 200 and max(lengths) < 256
    wanted = [
        params(
            sampling=SamplingParams(1.0, 1.0, 0, seed),
            max_segments=0,
            max_tokens=80,
            want_states=True,
        )
        for seed in range(6)
    ]
    steps = steps_of(engine)
    together = await asyncio.gather(*map(written, [engine] * 6, started, wanted))
    num_needed = sum(lengths)
    for context, what, mine in zip(started, wanted, together, strict=True):
        assert_same_streams(mine, await written(alone, context, what))
        num_needed += sum(len(one.segment.token_ids) for one in mine)
    if num_buffers > 1:
        assert sum(map(sum, steps)) > num_needed + 200, "something was evicted"


async def test_cancelled_stream_changes_no_other(alone: TorchEngine, batched: TorchEngine) -> None:
    started = await contexts(alone, 4)
    what = params(max_segments=0, max_tokens=60, max_segment_tokens=10)

    async def cancelled(context: Context) -> None:
        async with aclosing(batched.generate(context, replace(what, max_tokens=500))) as stream:
            await anext(stream)

    others = asyncio.gather(*(written(batched, context, what) for context in started))
    await asyncio.gather(*map(cancelled, started))
    for context, mine in zip(started, await others, strict=True):
        assert [one.segment for one in mine] == await segments_of(alone, context, what)


async def test_failing_call_fails_alone(alone: TorchEngine, batched: TorchEngine) -> None:
    started = await contexts(alone, 5)
    lengths = [len(context.pieces[0].token_ids) for context in started]
    assert lengths.count(lengths[2]) == 1

    def fail(sizes: list[int]) -> None:
        if lengths[2] in sizes:
            raise InternalError("no such kernel")

    before_each_step(batched, fail)
    results = await asyncio.gather(
        *(written(batched, context, params()) for context in started), return_exceptions=True
    )
    assert [isinstance(result, InternalError) for result in results] == [
        False,
        False,
        True,
        False,
        False,
    ]
    for index in (0, 1, 3, 4):
        expected = await segments_of(alone, started[index], params())
        assert [one.segment for one in results[index]] == expected  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["fast", "transformers"])
async def test_step_that_breaks_off_midway_feeds_nobody_twice(
    checkpoint: Path, load: Load, name: EngineName, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, reference = load(checkpoint, engine=name), load(checkpoint, cache_bytes=0)
    started = await contexts(engine, 4)
    decoder, calls = engine.lm.decoder, iter(range(1000))
    owner, method = (decoder, "_logits") if decoder else (engine.lm.model.model.norm, "forward")
    whole: Callable[[Tensor], Tensor] = getattr(owner, method)

    def breaking(hidden: Tensor) -> Tensor:
        if next(calls) in (1, 5, 13):
            raise RuntimeError("no such kernel")
        return whole(hidden)

    monkeypatch.setattr(owner, method, breaking)
    what = params(max_segments=0, max_tokens=20, want_states=True)
    together = await asyncio.gather(
        *(written(engine, context, what) for context in started), return_exceptions=True
    )
    for context, mine in zip(started, together, strict=True):
        if not isinstance(mine, BaseException):
            assert_same_streams(mine, await written(reference, context, what))
    assert sum(isinstance(one, BaseException) for one in together) < 3 and next(calls) > 14


@pytest.mark.parametrize(
    ("ahead_s", "order"), [(1e9, ["needed", "ahead"]), (0.0, ["ahead", "needed"])]
)
async def test_waiting_call_that_is_ahead_starts_after_one_that_is_needed(
    checkpoints: dict[str, Path],
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
    ahead_s: float,
    order: list[str],
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
    checkpoints: dict[str, Path], load: Load, alone: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "AHEAD_S", 1e9)
    layout = alone.lm.decoder.layout  # type: ignore[union-attr]
    engine = load(checkpoints["qwen2"], cache_bytes=0, kv_bytes=3 * layout.num_bytes(256) + 1)
    started = await contexts(engine, 2, num_sentences=30)  # near 256 tokens, where buffers double
    what = params(max_segments=0, max_tokens=80, max_segment_tokens=80)
    ended: list[int] = []

    async def write(index: int, is_ahead: bool) -> list[Segment]:
        segments = await segments_of(engine, started[index], replace(what, is_ahead=is_ahead))
        ended.append(index)
        return segments

    ahead = asyncio.create_task(write(0, True))
    await asyncio.sleep(0)
    mine = await asyncio.gather(ahead, write(1, False))
    assert [*mine] == [await segments_of(alone, context, what) for context in started]
    assert ended == [1, 0]


async def test_engine_is_busy_only_while_it_computes(alone: TorchEngine) -> None:
    may_go_on = threading.Event()
    may_go_on.set()
    before_each_step(alone, lambda _: may_go_on.wait(60))
    [context] = await contexts(alone, 1)
    async with aclosing(alone.generate(context, params(max_segments=2, max_tokens=20))) as stream:
        await anext(stream)
        await eventually(lambda: not alone.steps.is_busy)
        may_go_on.clear()
        scoring = asyncio.create_task(written(alone, context, params(max_tokens=20)))
        await eventually(lambda: alone.steps.is_busy)
        num_steps = alone.steps.num_steps
        await asyncio.sleep(0.05)
        assert (alone.steps.is_busy, alone.steps.num_steps) == (True, num_steps)
        scoring.cancel()  # which does not free the thread
        await asyncio.wait([scoring])
        assert alone.steps.is_busy
        may_go_on.set()
        await eventually(lambda: not alone.steps.is_busy)
        assert alone.steps.num_steps > num_steps


class DefectiveScheduler(Scheduler):
    """Fails once by a defect."""

    has_failed = False

    def plan(self, feeds: Sequence[Feed]) -> list[tuple[Feed, int]]:
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("a defect")
        return super().plan(feeds)


async def test_survives_a_defect(batched: TorchEngine, caplog: pytest.LogCaptureFixture) -> None:
    batched.steps.scheduler = DefectiveScheduler(batched.cache, 4 << 30)
    context, order = Context((await batched.encode("How many?"),)), params(max_segments=1)
    with pytest.raises(InternalError, match="the engine failed; see the service's log"):
        await written(batched, context, order)
    assert "the engine failed its current calls" in caplog.text
    assert await written(batched, context, order)
