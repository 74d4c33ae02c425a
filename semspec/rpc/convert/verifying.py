"""`Verify`: proposed tokens in, what the target made of them out."""

from collections.abc import Sequence

from semspec.rpc.convert.checks import check_positive, invalid, known
from semspec.rpc.convert.enums import SEGMENTATIONS_FROM_WIRE, SEGMENTATIONS_TO_WIRE
from semspec.rpc.convert.pieces import context_from_wire, put_piece, segment_from_wire
from semspec.rpc.convert.proposing import proposal_from_wire, put_proposal
from semspec.rpc.convert.writing import sampling_from_wire, sampling_to_wire
from semspec.types import Context, GenerationParams, Proposal, VerifiedTokens
from semspec.v1 import target_pb2


def verify_request_to_wire(
    context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
) -> target_pb2.VerifyRequest:
    """What the target is asked to verify."""
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
    for piece in context.pieces:
        put_piece(message.context.add(), piece)
    return message


def verify_request_from_wire(
    message: target_pb2.VerifyRequest,
) -> tuple[Context, tuple[int, ...], Proposal, GenerationParams]:
    """Context, open tokens, proposal and order of a `Verify` call."""
    check_positive(message.max_tokens, "max_tokens")
    check_positive(message.max_segment_tokens, "max_segment_tokens")
    params = GenerationParams(
        sampling=sampling_from_wire(message.sampling),
        segmentation=known(SEGMENTATIONS_FROM_WIRE, message.segmentation, "segmentation"),
        max_segments=message.max_segments,
        max_tokens=message.max_tokens,
        max_segment_tokens=message.max_segment_tokens,
        session=message.session,
    )
    proposal = proposal_from_wire(message.proposal, "proposal")
    return context_from_wire(message.context), tuple(message.open_token_ids), proposal, params


def verify_response_to_wire(verified: VerifiedTokens) -> target_pb2.VerifyResponse:
    """What the target made of a proposal."""
    message = target_pb2.VerifyResponse(
        open_token_ids=verified.open_ids, num_accepted=verified.num_accepted, duration_ms=verified.duration_ms
    )
    for segment in verified.segments:
        put_piece(message.segments.add(), segment)
    return message


def verify_response_from_wire(message: target_pb2.VerifyResponse, num_proposed: int) -> VerifiedTokens:
    """What the target made of a proposal of `num_proposed` tokens."""
    if message.num_accepted > num_proposed:
        raise invalid("num_accepted", f"{message.num_accepted} of {num_proposed} proposed tokens")
    segments = tuple(segment_from_wire(piece, f"segments[{i}]") for i, piece in enumerate(message.segments))
    return VerifiedTokens(segments, tuple(message.open_token_ids), message.num_accepted, message.duration_ms)
