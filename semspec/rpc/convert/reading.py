"""`Read`: segments in, what the target felt at them out."""

import struct
from collections.abc import Sequence

from semspec.rpc.convert.checks import check_filled, invalid
from semspec.rpc.convert.pieces import context_from_wire, put_piece, segment_from_wire
from semspec.rpc.convert.states import put_states, put_tensor, states_from_wire, tensor_from_wire
from semspec.types import SURPRISAL_FEATURES, Context, Segment, SegmentScore
from semspec.v1 import target_pb2

_SURPRISAL = struct.Struct(f"<{len(SURPRISAL_FEATURES)}f")


def put_reading(message: target_pb2.Reading, reading: SegmentScore) -> None:
    """Fill in one segment's reading."""
    surprisal = struct.pack(f"<{len(reading.surprisal)}f", *reading.surprisal)
    put_states(message.states, reading.states)
    put_tensor(message.surprisal, surprisal, (len(reading.surprisal),))
    message.num_tokens = reading.num_tokens


def reading_from_wire(message: target_pb2.Reading, field: str, duration_ms: float = 0.0) -> SegmentScore:
    """One segment's reading, its surprisal aligned with `SURPRISAL_FEATURES`."""
    expected = [len(SURPRISAL_FEATURES)]
    if list(message.surprisal.shape) != expected:
        raise invalid(f"{field}.surprisal.shape", f"must be {expected}, not {list(message.surprisal.shape)}")
    surprisal = _SURPRISAL.unpack(tensor_from_wire(message.surprisal, f"{field}.surprisal"))
    states = states_from_wire(message.states, f"{field}.states")
    return SegmentScore(states, surprisal, message.num_tokens, duration_ms)


def read_request_to_wire(context: Context, segments: Sequence[Segment], session: str) -> target_pb2.ReadRequest:
    """What the target is asked to read."""
    message = target_pb2.ReadRequest(session=session)
    for piece in context.pieces:
        put_piece(message.context.add(), piece)
    for segment in segments:
        put_piece(message.segments.add(), segment)
    return message


def read_request_from_wire(message: target_pb2.ReadRequest) -> tuple[Context, list[Segment], str]:
    """Context, segments (at least one) and session hint of a `Read` call."""
    check_filled(message.segments, "segments")
    segments = [segment_from_wire(piece, f"segments[{i}]") for i, piece in enumerate(message.segments)]
    return context_from_wire(message.context), segments, message.session


def read_response_to_wire(readings: Sequence[SegmentScore]) -> target_pb2.ReadResponse:
    """The readings of one forward."""
    message = target_pb2.ReadResponse(duration_ms=readings[0].duration_ms if readings else 0.0)
    for reading in readings:
        put_reading(message.readings.add(), reading)
    return message


def read_response_from_wire(message: target_pb2.ReadResponse) -> list[SegmentScore]:
    """The readings of one forward."""
    return [
        reading_from_wire(reading, f"readings[{i}]", message.duration_ms) for i, reading in enumerate(message.readings)
    ]
