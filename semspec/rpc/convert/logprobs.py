"""How likely a writer found its tokens: part of a `Write` response."""

from collections.abc import Sequence

from semspec.rpc.convert.checks import invalid
from semspec.types import TokenLogprob
from semspec.v1 import types_pb2


def put_logprobs(message: types_pb2.WriteResponse, logprobs: Sequence[TokenLogprob]) -> None:
    """Fill in the logprobs of a segment's tokens."""
    for logprob in logprobs:
        _put(message.logprobs.add(), logprob)


def _put(message: types_pb2.TokenLogprob, logprob: TokenLogprob) -> None:
    message.token_id, message.data, message.logprob = logprob.token_id, logprob.data, logprob.logprob
    for alternative in logprob.alternatives:
        _put(message.alternatives.add(), alternative)


def logprobs_from_wire(message: types_pb2.WriteResponse) -> tuple[TokenLogprob, ...] | None:
    """One a token of the segment, or None if there are none: a segment has a token at least."""
    if not message.logprobs:
        return None
    if len(message.logprobs) != len(message.segment.token_ids):
        raise invalid("logprobs", f"{len(message.logprobs)}, but {len(message.segment.token_ids)} segment.token_ids")
    return tuple(_from_wire(logprob, f"logprobs[{i}]") for i, logprob in enumerate(message.logprobs))


def _from_wire(message: types_pb2.TokenLogprob, field: str) -> TokenLogprob:
    if not float("-inf") < message.logprob <= 0:
        raise invalid(f"{field}.logprob", f"must be finite and at most 0, not {message.logprob}")
    alternatives = (_from_wire(other, f"{field}.alternatives[{i}]") for i, other in enumerate(message.alternatives))
    return TokenLogprob(message.token_id, message.data, message.logprob, tuple(alternatives))
