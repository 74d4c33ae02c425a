"""Propose, Verify and Ask over the wire: what the engine is given and answers, to the last bit."""

import shutil
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semspec.engine.protocol import Engine
from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import ContextTooLong, InternalError, InvalidRequest, Mismatch, Unavailable
from semspec.rpc.channel import ClientOptions
from semspec.rpc.clients import RemoteDrafter, RemoteTarget
from semspec.rpc.codec import generation, scoring
from semspec.rpc.contexts import LastContexts
from semspec.rpc.servicers import draft_service, target_service
from semspec.types import (
    ChoiceScores,
    Context,
    Distribution,
    GenerationParams,
    Proposal,
    SamplingParams,
    Segment,
    SegmentEnd,
    VerifiedTokens,
    Writer,
)
from semspec.v1 import target_pb2, types_pb2
from tests.engine.test_asking import CHATML
from tests.engine.test_equivalence import PROMPT
from tests.rpc.fakes import CONTEXT, HALVES, ORDER, PROPOSAL, SEGMENT, FakeEngine, serving
from tests.rpc.test_convert import contexts, durations, orders, probabilities, segments, text, token_ids, uint32

pytestmark = pytest.mark.slow
OPEN_IDS = (8, 9)

distributions = st.integers(1, 5).flatmap(
    lambda size: st.builds(
        Distribution, *[st.binary(min_size=4 * size, max_size=4 * size) for _ in ("token_ids", "probabilities")]
    )
)
proposals = st.lists(st.tuples(uint32, distributions)).flatmap(
    lambda pairs: st.builds(
        Proposal, st.just(tuple(one for one, _ in pairs)), st.just(tuple(other for _, other in pairs)), text, durations
    )
)


@given(contexts, token_ids, orders, st.integers(1, 2**32 - 1))
def test_propose_request_survives_the_wire(
    context: Context, open_ids: tuple[int, ...], params: GenerationParams, num_tokens: int
) -> None:
    sent = generation.propose_request_to_wire(context, open_ids, params, num_tokens).SerializeToString()
    received = generation.propose_request_from_wire(types_pb2.ProposeRequest.FromString(sent), LastContexts())
    assert received == (context, open_ids, GenerationParams(params.sampling, session=params.session), num_tokens)


@given(proposals)
def test_proposal_survives_the_wire(proposal: Proposal) -> None:
    sent = generation.proposal_to_wire(proposal).SerializeToString()
    assert generation.proposal_from_wire(types_pb2.Proposal.FromString(sent)) == proposal


@given(proposals, st.data())
def test_tree_survives_the_wire(proposal: Proposal, data: st.DataObject) -> None:
    parents = tuple(data.draw(st.integers(-1, index - 1)) for index in range(len(proposal.token_ids)))
    tree = replace(proposal, parents=parents)
    sent = generation.proposal_to_wire(tree).SerializeToString()
    assert generation.proposal_from_wire(types_pb2.Proposal.FromString(sent)) == tree


@given(contexts, token_ids, proposals, orders)
def test_verify_request_survives_the_wire(
    context: Context, open_ids: tuple[int, ...], proposal: Proposal, params: GenerationParams
) -> None:
    sent = scoring.verify_request_to_wire(context, open_ids, proposal, params).SerializeToString()
    received = scoring.verify_request_from_wire(target_pb2.VerifyRequest.FromString(sent), LastContexts())
    assert received == (context, open_ids, proposal, replace(params, want_states=False, num_logprobs=None, grammar=""))


@given(
    st.builds(
        VerifiedTokens,
        st.lists(segments).map(tuple),
        token_ids,
        uint32,
        durations,
        num_cached_tokens=st.none() | uint32,
    )
)
def test_verified_survives_the_wire(verified: VerifiedTokens) -> None:
    sent = scoring.verify_response_to_wire(verified).SerializeToString()
    received = scoring.verify_response_from_wire(target_pb2.VerifyResponse.FromString(sent), verified.num_accepted)
    assert received == verified and received.num_cached_tokens == verified.num_cached_tokens


@given(contexts, text.filter(str.strip), text, st.lists(text, min_size=1), text)
def test_ask_request_survives_the_wire(
    context: Context, question: str, prefill: str, options: list[str], session: str
) -> None:
    sent = scoring.ask_request_to_wire(context, question, prefill, options, session).SerializeToString()
    received = scoring.ask_request_from_wire(target_pb2.AskRequest.FromString(sent), LastContexts())
    assert received == (context, question, prefill, options, session)


@given(st.builds(ChoiceScores, st.lists(probabilities).map(tuple), text, durations))
def test_reply_survives_the_wire_to_the_last_bit(reply: ChoiceScores) -> None:
    sent = scoring.ask_response_to_wire(reply).SerializeToString()
    assert scoring.ask_response_from_wire(target_pb2.AskResponse.FromString(sent), len(reply.probabilities)) == reply


Spoil = Callable[..., object]


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda m: m.ClearField("context"), "context"),
        (lambda m: m.ClearField("sampling"), "sampling.top_p"),
        (lambda m: m.ClearField("num_tokens"), "num_tokens"),
    ],
)
def test_propose_request_is_refused_by_field(spoil: Spoil, field: str) -> None:
    message = generation.propose_request_to_wire(CONTEXT, OPEN_IDS, ORDER, 4)
    spoil(message)
    with pytest.raises(InvalidRequest) as refusal:
        generation.propose_request_from_wire(message, LastContexts())
    assert refusal.value.parameter == field


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda m: m.ClearField("context"), "context"),
        (lambda m: m.ClearField("segmentation"), "segmentation"),
        (lambda m: m.ClearField("max_tokens"), "max_tokens"),
        (lambda m: m.ClearField("max_segment_tokens"), "max_segment_tokens"),
        (lambda m: setattr(m.sampling, "temperature", -1), "sampling.temperature"),
        (lambda m: m.proposal.token_ids.append(1), "proposal.distributions"),
        (lambda m: m.proposal.distributions.pop(), "proposal.distributions"),
        (lambda m: m.proposal.parents.append(-1), "proposal.parents"),
        (lambda m: m.proposal.parents.extend([-1, 1]), "proposal.parents[1]"),
        (lambda m: m.proposal.parents.extend([-2, 0]), "proposal.parents[0]"),
        (lambda m: m.proposal.distributions[1].ClearField("token_ids"), "proposal.distributions[1].token_ids"),
        (
            lambda m: setattr(m.proposal.distributions[0], "token_ids", b"1234567"),
            "proposal.distributions[0].token_ids",
        ),
        (
            lambda m: setattr(m.proposal.distributions[0], "probabilities", b""),
            "proposal.distributions[0].probabilities",
        ),
    ],
)
def test_verify_request_is_refused_by_field(spoil: Spoil, field: str) -> None:
    message = scoring.verify_request_to_wire(CONTEXT, OPEN_IDS, PROPOSAL, ORDER)
    spoil(message)
    with pytest.raises(InvalidRequest) as refusal:
        scoring.verify_request_from_wire(message, LastContexts())
    assert refusal.value.parameter == field
    assert field in refusal.value.message


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda m: m.ClearField("context"), "context"),
        (lambda m: m.ClearField("question"), "question"),
        (lambda m: m.ClearField("options"), "options"),
    ],
)
def test_ask_request_is_refused_by_field(spoil: Spoil, field: str) -> None:
    message = scoring.ask_request_to_wire(CONTEXT, "Is it so?", "It is ", ["so"], "")
    spoil(message)
    with pytest.raises(InvalidRequest) as refusal:
        scoring.ask_request_from_wire(message, LastContexts())
    assert refusal.value.parameter == field


@asynccontextmanager
async def served(draft: Engine, target: Engine) -> AsyncIterator[tuple[RemoteDrafter, RemoteTarget]]:
    async with serving(draft_service(lambda: draft)) as one, serving(target_service(lambda: target)) as other:
        drafter, remote = RemoteDrafter(one.address), RemoteTarget(other.address, ClientOptions(call_timeout_s=10))
        try:
            yield drafter, remote
        finally:
            await drafter.aclose()
            await remote.aclose()


async def test_remote_calls_answer_as_the_engine_does() -> None:
    engine = FakeEngine()
    async with served(engine, engine) as (drafter, target):
        assert await drafter.propose(CONTEXT, OPEN_IDS, ORDER, 3) == await engine.propose(CONTEXT, OPEN_IDS, ORDER, 3)
        for proposal in (PROPOSAL, Proposal((), (), "", 0.0)):
            verified = await target.verify_tokens(CONTEXT, OPEN_IDS, proposal, ORDER)
            assert verified == await engine.verify_tokens(CONTEXT, OPEN_IDS, proposal, ORDER)
        asked = (CONTEXT, "Is it so?", "<think>It is ", ["so", "not", "maybe"], "s")
        assert await target.score_choices(*asked) == await engine.score_choices(*asked)


@pytest.mark.parametrize("call", ["propose", "verify", "ask", "tokenize"])
async def test_calls_are_retried_while_the_service_is_away(call: str) -> None:
    class Recovering(FakeEngine):
        calls = 0

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
