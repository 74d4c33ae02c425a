"""`Write`: an order in, segments out."""

import math

from semspec.rpc.convert.checks import check_positive, invalid, known
from semspec.rpc.convert.enums import SEGMENTATIONS_FROM_WIRE, SEGMENTATIONS_TO_WIRE
from semspec.rpc.convert.logprobs import logprobs_from_wire, put_logprobs
from semspec.rpc.convert.pieces import context_from_wire, put_piece, segment_from_wire
from semspec.rpc.convert.states import put_states, states_from_wire
from semspec.types import Context, GeneratedSegment, GenerationParams, SamplingParams
from semspec.v1 import types_pb2

MAX_LOGPROBS = 20
"""Most alternatives told at a token, as in OpenAI's interface."""


def write_request_to_wire(context: Context, params: GenerationParams) -> types_pb2.WriteRequest:
    """What the writing services are asked."""
    message = types_pb2.WriteRequest(
        sampling=sampling_to_wire(params.sampling),
        segmentation=SEGMENTATIONS_TO_WIRE[params.segmentation],
        max_segments=params.max_segments,
        max_tokens=params.max_tokens,
        max_segment_tokens=params.max_segment_tokens,
        want_states=params.want_states,
        num_logprobs=params.num_logprobs,
        session=params.session,
    )
    for piece in context.pieces:
        put_piece(message.context.add(), piece)
    return message


def write_request_from_wire(message: types_pb2.WriteRequest) -> tuple[Context, GenerationParams]:
    """The context and the order of a `Write` call."""
    check_positive(message.max_tokens, "max_tokens")
    check_positive(message.max_segment_tokens, "max_segment_tokens")
    params = GenerationParams(
        sampling=sampling_from_wire(message.sampling),
        segmentation=known(SEGMENTATIONS_FROM_WIRE, message.segmentation, "segmentation"),
        max_segments=message.max_segments,
        max_tokens=message.max_tokens,
        max_segment_tokens=message.max_segment_tokens,
        want_states=message.want_states,
        num_logprobs=_num_logprobs(message),
        session=message.session,
    )
    return context_from_wire(message.context), params


def _num_logprobs(message: types_pb2.WriteRequest) -> int | None:
    if not message.HasField("num_logprobs"):
        return None
    if message.num_logprobs > MAX_LOGPROBS:
        raise invalid("num_logprobs", f"must be at most {MAX_LOGPROBS}, not {message.num_logprobs}")
    return message.num_logprobs


def sampling_to_wire(sampling: SamplingParams) -> types_pb2.Sampling:
    """Sampling parameters."""
    return types_pb2.Sampling(
        temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, seed=sampling.seed
    )


def sampling_from_wire(message: types_pb2.Sampling) -> SamplingParams:
    """Sampling parameters, each in its range."""
    if not (math.isfinite(message.temperature) and message.temperature >= 0):
        raise invalid("sampling.temperature", f"must be at least 0, not {message.temperature}")
    if not 0 < message.top_p <= 1:
        raise invalid("sampling.top_p", f"must be above 0 and at most 1, not {message.top_p}")
    return SamplingParams(message.temperature, message.top_p, message.top_k, message.seed)


def written_to_wire(written: GeneratedSegment) -> types_pb2.WriteResponse:
    """One message of a `Write` stream."""
    message = types_pb2.WriteResponse(duration_ms=written.duration_ms)
    put_piece(message.segment, written.segment)
    if written.states is not None:
        put_states(message.states, written.states)
    if written.logprobs is not None:
        put_logprobs(message, written.logprobs)
    return message


def written_from_wire(message: types_pb2.WriteResponse) -> GeneratedSegment:
    """One message of a `Write` stream."""
    states = states_from_wire(message.states, "states") if message.HasField("states") else None
    segment = segment_from_wire(message.segment, "segment")
    return GeneratedSegment(segment, states, message.duration_ms, logprobs_from_wire(message))
