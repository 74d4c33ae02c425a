"""Messages of `Read`, `Verify`, `Ask`, `Judge` and `Cluster`."""

import struct
from collections.abc import Sequence
from dataclasses import asdict, replace

from semspec.clustering.equivalence import Alternatives
from semspec.rpc.codec.common import (
    ENDS_FROM_WIRE,
    ENDS_TO_WIRE,
    SEGMENTATIONS_TO_WIRE,
    check_filled,
    check_positive,
    context_from_wire,
    duration,
    invalid,
    known,
    num_cached_tokens,
    piece_from_wire,
    probability,
    put_context,
    put_piece,
    put_states,
    put_tensor,
    segment_from_wire,
    states_from_wire,
    tensor_from_wire,
)
from semspec.rpc.codec.generation import (
    params_from_wire,
    proposal_from_wire,
    put_proposal,
    sampling_to_wire,
)
from semspec.rpc.contexts import LastContexts
from semspec.types import (
    SURPRISAL_FEATURES,
    ChoiceScores,
    Context,
    Gate,
    GenerationParams,
    Judgement,
    Proposal,
    Segment,
    SegmentEnd,
    SegmentScore,
    States,
    VerifiedTokens,
)
from semspec.v1 import target_pb2, verifier_pb2

_SURPRISAL = struct.Struct(f"<{len(SURPRISAL_FEATURES)}f")


def put_reading(message: target_pb2.Reading, score: SegmentScore) -> None:
    """Fill in the score of one segment."""
    surprisal = struct.pack(f"<{len(score.surprisal)}f", *score.surprisal)
    put_states(message.states, score.states)
    put_tensor(message.surprisal, surprisal, (len(score.surprisal),))
    message.num_tokens = score.num_tokens


def reading_from_wire(message: target_pb2.Reading, field: str, duration_ms: float = 0.0) -> SegmentScore:
    """The score of one segment, its surprisal aligned with `SURPRISAL_FEATURES`."""
    expected = [len(SURPRISAL_FEATURES)]
    if list(message.surprisal.shape) != expected:
        raise invalid(f"{field}.surprisal.shape", f"must be {expected}, not {list(message.surprisal.shape)}")
    surprisal = _SURPRISAL.unpack(tensor_from_wire(message.surprisal, f"{field}.surprisal"))
    states = states_from_wire(message.states, f"{field}.states")
    return SegmentScore(states, surprisal, message.num_tokens, duration_ms)


def read_request_to_wire(
    context: Context, segments: Sequence[Segment], session: str, projection: str = "", before: bytes = b""
) -> target_pb2.ReadRequest:
    """The request of a `Read` call. `before` as for `put_context`."""
    message = target_pb2.ReadRequest(session=session, projection=projection)
    put_context(message, context, before)
    for segment in segments:
        put_piece(message.segments.add(), segment)
    return message


def read_request_from_wire(
    message: target_pb2.ReadRequest, kept: LastContexts
) -> tuple[Context, list[Segment], str, str]:
    """Context, segments (at least one), session hint and digest of the projection of a `Read` call."""
    check_filled(message.segments, "segments")
    segments = [segment_from_wire(piece, f"segments[{i}]") for i, piece in enumerate(message.segments)]
    return context_from_wire(message, kept), segments, message.session, message.projection


def read_response_to_wire(scores: Sequence[SegmentScore]) -> target_pb2.ReadResponse:
    """The scores from one forward pass."""
    message = target_pb2.ReadResponse()
    if scores:
        message = target_pb2.ReadResponse(
            duration_ms=scores[0].duration_ms, num_cached_tokens=scores[0].num_cached_tokens
        )
    for score in scores:
        put_reading(message.readings.add(), score)
    return message


def read_response_from_wire(message: target_pb2.ReadResponse) -> list[SegmentScore]:
    """The scores from one forward pass."""
    duration_ms, num_cached = duration(message.duration_ms, "duration_ms"), num_cached_tokens(message)
    scores = (reading_from_wire(one, f"readings[{i}]", duration_ms) for i, one in enumerate(message.readings))
    return [replace(score, num_cached_tokens=num_cached) for score in scores]


def verify_request_to_wire(
    context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams, before: bytes = b""
) -> target_pb2.VerifyRequest:
    """The request of a `Verify` call. `before` as for `put_context`."""
    message = target_pb2.VerifyRequest(
        open_token_ids=open_ids,
        sampling=sampling_to_wire(params.sampling),
        segmentation=SEGMENTATIONS_TO_WIRE[params.segmentation],
        max_segments=params.max_segments,
        max_tokens=params.max_tokens,
        max_segment_tokens=params.max_segment_tokens,
        session=params.session,
    )
    put_proposal(message.proposal, proposal)
    if params.gate is not None:
        message.gate.CopyFrom(target_pb2.Gate(**asdict(params.gate)))
    put_context(message, context, before)
    return message


def verify_request_from_wire(
    message: target_pb2.VerifyRequest, kept: LastContexts
) -> tuple[Context, tuple[int, ...], Proposal, GenerationParams]:
    """Context, open tokens, proposal and parameters of a `Verify` call."""
    params = params_from_wire(message)
    if message.HasField("gate"):
        params = replace(params, gate=_gate_from_wire(message.gate))
    proposal = proposal_from_wire(message.proposal, "proposal")
    return context_from_wire(message, kept), tuple(message.open_token_ids), proposal, params


def _gate_from_wire(message: target_pb2.Gate) -> Gate:
    check_positive(message.window, "gate.window")
    shares = (
        probability(value, f"gate.{name}")
        for name, value in (("entropy", message.entropy), ("floor", message.floor), ("density", message.density))
    )
    entropy, floor, density = shares
    return Gate(entropy, floor, message.top_k, density, message.window, tuple(message.recent))


def verify_response_to_wire(verified: VerifiedTokens) -> target_pb2.VerifyResponse:
    """The verified tokens."""
    message = target_pb2.VerifyResponse(
        open_token_ids=verified.open_ids,
        num_accepted=verified.num_accepted,
        duration_ms=verified.duration_ms,
        state=verified.state,
        mismatches=verified.mismatches,
        num_cached_tokens=verified.num_cached_tokens,
    )
    for segment in verified.segments:
        put_piece(message.segments.add(), segment)
    if verified.open_piece is not None:
        put_piece(message.open, verified.open_piece)
    return message


def verify_response_from_wire(message: target_pb2.VerifyResponse, num_proposed: int) -> VerifiedTokens:
    """The verified tokens of a proposal of `num_proposed` tokens."""
    if message.num_accepted > num_proposed:
        raise invalid("num_accepted", f"{message.num_accepted} of {num_proposed} proposed tokens")
    segments = tuple(segment_from_wire(piece, f"segments[{i}]") for i, piece in enumerate(message.segments))
    open_piece = piece_from_wire(message.open, "open") if message.HasField("open") else None
    open_ids = tuple(message.open_token_ids)
    return VerifiedTokens(
        segments,
        open_ids,
        message.num_accepted,
        duration(message.duration_ms, "duration_ms"),
        open_piece,
        message.state,
        tuple(message.mismatches),
        num_cached_tokens(message),
    )


def ask_request_to_wire(
    context: Context, question: str, prefill: str, options: Sequence[str], session: str, before: bytes = b""
) -> target_pb2.AskRequest:
    """The request of an `Ask` call. `before` as for `put_context`."""
    message = target_pb2.AskRequest(question=question, prefill=prefill, options=options, session=session)
    put_context(message, context, before)
    return message


def ask_request_from_wire(
    message: target_pb2.AskRequest, kept: LastContexts
) -> tuple[Context, str, str, list[str], str]:
    """Context, question, prefill, options (at least one) and session hint of an `Ask` call."""
    if not message.question.strip():
        raise invalid("question", "is empty")
    check_filled(message.options, "options")
    context = context_from_wire(message, kept)
    return context, message.question, message.prefill, list(message.options), message.session


def ask_response_to_wire(choices: ChoiceScores) -> target_pb2.AskResponse:
    """The probabilities of the options."""
    return target_pb2.AskResponse(
        probabilities=choices.probabilities, likeliest=choices.likeliest, duration_ms=choices.duration_ms
    )


def ask_response_from_wire(message: target_pb2.AskResponse, num_options: int) -> ChoiceScores:
    """The probability of each of `num_options` options."""
    if len(message.probabilities) != num_options:
        raise invalid("probabilities", f"{len(message.probabilities)}, but {num_options} options")
    for i, value in enumerate(message.probabilities):
        probability(value, f"probabilities[{i}]")
    duration_ms = duration(message.duration_ms, "duration_ms")
    return ChoiceScores(tuple(message.probabilities), message.likeliest, duration_ms)


def judge_request_to_wire(
    draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
) -> verifier_pb2.JudgeRequest:
    """States and scores of the same segments, and the name of the probes."""
    message = verifier_pb2.JudgeRequest(probes=probes)
    for states in draft_states:
        put_states(message.draft_states.add(), states)
    for score in scores:
        put_reading(message.readings.add(), score)
    return message


def judge_request_from_wire(message: verifier_pb2.JudgeRequest) -> tuple[list[States], list[SegmentScore], str]:
    """Draft states and target scores of the same segments, equally many and at least one, and the name of the
    probes."""
    check_filled(message.draft_states, "draft_states")
    if len(message.readings) != len(message.draft_states):
        raise invalid("readings", f"{len(message.readings)}, but {len(message.draft_states)} draft_states")
    draft_states = [states_from_wire(states, f"draft_states[{i}]") for i, states in enumerate(message.draft_states)]
    scores = [reading_from_wire(reading, f"readings[{i}]") for i, reading in enumerate(message.readings)]
    return draft_states, scores, message.probes


def judge_response_to_wire(judgements: Sequence[Judgement]) -> verifier_pb2.JudgeResponse:
    """One judgement per segment."""
    return verifier_pb2.JudgeResponse(
        judgements=[
            verifier_pb2.Judgement(
                draft_probability=judgement.draft_probability, target_probability=judgement.target_probability
            )
            for judgement in judgements
        ]
    )


def judge_response_from_wire(message: verifier_pb2.JudgeResponse) -> list[Judgement]:
    """One judgement per segment, both probabilities in [0, 1]."""
    return [
        Judgement(
            probability(judgement.draft_probability, f"judgements[{i}].draft_probability"),
            probability(judgement.target_probability, f"judgements[{i}].target_probability"),
        )
        for i, judgement in enumerate(message.judgements)
    ]


_UNKNOWN = -1
"""Cluster of a segment whose meaning is unknown."""


def cluster_request_to_wire(group: Alternatives, ends: Sequence[SegmentEnd]) -> verifier_pb2.ClusterRequest:
    """Alternatives and how they end."""
    return verifier_pb2.ClusterRequest(
        question=group.question,
        reasoning=group.reasoning,
        segments=group.segments,
        ends=[ENDS_TO_WIRE[end] for end in ends],
    )


def cluster_request_from_wire(message: verifier_pb2.ClusterRequest) -> tuple[Alternatives, list[SegmentEnd]]:
    """Alternatives, at least one, and how each ends."""
    check_filled(message.segments, "segments")
    if len(message.ends) != len(message.segments):
        raise invalid("ends", f"{len(message.ends)}, but {len(message.segments)} segments")
    ends = [known(ENDS_FROM_WIRE, end, f"ends[{i}]") for i, end in enumerate(message.ends)]
    return Alternatives("", message.question, message.reasoning, tuple(message.segments)), ends


def cluster_response_to_wire(clusters: Sequence[int | None]) -> verifier_pb2.ClusterResponse:
    """A number per segment."""
    return verifier_pb2.ClusterResponse(clusters=[_UNKNOWN if one is None else one for one in clusters])


def cluster_response_from_wire(message: verifier_pb2.ClusterResponse) -> list[int | None]:
    """A number per segment; None where the meaning is unknown."""
    return [None if one == _UNKNOWN else one for one in message.clusters]
