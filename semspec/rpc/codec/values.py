"""Values that messages hold in another form than dataclasses do: enums, pieces, tensors; and errors of fields.

What reads one raises InvalidRequest, or Mismatch for another state convention, and names the invalid field from the
value on.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from google.protobuf.descriptor import EnumDescriptor

from semspec.errors import InvalidRequest, Mismatch
from semspec.types import (
    STATE_CONVENTION,
    SURPRISAL_FEATURES,
    ModelInfo,
    Piece,
    Segment,
    SegmentEnd,
    SegmentScore,
    States,
    VerifiedTokens,
    Writer,
)
from semspec.v1 import target_pb2, types_pb2

T = TypeVar("T")

UNKNOWN_CLUSTER = -1
"""Cluster of a segment whose meaning is unknown."""
_FLOAT_BYTES = 4
_SURPRISAL = struct.Struct(f"<{len(SURPRISAL_FEATURES)}f")


def invalid(field: str, complaint: str) -> InvalidRequest:
    """An error that names the invalid field."""
    return InvalidRequest(f"{field}: {complaint}", field)


def within(field: str, error: InvalidRequest | Mismatch) -> InvalidRequest | Mismatch:
    """The error of a value that is `field` of another."""
    return type(error)(f"{field}.{error.message}", f"{field}.{error.parameter}")


def known(values: Mapping[int, T], number: int, field: str) -> T:
    """The value of the enum number `number`. Raises: InvalidRequest when it is unspecified or unknown."""
    value = values.get(number)
    if value is None:
        raise invalid(field, "unspecified" if number == 0 else f"unknown value {number}")
    return value


def numbers_of(members: type[StrEnum], enum: EnumDescriptor) -> dict[Any, Any]:
    """Member -> number, by its name: `WRITER_DRAFT` is `Writer.DRAFT`."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return {member: enum.values_by_name[prefix + member.name].number for member in members}


_WRITERS = numbers_of(Writer, types_pb2.Writer.DESCRIPTOR)
_ENDS = numbers_of(SegmentEnd, types_pb2.SegmentEnd.DESCRIPTOR)
_WRITER_OF = {number: writer for writer, number in _WRITERS.items()}
END_OF = {number: end for end, number in _ENDS.items()}


def put_piece(message: types_pb2.Piece, piece: Piece) -> None:
    """Fill in a piece of a context."""
    message.text = piece.text
    message.token_ids.extend(piece.token_ids)
    message.tokenizer = piece.tokenizer
    message.writer = types_pb2.WRITER_USER
    if isinstance(piece, Segment):
        message.writer = _WRITERS[piece.writer]
        message.end = _ENDS[piece.end]


def read_piece(message: types_pb2.Piece) -> Piece:
    """A `Piece` if its writer is the user, else a `Segment`."""
    writer = known(_WRITER_OF, message.writer, "writer")
    token_ids = tuple(message.token_ids)
    if writer is not Writer.USER:
        return Segment(message.text, token_ids, message.tokenizer, writer, known(END_OF, message.end, "end"))
    if message.end != types_pb2.SEGMENT_END_UNSPECIFIED:
        raise invalid("end", "a prompt has none")
    return Piece(message.text, token_ids, message.tokenizer)


def _read_segment(message: types_pb2.Piece) -> Segment:
    piece = read_piece(message)
    if not isinstance(piece, Segment):
        raise invalid("writer", "a segment is written by the draft or the target")
    return piece


def _put_states(message: types_pb2.States, states: States) -> None:
    _put_tensor(message.pooled, states.data, states.shape)
    message.model = states.model
    message.convention = STATE_CONVENTION
    message.projection = states.projection


def _read_states(message: types_pb2.States) -> States:
    """The bytes are not converted."""
    if message.convention != STATE_CONVENTION:
        raise Mismatch(f"convention: must be {STATE_CONVENTION!r}, not {message.convention!r}", "convention")
    shape = tuple(message.pooled.shape)
    if len(shape) != 2:
        raise invalid("pooled.shape", f"must have two dimensions, not {len(shape)}")
    return States(_read_tensor(message.pooled, "pooled"), shape, message.model, message.projection)


def _put_score(message: target_pb2.Reading, score: SegmentScore) -> None:
    _put_states(message.states, score.states)
    surprisal = struct.pack(f"<{len(score.surprisal)}f", *score.surprisal)
    _put_tensor(message.surprisal, surprisal, (len(score.surprisal),))
    message.num_tokens = score.num_tokens


def _read_score(message: target_pb2.Reading) -> SegmentScore:
    """Its duration and number of cached tokens are those of the response."""
    expected = [len(SURPRISAL_FEATURES)]
    if list(message.surprisal.shape) != expected:
        raise invalid("surprisal.shape", f"must be {expected}, not {list(message.surprisal.shape)}")
    surprisal = _SURPRISAL.unpack(_read_tensor(message.surprisal, "surprisal"))
    try:
        return SegmentScore(_read_states(message.states), surprisal, message.num_tokens, 0.0)
    except (InvalidRequest, Mismatch) as error:
        raise within("states", error) from None


def _put_tensor(message: types_pb2.Tensor, data: bytes, shape: Sequence[int]) -> None:
    message.data = data
    message.data_type = types_pb2.Tensor.DATA_TYPE_FLOAT32
    message.shape.extend(shape)


def _read_tensor(message: types_pb2.Tensor, field: str) -> bytes:
    """The raw bytes, after checking data type and length against the shape."""
    if message.data_type != types_pb2.Tensor.DATA_TYPE_FLOAT32:
        raise invalid(f"{field}.data_type", "must be DATA_TYPE_FLOAT32")
    if 0 in message.shape:
        raise invalid(f"{field}.shape", "no dimension may be 0")
    data, num_bytes = message.data, _FLOAT_BYTES * math.prod(message.shape)
    if len(data) != num_bytes:
        raise invalid(f"{field}.data", f"{len(data)} bytes, but shape {list(message.shape)} takes {num_bytes}")
    return data


PUT: dict[type, Callable[[Any, Any], None]] = {
    Piece: put_piece, Segment: put_piece, States: _put_states, SegmentScore: _put_score,
}  # fmt: skip
"""How to fill in values that messages hold in another form."""
READ: dict[type, Callable[[Any], Any]] = {
    Piece: read_piece, Segment: _read_segment, States: _read_states, SegmentScore: _read_score,
}  # fmt: skip

RENAMED: dict[type, dict[str, str]] = {
    ModelInfo: {
        "supports_choices": "can_be_asked",
        "supports_logprobs": "tells_logprobs",
        "supports_grammars": "takes_grammars",
        "supports_min_p": "takes_min_p",
        "supports_penalties": "takes_penalties",
    },
    VerifiedTokens: {"open_ids": "open_token_ids", "open_piece": "open"},
}
"""Fields with another name in messages."""
