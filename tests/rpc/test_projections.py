"""States leave the gateway's path: engines apply the first layer of the verifier's probes, and nothing else changes."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.decoding import Backends, Generation
from semspec.engine.torch_engine import TorchEngine
from semspec.probes.probe import load_probe
from semspec.probes.projection import Projection, Projections, ServedProbe
from semspec.rpc.clients import RemoteDrafter, RemoteTarget, RemoteVerifier
from semspec.types import Context, GenerationParams, SamplingParams, Segment, States
from tests.helpers.engines import PROMPT, Players, assert_same, behind_sockets, engines, trace
from tests.helpers.pools import GENEROUS_S
from tests.helpers.variants import PLAIN, changed


@pytest.fixture
async def players(checkpoints: dict[str, Path], tmp_path: Path) -> AsyncIterator[Players]:
    """Engines that began before there were probes in their folder."""
    async with engines(checkpoints, tmp_path, probes=tmp_path) as loaded:
        yield loaded


@asynccontextmanager
async def pooled(players: Players) -> AsyncIterator[Backends]:
    """The same behind pools of one replica each, with the projections of the verifier's probes."""
    async with behind_sockets(*players) as backends:
        assert isinstance(backends.verifier, RemoteVerifier)
        yield replace(backends, projections=(await backends.verifier.info()).projections)


def read_probes(players: Players) -> None:
    for engine in players[:2]:
        assert isinstance(engine, TorchEngine)
        engine._projections.read()


async def sent(
    backends: Backends, context: Context, segment: Segment, probes: str = ""
) -> tuple[States, States]:
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
    async with aclosing(
        backends.drafter.generate(context, GenerationParams(SamplingParams(seed=3)))
    ) as stream:
        return context, (await anext(stream)).segment


def num_whole(backends: Backends) -> list[int]:
    assert isinstance(backends.drafter, RemoteDrafter) and isinstance(backends.target, RemoteTarget)
    return [
        backends.drafter.pool.num_unprojected_states,
        backends.target.pool.num_unprojected_states,
    ]


@pytest.mark.parametrize("strategy", ["semantic", "last-hidden", "surprisal"])
async def test_trace_is_the_same_with_states_and_with_projections(
    players: Players, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Projections, "_rescan", lambda *_: None)
    async with pooled(players) as backends:
        context, _ = await a_segment(backends)
        plain = Generation(
            context, SamplingParams(1.0, 0.97, 0, 5), 120, session="s", strategy=PLAIN
        )
        generation = changed(plain, strategy, gamma=2)
        expected = await trace(generation, Backends(*players))
        assert_same(expected, await trace(generation, backends))
        whole = num_whole(backends)
        assert whole[0] > 0 and (whole[1] > 0) is (strategy != "surprisal"), (
            "its target's probe uses no states"
        )
        read_probes(players)
        assert_same(expected, await trace(generation, backends))
        assert num_whole(backends) == whole


def first_layer(probe: Path) -> Projection:
    projection = ServedProbe(load_probe(probe), "cpu").projection
    assert projection is not None
    return projection


async def test_engine_reads_probes_that_calls_name_and_it_does_not_hold(
    players: Players, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pooled(players) as backends:
        context, segment = await a_segment(backends)
        sampling = SamplingParams(1.0, 0.97, 0, 6)
        plain = Generation(context, sampling, 90, session="s", strategy=PLAIN)
        generation = changed(plain, "semantic")
        expected = await trace(generation, Backends(*players))
        assert not any(one.projection for one in await sent(backends, context, segment)), (
            "the first call does not wait"
        )
        assert caplog.text.count("this engine has no projection") == 2
        async with asyncio.timeout(GENEROUS_S):
            while not all(one.projection for one in await sent(backends, context, segment)):
                await asyncio.sleep(0.01)
        assert_same(expected, await trace(generation, backends))
        whole = num_whole(backends)
        assert all(whole)
        await sent(backends, context, segment)
        assert num_whole(backends) == whole
        assert caplog.text.count("this engine has no projection") == 2


async def test_files_are_read_when_they_change_and_forgotten_when_they_go(
    players: Players, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = players[1]
    assert isinstance(target, TorchEngine)
    target._projections.read()
    own = first_layer(tmp_path / "target.safetensors")
    last = tmp_path / "alternatives" / "last-hidden"
    held = {own.digest, first_layer(last / "target.safetensors").digest}
    assert set((await target.info()).projections) == held
    (last / "target.safetensors").write_bytes(b"damaged")
    shutil.copytree(last, tmp_path / "alternatives" / ".hidden")
    target._projections.read()
    assert (await target.info()).projections == (own.digest,)
    assert caplog.text.count("cannot read probe") == 1
    target._projections.read()
    assert caplog.text.count("cannot read probe") == 1, "nothing has changed"
    for suffix in (".json", ".safetensors"):
        (tmp_path / "target").with_suffix(suffix).rename(
            (tmp_path / "another name").with_suffix(suffix)
        )
    target._projections.read()
    assert (await target.info()).projections == (own.digest,)
    (tmp_path / "another name.json").unlink()
    target._projections.read()
    assert not (await target.info()).projections
