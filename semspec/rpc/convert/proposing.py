"""`Propose`: tokens out, each with the distribution it was drawn from."""

from collections.abc import Sequence

from semspec.rpc.convert.checks import check_positive, invalid
from semspec.rpc.convert.pieces import context_from_wire, put_piece
from semspec.rpc.convert.writing import sampling_from_wire, sampling_to_wire
from semspec.types import Context, Distribution, GenerationParams, Proposal
from semspec.v1 import types_pb2

_ENTRY_BYTES = 4


def propose_request_to_wire(
    context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
) -> types_pb2.ProposeRequest:
    """What the drafter is asked; of `params`, sampling and session are sent."""
    message = types_pb2.ProposeRequest(
        open_token_ids=open_ids,
        sampling=sampling_to_wire(params.sampling),
        num_tokens=num_tokens,
        session=params.session,
    )
    for piece in context.pieces:
        put_piece(message.context.add(), piece)
    return message


def propose_request_from_wire(
    message: types_pb2.ProposeRequest,
) -> tuple[Context, tuple[int, ...], GenerationParams, int]:
    """Context, open tokens, order and number of tokens of a `Propose` call."""
    check_positive(message.num_tokens, "num_tokens")
    params = GenerationParams(sampling_from_wire(message.sampling), session=message.session)
    return context_from_wire(message.context), tuple(message.open_token_ids), params, message.num_tokens


def proposal_to_wire(proposal: Proposal) -> types_pb2.Proposal:
    """The proposed tokens."""
    message = types_pb2.Proposal()
    put_proposal(message, proposal)
    return message


def put_proposal(message: types_pb2.Proposal, proposal: Proposal) -> None:
    """Fill in proposed tokens; an empty proposal is sent as such."""
    message.token_ids.extend(proposal.token_ids)
    message.tokenizer = proposal.tokenizer
    message.duration_ms = proposal.duration_ms
    for distribution in proposal.distributions:
        entry = message.distributions.add()
        entry.token_ids, entry.probabilities = distribution.token_ids, distribution.probabilities


def proposal_from_wire(message: types_pb2.Proposal, field: str = "") -> Proposal:
    """Proposed tokens, a distribution each; the bytes are taken as they are once their sizes agree."""
    path = f"{field}." if field else ""
    if len(message.distributions) != len(message.token_ids):
        complaint = f"{len(message.distributions)}, but {len(message.token_ids)} token_ids"
        raise invalid(f"{path}distributions", complaint)
    distributions = tuple(
        _distribution_from_wire(entry, f"{path}distributions[{i}]") for i, entry in enumerate(message.distributions)
    )
    return Proposal(tuple(message.token_ids), distributions, message.tokenizer, message.duration_ms)


def _distribution_from_wire(message: types_pb2.Distribution, field: str) -> Distribution:
    num_bytes = len(message.token_ids)
    if num_bytes == 0 or num_bytes % _ENTRY_BYTES:
        raise invalid(f"{field}.token_ids", f"{num_bytes} bytes, but an entry takes {_ENTRY_BYTES}, and one is needed")
    if len(message.probabilities) != num_bytes:
        raise invalid(f"{field}.probabilities", f"{len(message.probabilities)} bytes, but {num_bytes} of token_ids")
    return Distribution(message.token_ids, message.probabilities)
