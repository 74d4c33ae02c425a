"""Core to wire to core is the identity; what is malformed is refused by name."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semspec.clustering.equivalence import Alternatives
from semspec.errors import InvalidRequest, Mismatch
from semspec.rpc.codec import common, generation, handshake, scoring
from semspec.rpc.contexts import LastContexts
from semspec.types import (
    LEAST_POSITIVE,
    SURPRISAL_FEATURES,
    ChoiceScores,
    Context,
    Conversation,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    Message,
    ModelInfo,
    OperatingPoint,
    Penalties,
    Piece,
    Prompt,
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
from tests.rpc.fakes import CONTEXT, LOGPROBS, ORDER, PROPOSAL, SEGMENT, STATES, SURPRISAL

POINTS = (
    OperatingPoint(0.0, 1.0, 1.0, 1.0, 3.1),
    OperatingPoint(0.5, 0.8, None, 0.0, None),
    OperatingPoint(None, 0.7, 0.9, None, 0.0),
)
READING = SegmentScore(STATES, SURPRISAL, 5, 0.0)

uint32 = st.integers(0, 2**32 - 1)
single = st.floats(width=32, allow_nan=False, allow_infinity=False)
text = st.text(st.characters(codec="utf-8"))
token_ids = st.lists(uint32).map(tuple)
prompts = st.builds(Piece, text, token_ids, text)
segments = st.builds(
    Segment, text, token_ids, text, st.sampled_from([Writer.DRAFT, Writer.TARGET]), st.sampled_from(SegmentEnd)
)
contexts = st.builds(Context, st.lists(prompts | segments, min_size=1).map(tuple))
samplings = st.builds(
    SamplingParams,
    st.just(0.0) | st.floats(LEAST_POSITIVE, 1e9),
    st.floats(LEAST_POSITIVE, 1),
    uint32,
    st.integers(0, 2**64 - 1),
    st.floats(0, 1),
)
orders = st.builds(
    GenerationParams,
    samplings,
    st.sampled_from(Segmentation),
    uint32,
    st.integers(1, 2**32 - 1),
    st.integers(1, 2**32 - 1),
    st.booleans(),
    st.none() | st.integers(0, 20),
    text,
    grammar=text,
)
states = st.tuples(st.integers(1, 4), st.integers(1, 8)).flatmap(
    lambda shape: st.builds(
        States, st.binary(min_size=4 * math.prod(shape), max_size=4 * math.prod(shape)), st.just(shape), text
    )
)
durations = st.floats(0, width=32, allow_infinity=False)
surprisals = st.tuples(*[single] * len(SURPRISAL_FEATURES))
probabilities = st.floats(0, 1)
log_probabilities = st.floats(-1e300, 0)
alternatives = st.lists(st.builds(TokenLogprob, uint32, st.binary(), log_probabilities), max_size=3).map(tuple)
token_logprobs = st.builds(TokenLogprob, uint32, st.binary(), log_probabilities, alternatives)


@given(contexts, orders)
def test_write_request_survives_the_wire(context: Context, params: GenerationParams) -> None:
    sent = generation.write_request_to_wire(context, params).SerializeToString()
    assert generation.write_request_from_wire(types_pb2.WriteRequest.FromString(sent), LastContexts()) == (
        context,
        params,
    )


num_cached = st.none() | uint32
generated = st.builds(
    GeneratedSegment,
    segments.filter(lambda segment: segment.token_ids),
    st.none() | states,
    durations,
    num_cached_tokens=num_cached,
)


@given(generated, st.data())
def test_written_survives_the_wire(written: GeneratedSegment, data: st.DataObject) -> None:
    num_tokens = len(written.segment.token_ids)
    if num_tokens:  # a segment that a model wrote always has some
        logprobs = st.lists(token_logprobs, min_size=num_tokens, max_size=num_tokens).map(tuple)
        written = replace(written, logprobs=data.draw(st.none() | logprobs))
    sent = generation.written_to_wire(written).SerializeToString()
    received = generation.written_from_wire(types_pb2.WriteResponse.FromString(sent))
    assert received == written and received.num_cached_tokens == written.num_cached_tokens


@given(contexts, st.lists(segments, min_size=1), text, text)
def test_read_request_survives_the_wire(context: Context, read: list[Segment], session: str, digest: str) -> None:
    sent = scoring.read_request_to_wire(context, read, session, digest).SerializeToString()
    assert scoring.read_request_from_wire(target_pb2.ReadRequest.FromString(sent), LastContexts()) == (
        context,
        read,
        session,
        digest,
    )


@given(st.lists(st.builds(SegmentScore, states, surprisals, uint32, st.just(2.5)), max_size=3), num_cached)
def test_readings_survive_the_wire(readings: list[SegmentScore], num_cached_tokens: int | None) -> None:
    readings = [replace(reading, num_cached_tokens=num_cached_tokens) for reading in readings]
    sent = scoring.read_response_to_wire(readings).SerializeToString()
    received = scoring.read_response_from_wire(target_pb2.ReadResponse.FromString(sent))
    assert received == readings and {one.num_cached_tokens for one in received} <= {num_cached_tokens}


@given(
    st.lists(
        st.tuples(states, st.builds(SegmentScore, states, surprisals, uint32, st.just(0.0))), min_size=1, max_size=3
    ),
    text,
)
def test_judge_request_survives_the_wire(pairs: list[tuple[States, SegmentScore]], probes: str) -> None:
    drafted, readings = [one for one, _ in pairs], [other for _, other in pairs]
    sent = scoring.judge_request_to_wire(drafted, readings, probes).SerializeToString()
    assert scoring.judge_request_from_wire(verifier_pb2.JudgeRequest.FromString(sent)) == (drafted, readings, probes)


@given(st.lists(st.builds(Judgement, probabilities, probabilities)))
def test_judgements_survive_the_wire_to_the_last_bit(judgements: list[Judgement]) -> None:
    sent = scoring.judge_response_to_wire(judgements).SerializeToString()
    assert scoring.judge_response_from_wire(verifier_pb2.JudgeResponse.FromString(sent)) == judgements


@given(text, text, st.lists(st.tuples(text, st.sampled_from(SegmentEnd)), min_size=1))
def test_cluster_request_survives_the_wire(question: str, reasoning: str, rows: list[tuple[str, SegmentEnd]]) -> None:
    ends = [end for _, end in rows]
    group = Alternatives("", question, reasoning, tuple(said for said, _ in rows))
    sent = scoring.cluster_request_to_wire(group, ends).SerializeToString()
    assert scoring.cluster_request_from_wire(verifier_pb2.ClusterRequest.FromString(sent)) == (group, ends)


@given(st.lists(st.none() | st.integers(0, 64)))
def test_clusters_survive_the_wire(clusters: list[int | None]) -> None:
    sent = scoring.cluster_response_to_wire(clusters).SerializeToString()
    assert scoring.cluster_response_from_wire(verifier_pb2.ClusterResponse.FromString(sent)) == clusters


messages = st.builds(Message, st.sampled_from(get_args(Role)), text, text, text)
token_prompts = st.builds(TokenIds, st.lists(uint32, min_size=1).map(tuple))


turns = st.lists(messages, min_size=1).map(tuple)
with_tools = st.builds(Conversation, turns, st.text("[]{}", min_size=1), st.text("[]{}"))
with_variables = st.builds(Conversation, turns, variables=st.text("[]{}", min_size=1))


@given(text | token_prompts | st.lists(messages, min_size=1) | with_tools | with_variables)
def test_encode_request_survives_the_wire(prompt: Prompt) -> None:
    assert generation.encode_request_from_wire(generation.encode_request_to_wire(prompt)) == prompt


@given(text)
def test_tokenize_request_survives_the_wire(asked: str) -> None:
    sent = generation.tokenize_request_to_wire(asked).SerializeToString()
    assert generation.tokenize_request_from_wire(target_pb2.TokenizeRequest.FromString(sent)) == asked


@given(st.lists(st.tuples(uint32, text, uint32, uint32)))
def test_tokens_survive_the_wire(rows: list[tuple[int, str, int, int]]) -> None:
    tokens = [Token(number, said, min(a, b), max(a, b)) for number, said, a, b in rows]
    sent = generation.tokenize_response_to_wire(tokens).SerializeToString()
    assert generation.tokenize_response_from_wire(target_pb2.TokenizeResponse.FromString(sent)) == tokens


def test_handshakes_survive_the_wire() -> None:
    model = replace(
        ModelInfo(
            "m",
            "f",
            "t",
            24,
            512,
            4096,
            "states-v1",
            (Segmentation.SENTENCE,),
            "0.1",
            True,
            chat_template="d",
            template_variables=("a", "b"),
        ),
        supports_grammars=True,
        supports_min_p=True,
        supports_penalties=True,
        num_token_ids=151_936,
    )
    segmentations = (Segmentation.PARAGRAPH, Segmentation.SENTENCE)
    alternatives = ("last-hidden", "surprisal")
    verifier = VerifierInfo("d", "t", "states-v1", segmentations, "p1", "p2", "0.1", alternatives, POINTS, "dt", "tt")
    verifier = replace(verifier, equivalence="a-model")
    assert handshake.model_info_from_wire(handshake.model_info_to_wire(model)) == model
    assert handshake.verifier_info_from_wire(handshake.verifier_info_to_wire(verifier)) == verifier


@pytest.mark.parametrize(
    ("members", "table"),
    [
        (Writer, common.WRITERS_TO_WIRE),
        (SegmentEnd, common.ENDS_TO_WIRE),
        (Segmentation, common.SEGMENTATIONS_TO_WIRE),
    ],
)
def test_every_member_of_an_enum_has_a_number_of_its_own(members: type[object], table: dict[object, int]) -> None:
    assert list(table) == list(members)  # type: ignore[call-overload]  # an enum's class iterates
    assert len(set(table.values())) == len(table)


def test_penalties_survive_the_wire() -> None:
    penalties = Penalties(-0.5, 1.5, 1.1, ((3, -100.0), (70_000, 0.25)))
    asked = replace(ORDER, penalties=penalties)
    sent = generation.write_request_to_wire(CONTEXT, asked).SerializeToString()
    assert generation.write_request_from_wire(types_pb2.WriteRequest.FromString(sent), LastContexts()) == (
        CONTEXT,
        asked,
    )
    assert not generation.write_request_to_wire(CONTEXT, ORDER).HasField("penalties")


def _write_request() -> types_pb2.WriteRequest:
    return generation.write_request_to_wire(Context((*CONTEXT.pieces, SEGMENT)), ORDER)


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda m: m.ClearField("context"), "context"),
        (lambda m: m.context[1].ClearField("writer"), "context[1].writer"),
        (lambda m: setattr(m.context[1], "writer", 9), "context[1].writer"),
        (lambda m: m.context[1].ClearField("end"), "context[1].end"),
        (lambda m: setattr(m.context[0], "end", types_pb2.SEGMENT_END_EOS), "context[0].end"),
        (lambda m: m.ClearField("segmentation"), "segmentation"),
        (lambda m: m.ClearField("max_tokens"), "max_tokens"),
        (lambda m: m.ClearField("max_segment_tokens"), "max_segment_tokens"),
        (lambda m: setattr(m.sampling, "temperature", math.nan), "sampling.temperature"),
        (lambda m: setattr(m.sampling, "temperature", -0.1), "sampling.temperature"),
        (lambda m: setattr(m.sampling, "min_p", 1.1), "sampling.min_p"),
        (lambda m: setattr(m.sampling, "temperature", math.inf), "sampling.temperature"),
        (lambda m: setattr(m.sampling, "top_p", 0.0), "sampling.top_p"),
        (lambda m: setattr(m.sampling, "top_p", 1.01), "sampling.top_p"),
        (lambda m: setattr(m.sampling, "top_p", math.nan), "sampling.top_p"),
        (lambda m: m.ClearField("sampling"), "sampling.top_p"),
        (lambda m: setattr(m, "num_logprobs", 21), "num_logprobs"),
        (lambda m: setattr(m.sampling, "temperature", 1e-300), "sampling.temperature"),
        (lambda m: setattr(m.sampling, "top_p", 1e-300), "sampling.top_p"),
        (lambda m: setattr(m.penalties, "presence", math.nan), "penalties.presence"),
        (lambda m: setattr(m.penalties, "frequency", 1e300), "penalties.frequency"),
        (lambda m: setattr(m.penalties, "repetition", 1e-300), "penalties.repetition"),
        (lambda m: setattr(m.penalties, "repetition", 1e300), "penalties.repetition"),
        (lambda m: setattr(m.penalties, "presence", 1.0), "penalties.repetition"),
        (lambda m: m.penalties.logit_bias.update({7: math.inf}), "penalties.7"),
    ],
)
def test_write_request_is_refused_by_field(spoil: Callable[[types_pb2.WriteRequest], object], field: str) -> None:
    message = _write_request()
    spoil(message)
    with pytest.raises(InvalidRequest) as refusal:
        generation.write_request_from_wire(message, LastContexts())
    assert refusal.value.parameter == field
    assert field in refusal.value.message


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda m: m.ClearField("draft_states"), "draft_states"),
        (lambda m: m.ClearField("readings"), "readings"),
        (lambda m: m.draft_states[0].pooled.ClearField("data_type"), "draft_states[0].pooled.data_type"),
        (lambda m: setattr(m.draft_states[0].pooled, "data", b"\0" * 23), "draft_states[0].pooled.data"),
        (lambda m: m.draft_states[0].pooled.shape.append(1), "draft_states[0].pooled.shape"),
        (lambda m: m.draft_states[0].pooled.ClearField("shape"), "draft_states[0].pooled.shape"),
        (lambda m: m.draft_states[0].pooled.shape.__setitem__(0, 0), "draft_states[0].pooled.shape"),
        (lambda m: m.readings[0].states.pooled.shape.__setitem__(0, 7), "readings[0].states.pooled.data"),
        (lambda m: m.readings[0].surprisal.shape.__setitem__(0, 3), "readings[0].surprisal.shape"),
        (lambda m: m.readings[0].ClearField("surprisal"), "readings[0].surprisal.shape"),
        (lambda m: setattr(m.readings[0].surprisal, "data", b""), "readings[0].surprisal.data"),
    ],
)
def test_judge_request_is_refused_by_field(spoil: Callable[[verifier_pb2.JudgeRequest], object], field: str) -> None:
    message = scoring.judge_request_to_wire([STATES], [READING])
    spoil(message)
    with pytest.raises(InvalidRequest) as refusal:
        scoring.judge_request_from_wire(message)
    assert refusal.value.parameter == field


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda m: m.ClearField("segments"), "segments"),
        (lambda m: m.ends.append(types_pb2.SEGMENT_END_EOS), "ends"),
        (lambda m: m.ends.__setitem__(1, 0), "ends[1]"),
        (lambda m: m.ends.__setitem__(0, 9), "ends[0]"),
    ],
)
def test_cluster_request_is_refused_by_field(
    spoil: Callable[[verifier_pb2.ClusterRequest], object], field: str
) -> None:
    group = Alternatives("", "How many?", "", ("One.", "Two."))
    message = scoring.cluster_request_to_wire(group, [SegmentEnd.BOUNDARY, SegmentEnd.EOS])
    spoil(message)
    with pytest.raises(InvalidRequest) as refusal:
        scoring.cluster_request_from_wire(message)
    assert refusal.value.parameter == field


def test_states_of_another_convention_do_not_match() -> None:
    message = scoring.judge_request_to_wire([STATES], [READING])
    message.draft_states[0].convention = "states-v0"
    with pytest.raises(Mismatch, match="states-v0") as refusal:
        scoring.judge_request_from_wire(message)
    assert refusal.value.parameter == "draft_states[0].convention"


def test_reading_a_prompt_as_a_segment_is_refused() -> None:
    message = scoring.read_request_to_wire(CONTEXT, [SEGMENT], "")
    message.segments[0].CopyFrom(message.context[0])
    with pytest.raises(InvalidRequest) as refusal:
        scoring.read_request_from_wire(message, LastContexts())
    assert refusal.value.parameter == "segments[0].writer"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (types_pb2.EncodeRequest(), "prompt"),
        (types_pb2.EncodeRequest(conversation=types_pb2.Conversation()), "conversation.messages"),
        (types_pb2.EncodeRequest(tokens=types_pb2.TokenIds()), "tokens.ids"),
        (generation.encode_request_to_wire([Message("function", "")]), "conversation.messages[0].role"),  # type: ignore[arg-type]
    ],
)
def test_encode_request_is_refused_by_field(message: types_pb2.EncodeRequest, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        generation.encode_request_from_wire(message)
    assert refusal.value.parameter == field


@pytest.mark.parametrize("writer", [types_pb2.WRITER_DRAFT, types_pb2.WRITER_TARGET])
def test_encoded_prompt_that_a_model_wrote_is_refused(writer: "types_pb2.Writer.ValueType") -> None:
    message = generation.encode_response_to_wire(CONTEXT.pieces[0])
    message.prompt.writer, message.prompt.end = writer, types_pb2.SEGMENT_END_BOUNDARY
    with pytest.raises(InvalidRequest) as refusal:
        generation.encode_response_from_wire(message)
    assert refusal.value.parameter == "prompt.writer"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.001])
@pytest.mark.parametrize(
    ("message", "decode"),
    [
        (generation.written_to_wire(GeneratedSegment(SEGMENT, None, 1.0)), generation.written_from_wire),
        (generation.proposal_to_wire(PROPOSAL), generation.proposal_from_wire),
        (scoring.read_response_to_wire([READING]), scoring.read_response_from_wire),
        (
            scoring.verify_response_to_wire(VerifiedTokens((SEGMENT,), (), 0, 1.0)),
            lambda message: scoring.verify_response_from_wire(message, 0),
        ),
        (
            scoring.ask_response_to_wire(ChoiceScores((1.0,), "yes", 1.0)),
            lambda message: scoring.ask_response_from_wire(message, 1),
        ),
    ],
    ids=["written", "proposal", "readings", "verified", "choices"],
)
def test_duration_that_cannot_be_is_refused(message: Any, decode: Callable[[Any], object], value: float) -> None:
    decode(message)
    odd = type(message)()
    odd.CopyFrom(message)
    odd.duration_ms = value
    with pytest.raises(InvalidRequest) as refusal:
        decode(odd)
    assert refusal.value.parameter == "duration_ms"


@pytest.mark.parametrize("value", [math.nan, -0.001, 1.001])
def test_judgement_that_is_no_probability_is_refused(value: float) -> None:
    message = scoring.judge_response_to_wire([Judgement(0.5, value)])
    with pytest.raises(InvalidRequest, match="target_probability"):
        scoring.judge_response_from_wire(message)


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda m: m.logprobs.pop(), "logprobs"),
        (lambda m: setattr(m.logprobs[1], "logprob", 0.01), "logprobs[1].logprob"),
        (lambda m: setattr(m.logprobs[1], "logprob", math.nan), "logprobs[1].logprob"),
        (lambda m: setattr(m.logprobs[0].alternatives[0], "logprob", -math.inf), "logprobs[0].alternatives[0].logprob"),
    ],
)
def test_logprobs_that_cannot_be_are_refused_by_field(
    spoil: Callable[[types_pb2.WriteResponse], object], field: str
) -> None:
    message = generation.written_to_wire(GeneratedSegment(SEGMENT, None, 1.0, LOGPROBS))
    spoil(message)
    with pytest.raises(InvalidRequest) as refusal:
        generation.written_from_wire(message)
    assert refusal.value.parameter == field


def test_token_that_stops_before_it_starts_is_refused() -> None:
    message = generation.tokenize_response_to_wire([Token(1, "a", 0, 1), Token(2, "b", 3, 2)])
    with pytest.raises(InvalidRequest) as refusal:
        generation.tokenize_response_from_wire(message)
    assert refusal.value.parameter == "tokens[1].stop"


@pytest.mark.parametrize(
    ("name", "value"),
    [("threshold", -0.1), ("threshold", math.inf), ("acceptance", 1.1), ("wrong_accepted", -1), ("speed_up", math.nan)],
)
def test_operating_point_that_cannot_be_is_refused_by_field(name: str, value: float) -> None:
    message = handshake.verifier_info_to_wire(VerifierInfo("d", "t", "states-v1", (), operating_points=POINTS))
    setattr(message.operating_points[2], name, value)
    with pytest.raises(InvalidRequest) as refusal:
        handshake.verifier_info_from_wire(message)
    assert refusal.value.parameter == f"operating_points[2].{name}"
