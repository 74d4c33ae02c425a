"""Pieces of text with their token ids, and the contexts they make up."""

from collections.abc import Sequence

from semspec.rpc.convert.checks import check_filled, invalid, known
from semspec.rpc.convert.enums import ENDS_FROM_WIRE, ENDS_TO_WIRE, WRITERS_FROM_WIRE, WRITERS_TO_WIRE
from semspec.types import Context, Piece, Segment, Writer
from semspec.v1 import types_pb2


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
    """A `Piece` if the user wrote it, else a `Segment`."""
    writer = known(WRITERS_FROM_WIRE, message.writer, f"{field}.writer")
    token_ids = tuple(message.token_ids)
    if writer is not Writer.USER:
        end = known(ENDS_FROM_WIRE, message.end, f"{field}.end")
        return Segment(message.text, token_ids, message.tokenizer, writer, end)
    if message.end != types_pb2.SEGMENT_END_UNSPECIFIED:
        raise invalid(f"{field}.end", "a prompt has none")
    return Piece(message.text, token_ids, message.tokenizer)


def segment_from_wire(message: types_pb2.Piece, field: str) -> Segment:
    """A piece a model wrote."""
    piece = piece_from_wire(message, field)
    if not isinstance(piece, Segment):
        raise invalid(f"{field}.writer", "a segment is written by the draft or the target")
    return piece


def context_from_wire(pieces: Sequence[types_pb2.Piece]) -> Context:
    """The whole context of a call, which holds at least the prompt."""
    check_filled(pieces, "context")
    return Context(tuple(piece_from_wire(piece, f"context[{i}]") for i, piece in enumerate(pieces)))
