"""States leave the gateway's path: engines apply the first layer of the verifier's probes, and nothing else changes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.decoding import Backends, Generation
from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.projection import Projection
from semspec.rpc.pool import PooledDrafter, PooledTarget, PooledVerifier
from semspec.rpc.pool import backends as pools
from semspec.rpc.servicers import draft_service, target_service, verifier_service
from semspec.types import Context, GenerationParams, SamplingParams, Segment, States
from tests.decoding.test_three_ways import PROMPT, Players, assert_same, engines, trace
from tests.rpc.fakes import serving
from tests.rpc.pools import GENEROUS_S, LENIENT


@pytest.fixture
async def players(checkpoints: dict[str, Path], tmp_path: Path) -> AsyncIterator[Players]:
    async with engines(checkpoints, tmp_path) as loaded:
        yield loaded


@asynccontextmanager
async def pooled(players: Players) -> AsyncIterator[Backends]:
    """The same behind pools of one replica each, with the projections of the verifier's probes."""
    draft, target, verifier = players
    async with AsyncExitStack() as stack:
        services = (draft_service(lambda: draft), target_service(lambda: target), verifier_service(lambda: verifier))
        addresses = [(await stack.enter_async_context(serving(replace(one, close=None)))).address for one in services]
        judge = await stack.enter_async_context(aclosing(PooledVerifier(addresses[2], LENIENT)))
        drafter = await stack.enter_async_context(aclosing(PooledDrafter(addresses[0], LENIENT, verifier=judge)))
        scorer = await stack.enter_async_context(aclosing(PooledTarget(addresses[1], LENIENT, verifier=judge)))
        yield Backends(drafter, scorer, judge, projections=(await judge.info()).projections)


async def sent(backends: Backends, context: Context, segment: Segment, probes: str = "") -> tuple[States, States]:
    """What draft and target send for the verifier."""
    own = next(one for one in backends.projections if one.probes == probes)
    params = GenerationParams(SamplingParams(seed=3), want_states=True, projection=own.draft)
    async with aclosing(backends.drafter.generate(context, params)) as stream:
        written = await anext(stream)
    [score] = await backends.target.score(context, [segment], projection=own.target)
    assert written.states is not None
    return written.states, score.states


async def a_segment(backends: Backends) -> tuple[Context, Segment]:
    context = Context((await backends.target.encode(PROMPT),))
    async with aclosing(backends.drafter.generate(context, GenerationParams(SamplingParams(seed=3)))) as stream:
        return context, (await anext(stream)).segment


async def until_projected(backends: Backends, context: Context, segment: Segment, probes: str = "") -> None:
    async with aclosing(_sent_again(backends, context, segment, probes)) as attempts:
        async for states in attempts:
            if all(one.projection for one in states):
                return


async def _sent_again(
    backends: Backends, context: Context, segment: Segment, probes: str
) -> AsyncGenerator[tuple[States, States], None]:
    for _ in range(10_000):
        yield await sent(backends, context, segment, probes)
    raise AssertionError("the engines got no projections")


@pytest.mark.parametrize("strategy", ["semantic", "last-hidden", "surprisal"])
async def test_trace_is_the_same_with_states_and_with_projections(players: Players, strategy: str) -> None:
    async with pooled(players) as backends:
        context, segment = await a_segment(backends)
        generation = Generation(context, SamplingParams(1.0, 0.97, 0, 5), 120, strategy, gamma=2, session="s")
        expected = await trace(generation, Backends(*players))
        assert_same(expected, await trace(generation, backends))  # the engines do not have the projections at first
        if strategy != "surprisal":
            await until_projected(backends, context, segment, "" if strategy == "semantic" else strategy)
        assert_same(expected, await trace(generation, backends))


async def test_projected_states_are_those_of_the_probe_and_a_few_hundred_numbers(players: Players) -> None:
    async with pooled(players) as backends:
        context, segment = await a_segment(backends)
        raw = await sent(
            replace(backends, projections=tuple(replace(one, draft="", target="") for one in backends.projections)),
            context,
            segment,
        )
        await until_projected(backends, context, segment)
        projected = await sent(backends, context, segment)
        for states, few in zip(raw, projected, strict=True):
            projection = players[2].projection(few.projection)
            assert not states.projection and few.shape == (1, 256) and few.model == states.model
            assert projection.of_any([few])[0].tolist() == pytest.approx(
                projection.of_any([states])[0].tolist(), abs=1e-4
            )


async def test_engine_that_restarted_is_given_the_projections_again(
    players: Players, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "SUPPLY_S", 0.0)
    async with pooled(players) as backends:
        context, segment = await a_segment(backends)
        generation = Generation(context, SamplingParams(1.0, 0.97, 0, 6), 90, session="s")
        expected = await trace(generation, backends)
        await until_projected(backends, context, segment)
        for engine in players[:2]:
            assert isinstance(engine, TransformersEngine)
            engine._projections._kept.clear()
        assert not any(one.projection for one in await sent(backends, context, segment))
        assert_same(expected, await trace(generation, backends))
        await until_projected(backends, context, segment)
        assert_same(expected, await trace(generation, backends))


async def test_replica_without_room_for_projections_sends_states(
    checkpoints: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "SUPPLY_S", 0.05)
    async with engines(checkpoints, tmp_path) as players:
        for engine in players[:2]:
            assert isinstance(engine, TransformersEngine)
            engine._projections._max_bytes = 0
        async with pooled(players) as backends:
            context, segment = await a_segment(backends)
            generation = Generation(context, SamplingParams(1.0, 0.97, 0, 7), 60, session="s")
            assert_same(await trace(generation, Backends(*players)), await trace(generation, backends))
            async with asyncio.timeout(GENEROUS_S):  # gRPC may lose the reason of a call that is refused while it sends
                while "raise SEMSPEC_*_PROJECTION_BYTES" not in caplog.text:
                    assert not any(one.projection for one in await sent(backends, context, segment))


async def test_projection_of_another_model_is_refused_by_name(players: Players) -> None:
    draft, target, verifier = players
    [own, *_] = (await verifier.info()).projections
    projection = verifier.projection(own.draft)
    model = (await target.info()).fingerprint
    with pytest.raises(
        Mismatch, match=f"{own.draft} is of states of {projection.spec.model}, this engine serves {model}"
    ):
        await target.project(projection.spec, parts(projection))
    with pytest.raises(Mismatch, match="rows up to"):
        await draft.project(replace(projection.spec, rows=(99,)), parts(projection))
    with pytest.raises(InvalidRequest, match="bytes, but the projection takes"):
        await draft.project(projection.spec, parts(projection, 1))
    with pytest.raises(InvalidRequest, match="has the digest"):
        await draft.project(replace(projection.spec, digest="another"), parts(projection))
    async with pooled(players) as backends:
        with pytest.raises(InvalidRequest, match="no probe has the projection 'unknown'"):
            assert isinstance(backends.verifier, PooledVerifier)
            await anext(backends.verifier.projection("unknown"))


async def parts(projection: Projection, limit: int | None = None) -> AsyncGenerator[bytes, None]:
    for part in list(projection.serialised())[:limit]:
        yield part


async def test_least_recently_used_projection_is_dropped(players: Players) -> None:
    target, verifier = players[1], players[2]
    assert isinstance(target, TransformersEngine)
    whole, last = (verifier.projection(one.target) for one in (await verifier.info()).projections if one.target)
    kept = target._projections
    kept._max_bytes = whole.nbytes
    await kept.keep(whole.spec, parts(whole))
    assert list(kept._kept) == [whole.spec.digest]
    await kept.keep(last.spec, parts(last))
    assert list(kept._kept) == [last.spec.digest]
    kept._max_bytes = whole.nbytes + last.nbytes
    await kept.keep(whole.spec, parts(whole))
    await kept.keep(last.spec, parts(last, 0))  # is kept already, so that nothing is read of it
    assert list(kept._kept) == [whole.spec.digest, last.spec.digest]
