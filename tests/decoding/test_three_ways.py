"""The same generation on fakes, on engines in this process, and on either behind real sockets: the same trace."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semspec.core import (
    Acceptance,
    Context,
    Generation,
    Sampling,
    Segmentation,
    SegmentRecord,
    StageTimes,
    Strategy,
    Writer,
)
from semspec.decoding import Roles, Verifier, decode
from semspec.engine.protocol import Engine
from semspec.engine.transformers_engine import TransformersEngine
from semspec.rpc.clients import ClientOptions, RemoteDrafter, RemoteTarget, RemoteVerifier
from semspec.rpc.server import Service, ServiceServer
from semspec.rpc.servicers import draft_service, target_service, verifier_service
from semspec.settings import ServiceSettings
from tests.checkpoints import random_probes
from tests.fakes import FakeModel, FakeVerifier

PROMPT = "Tom has pens: 25. Day 1: Tom sells 6 pens. How many pens does Tom have now?\n\n<think>\n\n"


@asynccontextmanager
async def behind_sockets(draft: Engine, target: Engine, verifier: Verifier) -> AsyncIterator[Roles]:
    """The same roles, each behind a server of its own."""
    async with AsyncExitStack() as stack:

        async def serve(service: Service[Any]) -> str:
            settings = ServiceSettings.model_validate({"port": 0, "settle_s": 0})
            server = ServiceServer(replace(service, close=None), settings)
            await server.start()
            stack.push_async_callback(server.stop)
            await server.load()
            return server.address

        options = ClientOptions()
        clients = (
            RemoteDrafter(await serve(draft_service(lambda: draft)), options),
            RemoteTarget(await serve(target_service(lambda: target)), options),
            RemoteVerifier(await serve(verifier_service(lambda: verifier)), options),
        )
        for client in clients:
            stack.push_async_callback(client.aclose)
        yield Roles(*clients)


Players = tuple[Engine, Engine, Verifier]


@pytest.fixture(params=["fakes", "engines"])
async def players(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Players]:
    if request.param == "fakes":
        yield FakeModel(Writer.DRAFT, 10), FakeModel(Writer.TARGET, 10), FakeVerifier()
        return
    checkpoints: dict[str, Path] = request.getfixturevalue("checkpoints")
    draft = TransformersEngine.load(str(checkpoints["llama"]), writer=Writer.DRAFT, device="cpu")
    target = TransformersEngine.load(str(checkpoints["qwen2"]), writer=Writer.TARGET, device="cpu")
    yield draft, target, await random_probes(draft, target, tmp_path)
    await draft.aclose()
    await target.aclose()


async def trace(generation: Generation, roles: Roles) -> list[SegmentRecord]:
    """The records, without times."""
    events = [event async for event in decode(generation, roles)]
    return [replace(event, times=StageTimes()) for event in events if isinstance(event, SegmentRecord)]


def assert_same(one: list[SegmentRecord], other: list[SegmentRecord]) -> None:
    """Everything equal; probabilities as far as cached and recomputed states agree."""
    blank = [[replace(record, judgement=None) for record in records] for records in (one, other)]
    assert blank[0] == blank[1]
    for a, b in zip(one, other, strict=True):
        if a.judgement and b.judgement:
            assert a.judgement.draft_probability == pytest.approx(b.judgement.draft_probability, abs=1e-3)
            assert a.judgement.target_probability == pytest.approx(b.judgement.target_probability, abs=1e-3)
        else:
            assert a.judgement is b.judgement is None


CASES: list[tuple[Strategy, int, Segmentation, Acceptance]] = [
    ("semantic", 1, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("semantic", 3, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("semantic", 2, Segmentation.SENTENCE, Acceptance("threshold", 1.0)),
    ("random", 2, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("target", 1, Segmentation.SENTENCE, Acceptance()),
    ("draft", 1, Segmentation.PARAGRAPH, Acceptance()),
]


async def test_same_trace_in_process_and_over_grpc(players: Players) -> None:
    roles = Roles(*players)
    context = Context((await roles.target.encode(PROMPT),))
    verdicts = set()
    async with behind_sockets(*players) as remote:
        assert await remote.target.encode(PROMPT) == context.pieces[0]
        assert await remote.target.info() == await roles.target.info()
        assert await remote.verifier.info() == await roles.verifier.info()
        for seed, (strategy, gamma, segmentation, acceptance) in enumerate(CASES * 2):
            generation = Generation(
                context,
                Sampling(1.0, 0.97, 0, seed),
                150,
                strategy,
                gamma,
                segmentation,
                acceptance,
                session=f"s{seed}",
            )
            local = await trace(generation, roles)
            assert_same(local, await trace(generation, remote))
            verdicts |= {record.accepted for record in local}
    assert verdicts == {True, False, None}


async def test_greedy_rejecting_loop_equals_the_target_alone(players: Players) -> None:
    roles = Roles(*players)
    context = Context((await roles.target.encode(PROMPT),))
    never = Acceptance("threshold", 1e9)
    greedy = Generation(context, Sampling(temperature=0.0), 120, "semantic", acceptance=never)
    alone = await trace(replace(greedy, strategy="target"), roles)
    assert [r.segment for r in await trace(greedy, roles)] == [r.segment for r in alone]
