"""Propose, Verify and Ask over the wire: what the engine is given and answers, to the last bit."""

import shutil
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semspec.engine.protocol import Engine
from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import ContextTooLong, InternalError, InvalidRequest, Mismatch, Unavailable
from semspec.rpc.clients import RemoteDrafter, RemoteTarget
from semspec.rpc.connection import ClientOptions
from semspec.rpc.servicers import draft_service, target_service
from semspec.types import (
    ChoiceScores,
    Context,
    Distribution,
    Gate,
    GenerationParams,
    ModelInfo,
    Proposal,
    Retrieval,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    SegmentScore,
    VerifiedTokens,
    Writer,
)
from tests.engine.support import CHATML, PROMPT
from tests.rpc.fakes import CONTEXT, HALVES, ORDER, PROPOSAL, SEGMENT, FakeEngine, serving

pytestmark = pytest.mark.slow
OPEN_IDS = (8, 9)


@asynccontextmanager
async def served(draft: Engine, target: Engine) -> AsyncIterator[tuple[RemoteDrafter, RemoteTarget]]:
    async with serving(draft_service(lambda: draft)) as one, serving(target_service(lambda: target)) as other:
        drafter, remote = RemoteDrafter(one.address), RemoteTarget(other.address, ClientOptions(call_timeout_s=10))
        try:
            yield drafter, remote
        finally:
            await drafter.aclose()
            await remote.aclose()


class Recording(FakeEngine):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[object, ...]] = []

    async def propose(self, *given: Any) -> Proposal:
        self.given.append(given)
        return await super().propose(*given)

    async def score(self, *given: Any) -> list[SegmentScore]:
        self.given.append(given)
        return await super().score(*given)

    async def verify_tokens(self, *given: Any) -> VerifiedTokens:
        self.given.append(given)
        return await super().verify_tokens(*given)

    async def score_choices(self, *given: Any) -> ChoiceScores:
        self.given.append(given)
        return await super().score_choices(*given)


async def test_engine_gets_what_the_caller_gives_and_the_caller_what_it_answers() -> None:
    engine, local = Recording(), FakeEngine()
    params = GenerationParams(
        SamplingParams(0.5, 0.9, 7, 2**63, 0.1), Segmentation.SENTENCE, 5, 6, 4, session="s", gate=Gate(recent=(True,))
    )
    retrieving = GenerationParams(params.sampling, session="s", retrieval=Retrieval(b"state", "context", True))
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("propose", (CONTEXT, OPEN_IDS, retrieving, 3)),
        ("score", (CONTEXT, [SEGMENT, SEGMENT], "s", "a projection")),
        ("verify_tokens", (CONTEXT, OPEN_IDS, PROPOSAL, params)),
        ("verify_tokens", (CONTEXT, OPEN_IDS, Proposal((), (), "", 0.0), params)),
        ("score_choices", (CONTEXT, "Is it so?", "<think>It is ", ["so", "not", "maybe"], "s")),
    ]
    async with served(engine, engine) as (drafter, target):
        for name, given in calls:
            client = drafter if name == "propose" else target
            assert await getattr(client, name)(*given) == await getattr(local, name)(*given)
    assert engine.given == [given for _, given in calls]


@pytest.mark.parametrize("call", ["propose", "verify", "ask", "tokenize"])
async def test_calls_are_retried_while_the_service_is_away(call: str) -> None:
    class Recovering(FakeEngine):
        calls = 0

        async def info(self) -> ModelInfo:
            return await FakeEngine().info()

        def _fail(self) -> None:
            self.calls += 1
            if self.calls == 1:
                raise Unavailable("starting")

    engine = Recovering()
    async with served(engine, engine) as (drafter, target):
        if call == "propose":
            await drafter.propose(CONTEXT, (), ORDER, 1)
        elif call == "verify":
            await target.verify_tokens(CONTEXT, (), PROPOSAL, ORDER)
        elif call == "tokenize":
            await target.tokenize("Is it so?")
        else:
            await target.score_choices(CONTEXT, "Is it so?", "", ["so"])
    assert engine.calls == 2


async def test_malformed_answers_are_the_services_defect() -> None:
    class Confused(FakeEngine):
        async def propose(self, *_: object) -> Proposal:
            return Proposal((1, 2), (HALVES,), "tokens-1", 0.0)

        async def verify_tokens(self, *_: object) -> VerifiedTokens:
            return VerifiedTokens((SEGMENT,), (), 3, 0.0)

        async def score_choices(self, *_: object) -> ChoiceScores:
            return ChoiceScores((0.5, 0.5), "so", 0.0)

    async with served(Confused(), Confused()) as (drafter, target):
        for answer in (
            drafter.propose(CONTEXT, (), ORDER, 2),
            target.verify_tokens(CONTEXT, (), PROPOSAL, ORDER),
            target.score_choices(CONTEXT, "Is it so?", "", ["so"]),
        ):
            with pytest.raises(InternalError, match="malformed answer"):
                await answer


@pytest.mark.parametrize("open_ids", [(-1,), (2**32,)])
async def test_token_ids_that_protobuf_cannot_hold_are_the_callers_mistake(open_ids: Sequence[int]) -> None:
    async with served(FakeEngine(), FakeEngine()) as (drafter, target):
        for call in (
            drafter.propose(CONTEXT, open_ids, ORDER, 1),
            target.verify_tokens(CONTEXT, open_ids, PROPOSAL, ORDER),
        ):
            with pytest.raises(InvalidRequest):
                await call


@asynccontextmanager
async def loaded(checkpoints: dict[str, Path]) -> AsyncIterator[tuple[TransformersEngine, TransformersEngine]]:
    draft = TransformersEngine.load(str(checkpoints["llama"]), writer=Writer.DRAFT, device="cpu")
    target = TransformersEngine.load(str(checkpoints["qwen2"]), writer=Writer.TARGET, device="cpu")
    yield draft, target  # their servers free them


async def test_rounds_over_the_wire_equal_rounds_in_process(checkpoints: dict[str, Path]) -> None:
    async with loaded(checkpoints) as (draft, target), served(draft, target) as (drafter, remote):
        context = Context((await remote.encode(PROMPT),))
        open_ids: tuple[int, ...] = ()
        for sampling in (
            SamplingParams(0.6, 0.95, 0, 1),
            SamplingParams(1.0, 1.0, 0, 2),
            SamplingParams(0),
            SamplingParams(0.9, 1.0, 5, 3),
        ):
            params = GenerationParams(sampling, max_segments=0, max_segment_tokens=4)
            proposal = await drafter.propose(context, open_ids, params, 4)
            local = await draft.propose(context, open_ids, params, 4)
            assert replace(proposal, duration_ms=0) == replace(local, duration_ms=0)
            verified = await remote.verify_tokens(context, open_ids, proposal, params)
            same = await target.verify_tokens(context, open_ids, local, params)
            assert replace(verified, duration_ms=0) == replace(same, duration_ms=0)
            assert verified.duration_ms > 0
            if verified.segments and verified.segments[-1].end is SegmentEnd.EOS:
                break
            context, open_ids = context.extended(*verified.segments), verified.open_ids
        assert isinstance(context.pieces[-1], Segment)


async def test_asking_over_the_wire_equals_asking_in_process(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "asked"
    shutil.copytree(checkpoints["qwen2"], folder)
    (folder / "chat_template.jinja").write_text(CHATML)
    async with loaded({**checkpoints, "qwen2": folder}) as (draft, target), served(draft, target) as (_, remote):
        assert (await remote.info()).supports_choices
        asked = (Context((await remote.encode(PROMPT),)), "How many?", "<think>It is ", ["1", "7"])
        await target.score_choices(*asked)  # so that both of the following find the context fed
        reply, same = await remote.score_choices(*asked), await target.score_choices(*asked)
    assert replace(reply, duration_ms=0) == replace(same, duration_ms=0)
    assert reply.duration_ms > 0


async def test_refusals_of_the_engine_arrive_as_raised(checkpoints: dict[str, Path]) -> None:
    one = Distribution(struct.pack("<I", 5), struct.pack("<f", 1.0))
    async with loaded(checkpoints) as (draft, target), served(draft, target) as (drafter, remote):
        context = Context((await remote.encode(PROMPT),))
        params = GenerationParams(SamplingParams())
        with pytest.raises(Mismatch, match="different ordinary tokens"):
            await remote.verify_tokens(context, (), Proposal((5,), (one,), "another", 0.0), params)
        tokenizer = (await remote.info()).tokenizer
        with pytest.raises(InvalidRequest) as refusal:
            await remote.verify_tokens(context, (), Proposal((6,), (one,), tokenizer, 0.0), params)
        assert refusal.value.parameter == "proposal.distributions[0]"
        with pytest.raises(ContextTooLong):
            await drafter.propose(context, (5,) * 600, params, 1)
        with pytest.raises(Mismatch, match="drops earlier turns"):
            await remote.score_choices(context, "How many?", "", ["7"])
