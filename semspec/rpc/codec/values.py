"""Values with other forms in messages than in dataclasses: enums, pieces and JSON texts; and the checks of all values.

Readers and checks raise InvalidRequest with the path of the invalid field within the value.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar, get_args

from google.protobuf.descriptor import EnumDescriptor

from semspec.errors import InvalidField, InvalidRequest
from semspec.types import (
    LEAST_POSITIVE,
    LEAST_REPETITION,
    MOST_PENALTY,
    MOST_REPETITION,
    SAMPLING_BOUNDS,
    SURPRISAL_FEATURES,
    Conversation,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    JsonObject,
    Judgement,
    Message,
    OperatingPoint,
    Penalties,
    Piece,
    Proposal,
    Retrieval,
    RetrievalSource,
    Role,
    SamplingParams,
    Segment,
    SegmentEnd,
    SegmentScore,
    States,
    Token,
    TokenIds,
    TokenLogprob,
    VerifiedTokens,
    Writer,
    calls_json,
    json_text,
    read_calls,
)
from semspec.v2 import types_pb2

T = TypeVar("T")

UNKNOWN_CLUSTER = -1
"""Cluster of a segment whose meaning is unknown."""
MAX_LOGPROBS = 20
"""Maximum number of alternatives per token, as in the OpenAI API."""
_NUMBER_BYTES = 4


def invalid(field: str, complaint: str) -> InvalidRequest:
    """Return an error that names the invalid field."""
    return InvalidField(complaint, field)


def within(field: str, error: InvalidRequest) -> InvalidRequest:
    """Return the error of a value that is `field` of another."""
    return error.about(f"{field}.{error.parameter}")


def known(values: Mapping[int, T], number: int, field: str) -> T:
    """Return the enum value of `number`. Raises: InvalidRequest when it is unspecified or unknown."""
    value = values.get(number)
    if value is None:
        raise invalid(field, "unspecified" if number == 0 else f"unknown value {number}")
    return value


def numbers_of(members: type[StrEnum], enum: EnumDescriptor) -> dict[Any, Any]:
    """Map members to numbers by name: `WRITER_DRAFT` is `Writer.DRAFT`."""
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
    """Read a `Piece` if its writer is the user, else a `Segment`."""
    writer = known(_WRITER_OF, message.writer, "writer")
    token_ids = tuple(message.token_ids)
    if writer is not Writer.USER:
        return Segment(
            message.text, token_ids, message.tokenizer, writer, known(END_OF, message.end, "end")
        )
    if message.end != types_pb2.SEGMENT_END_UNSPECIFIED:
        raise invalid("end", "a prompt has none")
    return Piece(message.text, token_ids, message.tokenizer)


def _read_segment(message: types_pb2.Piece) -> Segment:
    piece = read_piece(message)
    if not isinstance(piece, Segment):
        raise invalid("writer", "a segment is written by the draft or the target")
    return piece


PUT: dict[type, Callable[[Any, Any], None]] = {Piece: put_piece, Segment: put_piece}
"""Functions that fill in values whose form in messages differs."""
READ: dict[type, Callable[[Any], Any]] = {Piece: read_piece, Segment: _read_segment}


def _read_tools(text: str) -> tuple[JsonObject, ...]:
    """Raises: ValueError."""
    try:
        tools = json.loads(text or "[]")
        if isinstance(tools, list) and all(
            isinstance(tool["function"]["name"], str) for tool in tools
        ):
            return tuple(tools)
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise ValueError("not a JSON list of functions in OpenAI's format")


def _read_variables(text: str) -> JsonObject:
    """Raises: ValueError."""
    try:
        variables = json.loads(text or "{}")
        json.dumps(variables, ensure_ascii=False).encode()  # no tokenizer takes a lone surrogate
    except (ValueError, RecursionError):
        variables = None
    if not isinstance(variables, dict) or any(
        isinstance(value, dict | list) for value in variables.values()
    ):
        raise ValueError("not a JSON object of texts, numbers, true, false and null")
    return variables


JSON_TEXTS: dict[tuple[type, str], tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    (Message, "tool_calls"): (calls_json, read_calls),
    (Conversation, "tools"): (json_text, _read_tools),
    (Conversation, "variables"): (json_text, _read_variables),
}
"""How to write and read the fields that messages hold as JSON text."""


def check_filled(values: Sequence[object], field: str) -> None:
    """Raises: InvalidRequest when `values` is empty."""
    if not values:
        raise invalid(field, "at least one is needed")


def check_length(values: Sequence[object], field: str, number: int, others: str) -> None:
    """Check that `values` has `number` items; `others` follows it in the message. Raises: InvalidRequest."""
    if len(values) != number:
        raise invalid(field, f"{len(values)}, but {number} {others}")


def check_range(value: float, field: str, least: float, most: float) -> None:
    """Raises: InvalidRequest when `value` is out of its bounds or infinite, which JSON cannot hold."""
    if not (least <= value <= most and math.isfinite(value)):
        raise invalid(field, f"must be finite and in [{least:g}, {most:g}], not {value}")


def check(value: object) -> None:
    """Raises: InvalidRequest when a number of a dataclass is out of its bounds, or a value does not fit the others."""
    for name, bounds in BOUNDS.get(type(value), {}).items():
        match getattr(value, name):
            case None:
                pass
            case tuple() as numbers:
                for index, number in enumerate(numbers):
                    check_range(number, f"{name}[{index}]", *bounds)
            case number:
                check_range(number, name, *bounds)
    if fits := CHECKS.get(type(value)):
        fits(value)


def _check_one_of(field: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise invalid(field, f"must be one of {values}, not {value!r}")


def _check_token(token: Token) -> None:
    if token.stop < token.start:
        raise invalid("stop", f"is {token.stop}, before its start at {token.start}")


def _check_sampling(sampling: SamplingParams) -> None:
    if 0 < sampling.temperature < LEAST_POSITIVE:
        raise invalid(
            "temperature", f"must be 0 or at least {LEAST_POSITIVE}, not {sampling.temperature}"
        )


def _check_penalties(penalties: Penalties) -> None:
    for token_id, bias in penalties.logit_bias:
        check_range(bias, str(token_id), *PENALTY)


def _check_generated(generated: GeneratedSegment) -> None:
    """Every segment has at least one token, if only end-of-sequence."""
    token_ids = generated.segment.token_ids
    check_filled(token_ids, "segment.token_ids")
    if generated.logprobs is not None:
        check_length(generated.logprobs, "logprobs", len(token_ids), "segment.token_ids")


def _check_states(states: States) -> None:
    check_length(states.shape, "shape", 2, "dimensions are needed")
    num_bytes = _NUMBER_BYTES * math.prod(states.shape)
    if len(states.data) != num_bytes or not num_bytes:
        raise invalid(
            "data", f"{len(states.data)} bytes, but shape {list(states.shape)} takes {num_bytes}"
        )


def _check_distribution(distribution: Distribution) -> None:
    num_bytes = len(distribution.token_ids)
    if num_bytes == 0 or num_bytes % _NUMBER_BYTES:
        raise invalid(
            "token_ids", f"{num_bytes} bytes, but an entry takes {_NUMBER_BYTES}, and one is needed"
        )
    check_length(distribution.probabilities, "probabilities", num_bytes, "bytes of token_ids")


SHARE, AMOUNT, COUNT = (0.0, 1.0), (0.0, math.inf), (1, math.inf)
PENALTY = -MOST_PENALTY, MOST_PENALTY
BOUNDS: dict[type, dict[str, tuple[float, float]]] = {
    GeneratedSegment: {"duration_ms": AMOUNT},
    GenerationParams: {
        "max_tokens": COUNT,
        "max_segment_tokens": COUNT,
        "num_logprobs": (0, MAX_LOGPROBS),
    },
    Judgement: {"draft_probability": SHARE, "target_probability": SHARE},
    OperatingPoint: {
        **dict.fromkeys(("threshold", "speed_up"), AMOUNT),
        **dict.fromkeys(("acceptance", "right_accepted", "wrong_accepted"), SHARE),
    },
    Penalties: {
        "presence": PENALTY,
        "frequency": PENALTY,
        "repetition": (LEAST_REPETITION, MOST_REPETITION),
    },
    Proposal: {"duration_ms": AMOUNT},
    SegmentScore: {"duration_ms": AMOUNT},
    SamplingParams: SAMPLING_BOUNDS,
    TokenLogprob: {"logprob": (-math.inf, 0.0)},
    VerifiedTokens: {"duration_ms": AMOUNT},
}
"""Least and most allowed value, ends included, of each number or of each item of a tuple, by type and field."""
CHECKS: dict[type, Callable[[Any], None]] = {
    Conversation: lambda value: check_filled(value.messages, "messages"),
    Distribution: _check_distribution,
    GeneratedSegment: _check_generated,
    Message: lambda value: _check_one_of("role", value.role, get_args(Role)),
    Penalties: _check_penalties,
    Proposal: lambda value: check_length(
        value.distributions, "distributions", len(value.token_ids), "token_ids"
    ),
    Retrieval: lambda value: _check_one_of("source", value.source, get_args(RetrievalSource)),
    SamplingParams: _check_sampling,
    SegmentScore: lambda value: check_length(
        value.surprisal, "surprisal", len(SURPRISAL_FEATURES), "features"
    ),
    States: _check_states,
    Token: _check_token,
    TokenIds: lambda value: check_filled(value.ids, "ids"),
}
"""Checks of values beyond their bounds."""
