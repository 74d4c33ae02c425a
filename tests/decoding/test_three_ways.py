"""The same generation on fakes, on engines in this process, and on either behind real sockets: the same trace."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from semspec.core import (
    Acceptance,
    Context,
    Generation,
    Judgement,
    Sampling,
    Segmentation,
    SegmentRecord,
    StageTimes,
    Strategy,
    Writer,
)
from semspec.decoding import Roles, decode
from semspec.engine.protocol import Engine
from semspec.engine.transformers_engine import TransformersEngine
from semspec.probes.features import num_features
from semspec.probes.probe import Probe, ProbeCard, save_probe
from semspec.probes.verifier import ProbeVerifier
from semspec.rpc.clients import ClientOptions, RemoteDrafter, RemoteTarget, RemoteVerifier
from semspec.rpc.server import ServiceServer
from semspec.rpc.servicers import draft_service, target_service, verifier_service
from semspec.settings import ServiceSettings
from tests.fakes import FakeModel, FakeVerifier

PROMPT = "Tom has pens: 25. Day 1: Tom sells 6 pens. How many pens does Tom have now?\n\n<think>\n\n"


@asynccontextmanager
async def behind_sockets(roles: Roles) -> AsyncIterator[Roles]:
    """The same roles, each behind a server of its own."""
    draft, target = roles.drafter, roles.target
    services = (
        (draft_service(lambda: draft), RemoteDrafter),  # type: ignore[arg-type,return-value]
        (target_service(lambda: target), RemoteTarget),  # type: ignore[arg-type,return-value]
        (verifier_service(lambda: roles.verifier), RemoteVerifier),
    )
    async with AsyncExitStack() as stack:
        clients = []
        for service, client_class in services:
            server = ServiceServer(replace(service, close=None), ServiceSettings(port=0, settle_s=0))  # type: ignore[type-var]
            await server.start()
            stack.push_async_callback(server.stop)
            await server.load()
            client = client_class(server.address, ClientOptions())
            stack.push_async_callback(client.aclose)
            clients.append(client)
        yield Roles(*clients)


@pytest.fixture(params=["fakes", "engines"])
async def roles(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Roles]:
    if request.param == "fakes":
        yield Roles(FakeModel(Writer.DRAFT, 10), FakeModel(Writer.TARGET, 10), FakeVerifier())
        return
    checkpoints: dict[str, Path] = request.getfixturevalue("checkpoints")
    draft = TransformersEngine.load(str(checkpoints["llama"]), writer=Writer.DRAFT, device="cpu")
    target = TransformersEngine.load(str(checkpoints["qwen2"]), writer=Writer.TARGET, device="cpu")
    yield Roles(draft, target, await random_probes(draft, target, tmp_path))
    await draft.aclose()
    await target.aclose()


async def random_probes(draft: Engine, target: Engine, folder: Path) -> ProbeVerifier:
    """Probes of the right shape that accept some and reject some."""
    torch.manual_seed(4)
    for role, engine, features in (("draft", draft, "states"), ("target", target, "states+surprisal")):
        info = await engine.info()
        shape = (info.num_layers + 1, info.hidden_size)
        card = ProbeCard(
            info.model,
            info.fingerprint,
            info.tokenizer,
            shape,
            features,
            "all",
            tuple(Segmentation),
            "cross",
            "none",  # type: ignore[arg-type]
        )
        save_probe(Probe(num_features(card.features, card.layers, shape)), card, folder / f"{role}.safetensors")
    return ProbeVerifier.load(folder / "draft.safetensors", folder / "target.safetensors")


async def trace(generation: Generation, roles: Roles) -> list[SegmentRecord]:
    """The records without times, and probabilities to what cached and recomputed states agree to."""
    events = [event async for event in decode(generation, roles)]
    return [
        replace(event, times=StageTimes(), judgement=rounded(event.judgement))
        for event in events
        if isinstance(event, SegmentRecord)
    ]


def rounded(judgement: Judgement | None) -> Judgement | None:
    if judgement is None:
        return None
    return Judgement(round(judgement.draft_probability, 4), round(judgement.target_probability, 4))


CASES: list[tuple[Strategy, int, Segmentation, Acceptance]] = [
    ("semantic", 1, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("semantic", 3, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("semantic", 2, Segmentation.SENTENCE, Acceptance("threshold", 1.0)),
    ("random", 2, Segmentation.PARAGRAPH, Acceptance("sample")),
    ("target", 1, Segmentation.SENTENCE, Acceptance()),
    ("draft", 1, Segmentation.PARAGRAPH, Acceptance()),
]


async def test_same_trace_in_process_and_over_grpc(roles: Roles) -> None:
    context = Context((await roles.target.encode(PROMPT),))
    verdicts = set()
    async with behind_sockets(roles) as remote:
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
            assert local and local == await trace(generation, remote)
            verdicts |= {record.accepted for record in local}
    assert verdicts == {True, False, None}


async def test_greedy_rejecting_loop_equals_the_target_alone(roles: Roles) -> None:
    context = Context((await roles.target.encode(PROMPT),))
    never = Acceptance("threshold", 1e9)
    greedy = Generation(context, Sampling(temperature=0.0), 120, "semantic", acceptance=never)
    alone = await trace(replace(greedy, strategy="target"), roles)
    assert [r.segment for r in await trace(greedy, roles)] == [r.segment for r in alone]
