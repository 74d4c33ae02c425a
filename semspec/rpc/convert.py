"""Protobuf messages to core dataclasses and back: the only module that knows both.

`*_to_wire` trusts what it is given. `*_from_wire` checks everything and raises `InvalidRequest`, or `Mismatch` for
another state convention, naming the field at fault as a path such as `context[2].end`.

Nested messages are filled in place by `_put_*`: handed to a constructor, protobuf would copy them level by level, which
for the states of a 32B model costs 4 ms instead of 0.03.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import TypeVar

from semspec.core import (
    STATE_CONVENTION,
    SURPRISAL_FEATURES,
    Context,
    Judgement,
    Message,
    ModelInfo,
    Piece,
    Reading,
    Sampling,
    Segment,
    Segmentation,
    SegmentEnd,
    States,
    VerifierInfo,
    WriteOrder,
    Writer,
    Written,
)
from semspec.errors import InvalidRequest, Mismatch
from semspec.v1 import target_pb2, types_pb2, verifier_pb2

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
_WRITERS: dict[int, Writer] = {number: writer for writer, number in WRITERS_TO_WIRE.items()}
_ENDS: dict[int, SegmentEnd] = {number: end for end, number in ENDS_TO_WIRE.items()}
_SEGMENTATIONS: dict[int, Segmentation] = {number: kind for kind, number in SEGMENTATIONS_TO_WIRE.items()}
_ROLES = ("system", "user", "assistant")
_FLOAT_BYTES = 4
_SURPRISAL = struct.Struct(f"<{len(SURPRISAL_FEATURES)}f")

T = TypeVar("T")


# Pieces, contexts, orders


def _put_piece(message: types_pb2.Piece, piece: Piece) -> None:
    message.text = piece.text
    message.token_ids.extend(piece.token_ids)
    message.tokenizer = piece.tokenizer
    message.writer = types_pb2.WRITER_USER
    if isinstance(piece, Segment):
        message.writer = WRITERS_TO_WIRE[piece.writer]
        message.end = ENDS_TO_WIRE[piece.end]


def piece_from_wire(message: types_pb2.Piece, field: str) -> Piece:
    """A `Piece` if the user wrote it, else a `Segment`."""
    writer = _known(_WRITERS, message.writer, f"{field}.writer")
    token_ids = tuple(message.token_ids)
    if writer is not Writer.USER:
        end = _known(_ENDS, message.end, f"{field}.end")
        return Segment(message.text, token_ids, message.tokenizer, writer, end)
    if message.end != types_pb2.SEGMENT_END_UNSPECIFIED:
        raise _invalid(f"{field}.end", "a prompt has none")
    return Piece(message.text, token_ids, message.tokenizer)


def segment_from_wire(message: types_pb2.Piece, field: str) -> Segment:
    """A piece a model wrote."""
    piece = piece_from_wire(message, field)
    if not isinstance(piece, Segment):
        raise _invalid(f"{field}.writer", "a segment is written by the draft or the target")
    return piece


def context_from_wire(pieces: Sequence[types_pb2.Piece]) -> Context:
    """The whole context of a call, which holds at least the prompt."""
    _filled(pieces, "context")
    return Context(tuple(piece_from_wire(piece, f"context[{i}]") for i, piece in enumerate(pieces)))


def write_request_to_wire(context: Context, order: WriteOrder) -> types_pb2.WriteRequest:
    """What the writing services are asked."""
    sampling = order.sampling
    message = types_pb2.WriteRequest(
        sampling=types_pb2.Sampling(
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, seed=sampling.seed
        ),
        segmentation=SEGMENTATIONS_TO_WIRE[order.segmentation],
        max_segments=order.max_segments,
        max_tokens=order.max_tokens,
        max_segment_tokens=order.max_segment_tokens,
        want_states=order.want_states,
        session=order.session,
    )
    for piece in context.pieces:
        _put_piece(message.context.add(), piece)
    return message


def write_request_from_wire(message: types_pb2.WriteRequest) -> tuple[Context, WriteOrder]:
    """The context and the order of a `Write` call."""
    _positive(message.max_tokens, "max_tokens")
    _positive(message.max_segment_tokens, "max_segment_tokens")
    order = WriteOrder(
        sampling=sampling_from_wire(message.sampling),
        segmentation=_known(_SEGMENTATIONS, message.segmentation, "segmentation"),
        max_segments=message.max_segments,
        max_tokens=message.max_tokens,
        max_segment_tokens=message.max_segment_tokens,
        want_states=message.want_states,
        session=message.session,
    )
    return context_from_wire(message.context), order


def sampling_from_wire(message: types_pb2.Sampling) -> Sampling:
    """Sampling parameters, each in its range."""
    if not (math.isfinite(message.temperature) and message.temperature >= 0):
        raise _invalid("sampling.temperature", f"must be at least 0, not {message.temperature}")
    if not 0 < message.top_p <= 1:
        raise _invalid("sampling.top_p", f"must be above 0 and at most 1, not {message.top_p}")
    return Sampling(message.temperature, message.top_p, message.top_k, message.seed)


def written_to_wire(written: Written) -> types_pb2.WriteResponse:
    """One message of a `Write` stream."""
    message = types_pb2.WriteResponse(duration_ms=written.duration_ms)
    _put_piece(message.segment, written.segment)
    if written.states is not None:
        _put_states(message.states, written.states)
    return message


def written_from_wire(message: types_pb2.WriteResponse) -> Written:
    """One message of a `Write` stream."""
    states = states_from_wire(message.states, "states") if message.HasField("states") else None
    return Written(segment_from_wire(message.segment, "segment"), states, message.duration_ms)


# Prompts


def encode_request_to_wire(prompt: str | Sequence[Message]) -> target_pb2.EncodeRequest:
    """A text as it is, or a conversation to be rendered."""
    if isinstance(prompt, str):
        return target_pb2.EncodeRequest(text=prompt)
    turns = [target_pb2.Message(role=turn.role, content=turn.content) for turn in prompt]
    return target_pb2.EncodeRequest(conversation=target_pb2.Conversation(messages=turns))


def encode_request_from_wire(message: target_pb2.EncodeRequest) -> str | list[Message]:
    """A text as it is, or a conversation to be rendered."""
    match message.WhichOneof("prompt"):
        case "text":
            return message.text
        case "conversation":
            return _messages_from_wire(message.conversation.messages)
        case _:
            raise _invalid("prompt", "give a text or a conversation")


def _messages_from_wire(turns: Sequence[target_pb2.Message]) -> list[Message]:
    _filled(turns, "conversation.messages")
    for i, turn in enumerate(turns):
        if turn.role not in _ROLES:
            raise _invalid(f"conversation.messages[{i}].role", f"must be one of {_ROLES}, not {turn.role!r}")
    return [Message(turn.role, turn.content) for turn in turns]  # type: ignore[arg-type]  # one of _ROLES


def encode_response_to_wire(prompt: Piece) -> target_pb2.EncodeResponse:
    """The tokenized prompt."""
    message = target_pb2.EncodeResponse()
    _put_piece(message.prompt, prompt)
    return message


def encode_response_from_wire(message: target_pb2.EncodeResponse) -> Piece:
    """The tokenized prompt."""
    return piece_from_wire(message.prompt, "prompt")


# States and readings


def _put_states(message: types_pb2.States, states: States) -> None:
    _put_tensor(message.pooled, states.data, states.shape)
    message.model = states.model
    message.convention = STATE_CONVENTION


def states_from_wire(message: types_pb2.States, field: str) -> States:
    """Pooled states `[num_layers + 1, hidden_size]`; the bytes are taken as they are."""
    if message.convention != STATE_CONVENTION:
        raise Mismatch(
            f"{field}.convention: must be {STATE_CONVENTION!r}, not {message.convention!r}", f"{field}.convention"
        )
    shape = tuple(message.pooled.shape)
    if len(shape) != 2:
        raise _invalid(f"{field}.pooled.shape", f"must have two dimensions, not {len(shape)}")
    data = _tensor_from_wire(message.pooled, f"{field}.pooled")
    return States(data, shape, message.model)


def _put_reading(message: target_pb2.Reading, reading: Reading) -> None:
    surprisal = struct.pack(f"<{len(reading.surprisal)}f", *reading.surprisal)
    _put_states(message.states, reading.states)
    _put_tensor(message.surprisal, surprisal, (len(reading.surprisal),))
    message.num_tokens = reading.num_tokens


def reading_from_wire(message: target_pb2.Reading, field: str, duration_ms: float = 0.0) -> Reading:
    """One segment's reading, its surprisal aligned with `SURPRISAL_FEATURES`."""
    expected = [len(SURPRISAL_FEATURES)]
    if list(message.surprisal.shape) != expected:
        raise _invalid(f"{field}.surprisal.shape", f"must be {expected}, not {list(message.surprisal.shape)}")
    surprisal = _SURPRISAL.unpack(_tensor_from_wire(message.surprisal, f"{field}.surprisal"))
    states = states_from_wire(message.states, f"{field}.states")
    return Reading(states, surprisal, message.num_tokens, duration_ms)


def read_request_to_wire(context: Context, segments: Sequence[Segment], session: str) -> target_pb2.ReadRequest:
    """What the target is asked to read."""
    message = target_pb2.ReadRequest(session=session)
    for piece in context.pieces:
        _put_piece(message.context.add(), piece)
    for segment in segments:
        _put_piece(message.segments.add(), segment)
    return message


def read_request_from_wire(message: target_pb2.ReadRequest) -> tuple[Context, list[Segment], str]:
    """Context, segments (at least one) and session hint of a `Read` call."""
    _filled(message.segments, "segments")
    segments = [segment_from_wire(piece, f"segments[{i}]") for i, piece in enumerate(message.segments)]
    return context_from_wire(message.context), segments, message.session


def read_response_to_wire(readings: Sequence[Reading]) -> target_pb2.ReadResponse:
    """The readings of one forward."""
    message = target_pb2.ReadResponse(duration_ms=readings[0].duration_ms if readings else 0.0)
    for reading in readings:
        _put_reading(message.readings.add(), reading)
    return message


def read_response_from_wire(message: target_pb2.ReadResponse) -> list[Reading]:
    """The readings of one forward."""
    return [
        reading_from_wire(reading, f"readings[{i}]", message.duration_ms) for i, reading in enumerate(message.readings)
    ]


# Judgements


def judge_request_to_wire(draft_states: Sequence[States], readings: Sequence[Reading]) -> verifier_pb2.JudgeRequest:
    """Both models' views of the same segments."""
    message = verifier_pb2.JudgeRequest()
    for states in draft_states:
        _put_states(message.draft_states.add(), states)
    for reading in readings:
        _put_reading(message.readings.add(), reading)
    return message


def judge_request_from_wire(message: verifier_pb2.JudgeRequest) -> tuple[list[States], list[Reading]]:
    """Both models' views of the same segments, as many of the one as of the other and at least one."""
    _filled(message.draft_states, "draft_states")
    if len(message.readings) != len(message.draft_states):
        raise _invalid("readings", f"{len(message.readings)}, but {len(message.draft_states)} draft_states")
    draft_states = [states_from_wire(states, f"draft_states[{i}]") for i, states in enumerate(message.draft_states)]
    return draft_states, [reading_from_wire(reading, f"readings[{i}]") for i, reading in enumerate(message.readings)]


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
            _probability(judgement.draft_probability, f"judgements[{i}].draft_probability"),
            _probability(judgement.target_probability, f"judgements[{i}].target_probability"),
        )
        for i, judgement in enumerate(message.judgements)
    ]


# Handshakes


def model_info_to_wire(info: ModelInfo) -> types_pb2.ModelInfo:
    """A model service's side of the handshake."""
    return types_pb2.ModelInfo(
        model=info.model,
        fingerprint=info.fingerprint,
        tokenizer=info.tokenizer,
        num_layers=info.num_layers,
        hidden_size=info.hidden_size,
        max_context_tokens=info.max_context_tokens,
        state_convention=info.state_convention,
        segmentations=[SEGMENTATIONS_TO_WIRE[kind] for kind in info.segmentations],
        build=info.build,
    )


def model_info_from_wire(message: types_pb2.ModelInfo) -> ModelInfo:
    """A model service's side of the handshake."""
    return ModelInfo(
        model=message.model,
        fingerprint=message.fingerprint,
        tokenizer=message.tokenizer,
        num_layers=message.num_layers,
        hidden_size=message.hidden_size,
        max_context_tokens=message.max_context_tokens,
        state_convention=message.state_convention,
        segmentations=_segmentations_from_wire(message.segmentations),
        build=message.build,
    )


def verifier_info_to_wire(info: VerifierInfo) -> verifier_pb2.VerifierInfo:
    """The verifier's side of the handshake."""
    return verifier_pb2.VerifierInfo(
        draft_model=info.draft_model,
        target_model=info.target_model,
        state_convention=info.state_convention,
        segmentations=[SEGMENTATIONS_TO_WIRE[kind] for kind in info.segmentations],
        build=info.build,
        draft_probe=info.draft_probe,
        target_probe=info.target_probe,
    )


def verifier_info_from_wire(message: verifier_pb2.VerifierInfo) -> VerifierInfo:
    """The verifier's side of the handshake."""
    return VerifierInfo(
        draft_model=message.draft_model,
        target_model=message.target_model,
        state_convention=message.state_convention,
        segmentations=_segmentations_from_wire(message.segmentations),
        build=message.build,
        draft_probe=message.draft_probe,
        target_probe=message.target_probe,
    )


def _segmentations_from_wire(numbers: Sequence[int]) -> tuple[Segmentation, ...]:
    return tuple(_known(_SEGMENTATIONS, number, f"segmentations[{i}]") for i, number in enumerate(numbers))


# Checks


def _put_tensor(message: types_pb2.Tensor, data: bytes, shape: Sequence[int]) -> None:
    message.data = data
    message.data_type = types_pb2.Tensor.DATA_TYPE_FLOAT32
    message.shape.extend(shape)


def _tensor_from_wire(message: types_pb2.Tensor, field: str) -> bytes:
    """The raw bytes, once type and length agree with the shape."""
    if message.data_type != types_pb2.Tensor.DATA_TYPE_FLOAT32:
        raise _invalid(f"{field}.data_type", "must be DATA_TYPE_FLOAT32")
    if 0 in message.shape:
        raise _invalid(f"{field}.shape", "no dimension may be 0")
    data, num_bytes = message.data, _FLOAT_BYTES * math.prod(message.shape)
    if len(data) != num_bytes:
        raise _invalid(f"{field}.data", f"{len(data)} bytes, but shape {list(message.shape)} takes {num_bytes}")
    return data


def _known(values: Mapping[int, T], number: int, field: str) -> T:
    value = values.get(number)
    if value is None:
        raise _invalid(field, "unspecified" if number == 0 else f"unknown value {number}")
    return value


def _filled(values: Sequence[object], field: str) -> None:
    if not values:
        raise _invalid(field, "at least one is needed")


def _positive(number: int, field: str) -> None:
    if number < 1:
        raise _invalid(field, "must be at least 1")


def _probability(value: float, field: str) -> float:
    if not 0 <= value <= 1:
        raise _invalid(field, f"must be in [0, 1], not {value}")
    return value


def _invalid(field: str, complaint: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {complaint}", field)
