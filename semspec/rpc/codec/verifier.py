"""`Judge`: states of both models in, semantic probabilities out."""

from collections.abc import Sequence

from semspec.rpc.codec.common import check_filled, invalid, probability, put_states, states_from_wire
from semspec.rpc.codec.scoring import put_reading, reading_from_wire
from semspec.types import Judgement, SegmentScore, States
from semspec.v1 import verifier_pb2


def judge_request_to_wire(
    draft_states: Sequence[States], readings: Sequence[SegmentScore], probes: str = ""
) -> verifier_pb2.JudgeRequest:
    """Both models' views of the same segments, and which probes are to judge them."""
    message = verifier_pb2.JudgeRequest(probes=probes)
    for states in draft_states:
        put_states(message.draft_states.add(), states)
    for reading in readings:
        put_reading(message.readings.add(), reading)
    return message


def judge_request_from_wire(message: verifier_pb2.JudgeRequest) -> tuple[list[States], list[SegmentScore], str]:
    """Both models' views of the same segments, as many of the one as of the other and at least one, and which probes
    are to judge them."""
    check_filled(message.draft_states, "draft_states")
    if len(message.readings) != len(message.draft_states):
        raise invalid("readings", f"{len(message.readings)}, but {len(message.draft_states)} draft_states")
    draft_states = [states_from_wire(states, f"draft_states[{i}]") for i, states in enumerate(message.draft_states)]
    readings = [reading_from_wire(reading, f"readings[{i}]") for i, reading in enumerate(message.readings)]
    return draft_states, readings, message.probes


def judge_response_to_wire(judgements: Sequence[Judgement]) -> verifier_pb2.JudgeResponse:
    """One judgement a segment."""
    return verifier_pb2.JudgeResponse(
        judgements=[
            verifier_pb2.Judgement(
                draft_probability=judgement.draft_probability, target_probability=judgement.target_probability
            )
            for judgement in judgements
        ]
    )


def judge_response_from_wire(message: verifier_pb2.JudgeResponse) -> list[Judgement]:
    """One judgement a segment, both probabilities in [0, 1]."""
    return [
        Judgement(
            probability(judgement.draft_probability, f"judgements[{i}].draft_probability"),
            probability(judgement.target_probability, f"judgements[{i}].target_probability"),
        )
        for i, judgement in enumerate(message.judgements)
    ]
