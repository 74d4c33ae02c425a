"""Checks, enums, pieces and tensors: the parts that several messages share."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from semspec.errors import InvalidRequest, Mismatch
from semspec.rpc.contexts import LastContexts
from semspec.types import STATE_CONVENTION, Context, Piece, Segment, Segmentation, SegmentEnd, States, Writer
from semspec.v1 import target_pb2, types_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

T = TypeVar("T")


def known(values: Mapping[int, T], number: int, field: str) -> T:
    """The value of the enum number `number`. Raises: InvalidRequest when it is unspecified or unknown."""
    value = values.get(number)
    if value is None:
        raise invalid(field, "unspecified" if number == 0 else f"unknown value {number}")
    return value


def check_filled(values: Sequence[object], field: str) -> None:
    """Raises: InvalidRequest when `values` is empty."""
    if not values:
        raise invalid(field, "at least one is needed")


def check_positive(number: int, field: str) -> None:
    """Raises: InvalidRequest when `number` is below 1."""
    if number < 1:
        raise invalid(field, "must be at least 1")


def probability(value: float, field: str) -> float:
    """Return `value`. Raises: InvalidRequest when it is not in [0, 1]."""
    if not 0 <= value <= 1:
        raise invalid(field, f"must be in [0, 1], not {value}")
    return value


def duration(value_ms: float, field: str) -> float:
    """Return `value_ms`. Raises: InvalidRequest when it is negative or not finite: JSON has no such numbers."""
    if not 0 <= value_ms < math.inf:
        raise invalid(field, f"must be finite and at least 0, not {value_ms}")
    return value_ms


def num_cached_tokens(
    message: types_pb2.WriteResponse | target_pb2.ReadResponse | target_pb2.VerifyResponse,
) -> int | None:
    """The number of cached tokens that an engine reports, if it does."""
    return message.num_cached_tokens if message.HasField("num_cached_tokens") else None


def invalid(field: str, complaint: str) -> InvalidRequest:
    """An error that names the invalid field."""
    return InvalidRequest(f"{field}: {complaint}", field)


WRITERS_TO_WIRE = {
    Writer.USER: types_pb2.WRITER_USER,
    Writer.DRAFT: types_pb2.WRITER_DRAFT,
    Writer.TARGET: types_pb2.WRITER_TARGET,
}
ENDS_TO_WIRE = {
    SegmentEnd.BOUNDARY: types_pb2.SEGMENT_END_BOUNDARY,
    SegmentEnd.EOS: types_pb2.SEGMENT_END_EOS,
    SegmentEnd.LENGTH: types_pb2.SEGMENT_END_LENGTH,
}
SEGMENTATIONS_TO_WIRE = {
    Segmentation.PARAGRAPH: types_pb2.SEGMENTATION_PARAGRAPH,
    Segmentation.SENTENCE: types_pb2.SEGMENTATION_SENTENCE,
}
WRITERS_FROM_WIRE: dict[int, Writer] = {number: writer for writer, number in WRITERS_TO_WIRE.items()}
ENDS_FROM_WIRE: dict[int, SegmentEnd] = {number: end for end, number in ENDS_TO_WIRE.items()}
SEGMENTATIONS_FROM_WIRE: dict[int, Segmentation] = {number: kind for kind, number in SEGMENTATIONS_TO_WIRE.items()}


def segmentations_from_wire(numbers: Sequence[int]) -> tuple[Segmentation, ...]:
    """The segmentations a service supports."""
    return tuple(known(SEGMENTATIONS_FROM_WIRE, number, f"segmentations[{i}]") for i, number in enumerate(numbers))


def put_piece(message: types_pb2.Piece, piece: Piece) -> None:
    """Fill in a piece of a context."""
    message.text = piece.text
    message.token_ids.extend(piece.token_ids)
    message.tokenizer = piece.tokenizer
    message.writer = types_pb2.WRITER_USER
    if isinstance(piece, Segment):
        message.writer = WRITERS_TO_WIRE[piece.writer]
        message.end = ENDS_TO_WIRE[piece.end]


def piece_from_wire(message: types_pb2.Piece, field: str) -> Piece:
    """A `Piece` if its writer is the user, else a `Segment`."""
    writer = known(WRITERS_FROM_WIRE, message.writer, f"{field}.writer")
    token_ids = tuple(message.token_ids)
    if writer is not Writer.USER:
        end = known(ENDS_FROM_WIRE, message.end, f"{field}.end")
        return Segment(message.text, token_ids, message.tokenizer, writer, end)
    if message.end != types_pb2.SEGMENT_END_UNSPECIFIED:
        raise invalid(f"{field}.end", "a prompt has none")
    return Piece(message.text, token_ids, message.tokenizer)


def segment_from_wire(message: types_pb2.Piece, field: str) -> Segment:
    """A piece written by a model."""
    piece = piece_from_wire(message, field)
    if not isinstance(piece, Segment):
        raise invalid(f"{field}.writer", "a segment is written by the draft or the target")
    return piece


class HasContext(Protocol):
    """A request about a context."""

    session: str

    @property
    def context(self) -> "RepeatedCompositeFieldContainer[types_pb2.Piece]": ...

    @property
    def tail(self) -> types_pb2.Tail: ...

    def HasField(self, field_name: Literal["tail"]) -> bool: ...


def put_context(message: HasContext, context: Context, before: bytes = b"") -> None:
    """Fill in a context; after `before`, if it is given, which the service keeps."""
    pieces = message.context
    if before:
        message.tail.before, pieces = before, message.tail.pieces
    for piece in context.pieces:
        put_piece(pieces.add(), piece)


def context_from_wire(message: HasContext, kept: LastContexts) -> Context:
    """The whole context of a call; contains at least the prompt. It is noted in `kept`.

    Raises: NotFound when the message has only the tail of a context that is not in `kept`.
    """
    if message.HasField("tail"):
        if message.context:
            raise invalid("context", "must be empty beside a tail")
        rest = [piece_from_wire(piece, f"tail.pieces[{i}]") for i, piece in enumerate(message.tail.pieces)]
        context = kept.whole(message.session, message.tail.before, rest)
    else:
        check_filled(message.context, "context")
        context = Context(tuple(piece_from_wire(piece, f"context[{i}]") for i, piece in enumerate(message.context)))
    kept.note(message.session, context)
    return context


_FLOAT_BYTES = 4


def put_states(message: types_pb2.States, states: States) -> None:
    """Fill in pooled states."""
    put_tensor(message.pooled, states.data, states.shape)
    message.model = states.model
    message.convention = STATE_CONVENTION
    message.projection = states.projection


def states_from_wire(message: types_pb2.States, field: str) -> States:
    """Pooled states `[num_layers + 1, hidden_size]`, or `[1, width]` if projected; the bytes are not converted."""
    if message.convention != STATE_CONVENTION:
        raise Mismatch(
            f"{field}.convention: must be {STATE_CONVENTION!r}, not {message.convention!r}", f"{field}.convention"
        )
    shape = tuple(message.pooled.shape)
    if len(shape) != 2:
        raise invalid(f"{field}.pooled.shape", f"must have two dimensions, not {len(shape)}")
    data = tensor_from_wire(message.pooled, f"{field}.pooled")
    return States(data, shape, message.model, message.projection)


def put_tensor(message: types_pb2.Tensor, data: bytes, shape: Sequence[int]) -> None:
    """Fill in little-endian fp32 values."""
    message.data = data
    message.data_type = types_pb2.Tensor.DATA_TYPE_FLOAT32
    message.shape.extend(shape)


def tensor_from_wire(message: types_pb2.Tensor, field: str) -> bytes:
    """The raw bytes, after checking data type and length against the shape."""
    if message.data_type != types_pb2.Tensor.DATA_TYPE_FLOAT32:
        raise invalid(f"{field}.data_type", "must be DATA_TYPE_FLOAT32")
    if 0 in message.shape:
        raise invalid(f"{field}.shape", "no dimension may be 0")
    data, num_bytes = message.data, _FLOAT_BYTES * math.prod(message.shape)
    if len(data) != num_bytes:
        raise invalid(f"{field}.data", f"{len(data)} bytes, but shape {list(message.shape)} takes {num_bytes}")
    return data
