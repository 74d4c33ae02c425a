"""Core to wire to core is the identity; what is malformed is refused by name."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
from google.protobuf.message import Message as Wire
from hypothesis import given
from hypothesis import strategies as st

from semspec.clustering.equivalence import Alternatives
from semspec.errors import InvalidRequest, Mismatch, SemspecError
from semspec.rpc.codec.messages import encode_request, message_of, read, read_prompt
from semspec.rpc.servicers import Backend, DraftServicer, TargetServicer, VerifierServicer
from semspec.types import (
    LEAST_POSITIVE,
    SURPRISAL_FEATURES,
    ChoiceScores,
    Context,
    Conversation,
    Distribution,
    Gate,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    Message,
    ModelInfo,
    OperatingPoint,
    Penalties,
    Piece,
    ProbeProjections,
    Prompt,
    Proposal,
    Retrieval,
    Role,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    SegmentScore,
    States,
    Token,
    TokenIds,
    TokenLogprob,
    VerifiedTokens,
    VerifierInfo,
    Writer,
)
from semspec.v1 import target_pb2, types_pb2, verifier_pb2
from tests.rpc.fakes import (
    CONTEXT,
    LOGPROBS,
    ORDER,
    PROPOSAL,
    SEGMENT,
    STATES,
    SURPRISAL,
    FakeEngine,
    FakeVerifier,
    request_about,
)

uint32 = st.integers(0, 2**32 - 1)
single = st.floats(width=32, allow_nan=False, allow_infinity=False)
text = st.text(st.characters(codec="utf-8"))
token_ids = st.lists(uint32).map(tuple)
prompts = st.builds(Piece, text, token_ids, text)
writers = st.sampled_from([Writer.DRAFT, Writer.TARGET])
segments = st.builds(Segment, text, token_ids, text, writers, st.sampled_from(SegmentEnd))
probabilities = st.floats(0, 1)
durations = st.floats(0, width=32, allow_infinity=False)
num_cached = st.none() | uint32
samplings = st.builds(
    SamplingParams,
    st.just(0.0) | st.floats(LEAST_POSITIVE, 1e9),
    st.floats(LEAST_POSITIVE, 1),
    uint32,
    st.integers(0, 2**64 - 1),
    probabilities,
)
bounded = st.floats(-1000, 1000)
biases = st.dictionaries(uint32, bounded).map(lambda one: tuple(sorted(one.items())))
penalties = st.builds(Penalties, bounded, bounded, st.floats(0.01, 100), biases)
positive = st.integers(1, 2**32 - 1)
segmentations = st.sampled_from(Segmentation)
budgets = {"max_segments": uint32, "max_tokens": positive, "max_segment_tokens": positive, "session": text}
orders = st.builds(
    GenerationParams,
    samplings,
    segmentations,
    want_states=st.booleans(),
    num_logprobs=st.none() | st.integers(0, 20),
    projection=text,
    is_ahead=st.booleans(),
    grammar=text,
    penalties=penalties,
    **budgets,
)
gates = st.builds(
    Gate, probabilities, probabilities, uint32, probabilities, positive, st.lists(st.booleans()).map(tuple)
)
retrievals = st.builds(Retrieval, st.binary(), st.sampled_from(["all", "context"]), st.booleans())
states = st.tuples(st.integers(1, 4), st.integers(1, 8)).flatmap(
    lambda shape: st.builds(
        States, st.binary(min_size=4 * math.prod(shape), max_size=4 * math.prod(shape)), st.just(shape), text, text
    )
)
surprisals = st.tuples(*[single] * len(SURPRISAL_FEATURES))
log_probabilities = st.floats(-1e300, 0)
alternatives = st.lists(st.builds(TokenLogprob, uint32, st.binary(), log_probabilities), max_size=3).map(tuple)
token_logprobs = st.builds(TokenLogprob, uint32, st.binary(), log_probabilities, alternatives)
generated = st.builds(
    GeneratedSegment,
    segments.filter(lambda segment: segment.token_ids),
    st.none() | states,
    durations,
    num_cached_tokens=num_cached,
).flatmap(
    lambda one: st.builds(
        replace,
        st.just(one),
        logprobs=st.none() | st.tuples(*[token_logprobs] * len(one.segment.token_ids)),
    )
)
distributions = st.integers(1, 5).flatmap(
    lambda size: st.builds(Distribution, *[st.binary(min_size=4 * size, max_size=4 * size)] * 2)
)
proposals = st.lists(st.tuples(uint32, distributions)).flatmap(
    lambda pairs: st.builds(
        Proposal,
        st.just(tuple(token for token, _ in pairs)),
        st.just(tuple(distribution for _, distribution in pairs)),
        text,
        durations,
        st.none() | uint32,
        st.just(()) | st.tuples(*[st.integers(-1, index - 1) for index in range(len(pairs))]),
    )
)
verified = st.builds(
    VerifiedTokens,
    st.lists(segments).map(tuple),
    token_ids,
    uint32,
    durations,
    st.none() | prompts,
    st.binary(),
    st.lists(st.booleans()).map(tuple),
    num_cached,
)
model_infos = st.builds(
    ModelInfo,
    text,
    text,
    text,
    uint32,
    uint32,
    uint32,
    text,
    st.lists(segmentations).map(tuple),
    text,
    **{f"supports_{name}": st.booleans() for name in ("choices", "logprobs", "grammars", "min_p", "penalties")},
    template_variables=st.lists(text).map(tuple),
    projections=st.lists(text).map(tuple),
    num_token_ids=uint32,
)
shares = st.none() | probabilities
points = st.builds(OperatingPoint, st.none() | durations, probabilities, shares, shares, st.none() | durations)
verifier_infos = st.builds(
    VerifierInfo,
    text,
    text,
    text,
    st.lists(segmentations).map(tuple),
    alternatives=st.lists(text).map(tuple),
    operating_points=st.lists(points).map(tuple),
    projections=st.lists(st.builds(ProbeProjections, text, text, text)).map(tuple),
    equivalence=text,
)
verifying = st.builds(GenerationParams, samplings, segmentations, gate=st.none() | gates, **budgets)
tokens = st.builds(lambda one, said, a, b: Token(one, said, min(a, b), max(a, b)), uint32, text, uint32, uint32)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (prompts, types_pb2.Piece),
        (segments, types_pb2.Piece),
        (states, types_pb2.States),
        (orders, types_pb2.WriteRequest),
        (verifying, target_pb2.VerifyRequest),
        (st.builds(GenerationParams, samplings, retrieval=st.none() | retrievals), types_pb2.ProposeRequest),
        (generated, types_pb2.WriteResponse),
        (st.builds(SegmentScore, states, surprisals, uint32, st.just(0.0)), target_pb2.Reading),
        (proposals, types_pb2.Proposal),
        (verified, target_pb2.VerifyResponse),
        (st.builds(ChoiceScores, st.lists(probabilities).map(tuple), text, durations), target_pb2.AskResponse),
        (st.builds(Judgement, probabilities, probabilities), verifier_pb2.Judgement),
        (tokens, target_pb2.Token),
        (model_infos, types_pb2.ModelInfo),
        (verifier_infos, verifier_pb2.VerifierInfo),
    ],
)  # fmt: skip
@given(st.data())
def test_value_survives_the_wire_to_the_last_bit(
    values: st.SearchStrategy[Any], kind: type[Wire], data: st.DataObject
) -> None:
    value = data.draw(values)
    received = read(type(value), kind.FromString(message_of(kind, value).SerializeToString()))
    assert repr(received) == repr(value), "also in fields that are not compared"


messages = st.builds(Message, st.sampled_from(get_args(Role)), text, text, text)
turns = st.lists(messages, min_size=1).map(tuple)
conversations = st.builds(Conversation, turns, st.text("[]{}", min_size=1), st.text("[]{}"))
with_variables = st.builds(Conversation, turns, variables=st.text("[]{}", min_size=1))
token_prompts = st.builds(TokenIds, st.lists(uint32, min_size=1).map(tuple))


@given(text | token_prompts | st.lists(messages, min_size=1) | conversations | with_variables)
def test_prompt_survives_the_wire(prompt: Prompt) -> None:
    assert read_prompt(encode_request(prompt)) == prompt


def test_penalties_that_change_nothing_are_not_sent() -> None:
    assert not message_of(types_pb2.WriteRequest, ORDER).HasField("penalties")


READING = SegmentScore(STATES, SURPRISAL, 5, 0.0)
GROUP = Alternatives("", "How many?", "", ("One.", "Two."))
ENDS = [SegmentEnd.BOUNDARY, SegmentEnd.EOS]
WHOLE = Context((*CONTEXT.pieces, SEGMENT))
REQUESTS: dict[str, Callable[[], Any]] = {
    "Write": lambda: request_about(types_pb2.WriteRequest, WHOLE, ORDER),
    "Propose": lambda: request_about(types_pb2.ProposeRequest, CONTEXT, ORDER, open_token_ids=(8, 9), num_tokens=4),
    "Read": lambda: request_about(target_pb2.ReadRequest, CONTEXT, segments=[SEGMENT]),
    "Verify": lambda: request_about(target_pb2.VerifyRequest, CONTEXT, ORDER, proposal=PROPOSAL),
    "Ask": lambda: request_about(target_pb2.AskRequest, CONTEXT, question="Is it so?", options=["so"]),
    "Encode": lambda: encode_request([Message("user", "How many?")]),
    "Judge": lambda: message_of(verifier_pb2.JudgeRequest, draft_states=[STATES], readings=[READING]),
    "Cluster": lambda: message_of(verifier_pb2.ClusterRequest, GROUP, ends=ENDS),
}


async def answer_to(method: str, request: Any) -> object:
    """Of a service of fakes."""
    engine, verifier = Backend[Any](), Backend[Any]()
    engine.provide(FakeEngine())
    verifier.provide(FakeVerifier())
    servicers = DraftServicer(engine), TargetServicer(engine), VerifierServicer(verifier)
    servicer = servicers[0 if method in ("Write", "Propose", "Encode") else 2 if method in ("Judge", "Cluster") else 1]
    result = getattr(servicer, method)(request, None)
    return await anext(result) if method == "Write" else await result


@pytest.mark.parametrize("method", REQUESTS)
async def test_sound_request_is_answered(method: str) -> None:
    await answer_to(method, REQUESTS[method]())


@pytest.mark.parametrize(
    ("method", "spoil", "field"),
    [
        ("Write", lambda m: m.ClearField("context"), "context"),
        ("Write", lambda m: m.context[1].ClearField("writer"), "context[1].writer"),
        ("Write", lambda m: setattr(m.context[1], "writer", 9), "context[1].writer"),
        ("Write", lambda m: m.context[1].ClearField("end"), "context[1].end"),
        ("Write", lambda m: setattr(m.context[0], "end", types_pb2.SEGMENT_END_EOS), "context[0].end"),
        ("Write", lambda m: setattr(m.tail, "before", b"x"), "context"),
        ("Write", lambda m: m.ClearField("segmentation"), "segmentation"),
        ("Write", lambda m: m.ClearField("max_tokens"), "max_tokens"),
        ("Write", lambda m: m.ClearField("max_segment_tokens"), "max_segment_tokens"),
        ("Write", lambda m: setattr(m, "num_logprobs", 21), "num_logprobs"),
        ("Write", lambda m: setattr(m.sampling, "temperature", math.nan), "sampling.temperature"),
        ("Write", lambda m: setattr(m.sampling, "temperature", -0.1), "sampling.temperature"),
        ("Write", lambda m: setattr(m.sampling, "temperature", math.inf), "sampling.temperature"),
        ("Write", lambda m: setattr(m.sampling, "temperature", 1e-300), "sampling.temperature"),
        ("Write", lambda m: setattr(m.sampling, "min_p", 1.1), "sampling.min_p"),
        ("Write", lambda m: setattr(m.sampling, "top_p", 1e-300), "sampling.top_p"),
        ("Write", lambda m: setattr(m.sampling, "top_p", 1.01), "sampling.top_p"),
        ("Write", lambda m: setattr(m.sampling, "top_p", math.nan), "sampling.top_p"),
        ("Write", lambda m: m.ClearField("sampling"), "sampling.top_p"),
        ("Write", lambda m: setattr(m.penalties, "presence", math.nan), "penalties.presence"),
        ("Write", lambda m: setattr(m.penalties, "frequency", 1e300), "penalties.frequency"),
        ("Write", lambda m: setattr(m.penalties, "repetition", 1e-300), "penalties.repetition"),
        ("Write", lambda m: setattr(m.penalties, "repetition", 1e300), "penalties.repetition"),
        ("Write", lambda m: setattr(m.penalties, "presence", 1.0), "penalties.repetition"),
        ("Write", lambda m: m.penalties.logit_bias.update({7: math.inf}), "penalties.7"),
        ("Propose", lambda m: m.ClearField("context"), "context"),
        ("Propose", lambda m: m.ClearField("sampling"), "sampling.top_p"),
        ("Propose", lambda m: m.ClearField("num_tokens"), "num_tokens"),
        ("Propose", lambda m: setattr(m.retrieval, "source", "elsewhere"), "retrieval.source"),
        ("Read", lambda m: m.segments[0].CopyFrom(m.context[0]), "segments[0].writer"),
        ("Read", lambda m: m.ClearField("segments"), "segments"),
        ("Verify", lambda m: m.ClearField("context"), "context"),
        ("Verify", lambda m: m.ClearField("max_tokens"), "max_tokens"),
        ("Verify", lambda m: setattr(m.gate, "floor", 0.5), "gate.window"),
        ("Verify", lambda m: m.proposal.token_ids.append(1), "proposal.distributions"),
        ("Verify", lambda m: m.proposal.distributions.pop(), "proposal.distributions"),
        ("Verify", lambda m: m.proposal.parents.append(-1), "proposal.parents"),
        ("Verify", lambda m: m.proposal.parents.extend([-1, 1]), "proposal.parents[1]"),
        ("Verify", lambda m: m.proposal.parents.extend([-2, 0]), "proposal.parents[0]"),
        ("Verify", lambda m: m.proposal.distributions[1].Clear(), "proposal.distributions[1].token_ids"),
        (
            "Verify",
            lambda m: setattr(m.proposal.distributions[0], "token_ids", b"1234567"),
            "proposal.distributions[0].token_ids",
        ),
        (
            "Verify",
            lambda m: m.proposal.distributions[0].ClearField("probabilities"),
            "proposal.distributions[0].probabilities",
        ),
        ("Ask", lambda m: m.ClearField("context"), "context"),
        ("Ask", lambda m: m.ClearField("question"), "question"),
        ("Ask", lambda m: m.ClearField("options"), "options"),
        ("Encode", lambda m: m.Clear(), "prompt"),
        ("Encode", lambda m: m.conversation.ClearField("messages"), "conversation.messages"),
        ("Encode", lambda m: m.tokens.Clear() or m.tokens.SetInParent(), "tokens.ids"),
        ("Encode", lambda m: setattr(m.conversation.messages[0], "role", "function"), "conversation.messages[0].role"),
        ("Judge", lambda m: m.ClearField("draft_states"), "draft_states"),
        ("Judge", lambda m: m.ClearField("readings"), "readings"),
        ("Judge", lambda m: m.draft_states[0].pooled.ClearField("data_type"), "draft_states[0].pooled.data_type"),
        ("Judge", lambda m: setattr(m.draft_states[0].pooled, "data", b"\0" * 23), "draft_states[0].pooled.data"),
        ("Judge", lambda m: m.draft_states[0].pooled.shape.append(1), "draft_states[0].pooled.shape"),
        ("Judge", lambda m: m.draft_states[0].pooled.ClearField("shape"), "draft_states[0].pooled.shape"),
        ("Judge", lambda m: m.draft_states[0].pooled.shape.__setitem__(0, 0), "draft_states[0].pooled.shape"),
        ("Judge", lambda m: m.readings[0].states.pooled.shape.__setitem__(0, 7), "readings[0].states.pooled.data"),
        ("Judge", lambda m: m.readings[0].surprisal.shape.__setitem__(0, 3), "readings[0].surprisal.shape"),
        ("Judge", lambda m: m.readings[0].ClearField("surprisal"), "readings[0].surprisal.shape"),
        ("Judge", lambda m: setattr(m.readings[0].surprisal, "data", b""), "readings[0].surprisal.data"),
        ("Judge", lambda m: setattr(m.draft_states[0], "convention", "states-v0"), "draft_states[0].convention"),
        ("Cluster", lambda m: m.ClearField("segments"), "segments"),
        ("Cluster", lambda m: m.ends.append(types_pb2.SEGMENT_END_EOS), "ends"),
        ("Cluster", lambda m: m.ends.__setitem__(1, 0), "ends[1]"),
        ("Cluster", lambda m: m.ends.__setitem__(0, 9), "ends[0]"),
    ],
)
async def test_malformed_request_is_refused_by_field(method: str, spoil: Callable[[Any], object], field: str) -> None:
    request = REQUESTS[method]()
    spoil(request)
    with pytest.raises(SemspecError) as refusal:
        await answer_to(method, request)
    assert type(refusal.value) is (Mismatch if field.endswith("convention") else InvalidRequest)
    assert refusal.value.parameter == field
    assert field in refusal.value.message


WRITTEN = GeneratedSegment(SEGMENT, None, 1.0, LOGPROBS)
POINTS = (
    OperatingPoint(0.0, 1.0, 1.0, 1.0, 3.1),
    OperatingPoint(0.5, 0.8, None, 0.0, None),
    OperatingPoint(None, 0.7, 0.9, None, 0.0),
)
INFO = VerifierInfo("d", "t", "states-v1", (), operating_points=POINTS)


VALUES: dict[object, type[Wire]] = {
    WRITTEN: types_pb2.WriteResponse,
    PROPOSAL: types_pb2.Proposal,
    VerifiedTokens((SEGMENT,), (), 0, 1.0): target_pb2.VerifyResponse,
    ChoiceScores((1.0,), "yes", 1.0): target_pb2.AskResponse,
    Judgement(0.5, 0.5): verifier_pb2.Judgement,
    Token(2, "b", 2, 3): target_pb2.Token,
    INFO: verifier_pb2.VerifierInfo,
}
ODD_FIELDS: dict[type[Wire], dict[str, tuple[float, ...]]] = {
    types_pb2.WriteResponse: {
        "duration_ms": (math.nan, math.inf, -0.001),
        "logprobs[1].logprob": (0.01, math.nan),
        "logprobs[0].alternatives[0].logprob": (-math.inf,),
    },
    types_pb2.Proposal: {"duration_ms": (math.nan, math.inf, -0.001)},
    target_pb2.VerifyResponse: {"duration_ms": (math.nan, math.inf, -0.001)},
    target_pb2.AskResponse: {"duration_ms": (math.nan, math.inf, -0.001), "probabilities[0]": (1.1,)},
    verifier_pb2.Judgement: {"target_probability": (math.nan, -0.001, 1.001), "draft_probability": (1.1,)},
    target_pb2.Token: {"stop": (1,)},
    verifier_pb2.VerifierInfo: {
        "operating_points[2].threshold": (-0.1, math.inf),
        "operating_points[2].acceptance": (1.1,),
        "operating_points[2].wrong_accepted": (-1,),
        "operating_points[2].speed_up": (math.nan,),
    },
}


def set_field(message: Any, path: str, number: float) -> None:
    """Set the field at a path such as `logprobs[1].logprob`."""
    *parents, last = path.split(".")
    for name, _, index in (parent.partition("[") for parent in parents):
        message = getattr(message, name)[int(index.rstrip("]"))]
    name, _, index = last.partition("[")
    if index:
        getattr(message, name)[int(index.rstrip("]"))] = number
    else:
        setattr(message, name, number)


@pytest.mark.parametrize(("value", "kind"), VALUES.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_odd_number_is_refused_by_field(value: object, kind: type[Wire]) -> None:
    for path, numbers in ODD_FIELDS[kind].items():
        for number in numbers:
            message = message_of(kind, value)
            read(type(value), message)
            set_field(message, path, number)
            with pytest.raises(InvalidRequest) as refusal:
                read(type(value), message)
            assert refusal.value.parameter == path


def test_each_token_has_logprobs_or_none_has() -> None:
    message = message_of(types_pb2.WriteResponse, WRITTEN)
    message.logprobs.pop()
    with pytest.raises(InvalidRequest) as refusal:
        read(GeneratedSegment, message)
    assert refusal.value.parameter == "logprobs"
