"""Core to wire to core is the identity; what is malformed is refused by name."""

import math
import re
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.message import Message as Wire
from hypothesis import given
from hypothesis import strategies as st

from semspec.errors import InvalidRequest, SemspecError
from semspec.rpc.codec.messages import encode_request, message_of, read, read_prompt
from semspec.rpc.servicers import DraftServicer, TargetServicer, VerifierServicer
from semspec.types import (
    LEAST_POSITIVE,
    SURPRISAL_FEATURES,
    Context,
    Conversation,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    Message,
    ModelInfo,
    OpenText,
    OperatingPoint,
    Piece,
    Prompt,
    Proposal,
    Segment,
    SegmentScore,
    States,
    Token,
    TokenIds,
    TokenLogprob,
    VerifiedTokens,
    VerifierInfo,
    Writer,
)
from semspec.v2 import target_pb2, types_pb2, verifier_pb2
from tests.helpers.fakes import FakeVerifier
from tests.helpers.rpc import CONTEXT, ORDER, PROPOSAL, SEGMENT, FakeEngine, sound_requests

uint32 = st.integers(0, 2**32 - 1)
positive = st.integers(1, 2**32 - 1)
bounded = st.floats(-1000, 1000)
text = st.text(st.characters(codec="utf-8"))
states = st.tuples(st.integers(1, 4), st.integers(1, 8)).flatmap(
    lambda shape: st.builds(
        States,
        st.binary(min_size=4 * math.prod(shape), max_size=4 * math.prod(shape)),
        st.just(shape),
        text,
        text,
    )
)
logprobs = st.floats(-1e300, 0)
alternatives = st.lists(st.builds(TokenLogprob, uint32, st.binary(), logprobs), max_size=3).map(
    tuple
)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "writer": st.sampled_from([Writer.DRAFT, Writer.TARGET]),
    "duration_ms": st.floats(0, width=32, allow_infinity=False),
    "temperature": st.just(0.0) | st.floats(LEAST_POSITIVE, 1e9),
    "top_p": st.floats(LEAST_POSITIVE, 1),
    "seed": st.integers(0, 2**64 - 1),
    "presence": bounded,
    "frequency": bounded,
    "repetition": st.floats(0.01, 100),
    "logit_bias": st.dictionaries(uint32, bounded).map(lambda one: tuple(sorted(one.items()))),
    "max_tokens": positive,
    "max_segment_tokens": positive,
    "num_logprobs": st.none() | st.integers(0, 20),
    "window": positive,
    "logprob": logprobs,
    "alternatives": alternatives,
}
BY_TYPE: dict[object, st.SearchStrategy[Any]] = {
    int: uint32,
    float: st.floats(0, 1),
    str: text,
    bytes: st.binary(),
    bool: st.booleans(),
    States: states,
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Of a type, with every field of a dataclass drawn."""
    arguments = get_args(hint)
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if NoneType in arguments:
        return st.none() | values_of(arguments[0])
    if get_origin(hint) is tuple:
        return st.lists(values_of(arguments[0])).map(tuple)
    if get_origin(hint) is Literal:
        return st.sampled_from(arguments)
    return built(hint) if is_dataclass(hint) else st.sampled_from(hint)


def built(
    kind: Any, unsent: frozenset[str] = frozenset(), **own: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    """Values of a dataclass, whose `unsent` fields keep their defaults."""
    given = BY_NAME | own
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in unsent}
    return st.builds(
        kind,
        **{name: given[name] if name in given else values_of(hint) for name, hint in hints.items()},
    )


written = built(Segment).filter(lambda segment: segment.token_ids)
generated = built(GeneratedSegment, frozenset({"logprobs"}), segment=written).flatmap(
    lambda one: st.builds(
        replace,
        st.just(one),
        logprobs=st.none() | st.tuples(*[built(TokenLogprob)] * len(one.segment.token_ids)),
    )
)
distributions = st.integers(1, 5).flatmap(
    lambda size: st.builds(Distribution, *[st.binary(min_size=4 * size, max_size=4 * size)] * 2)
)
proposals = st.lists(st.tuples(uint32, distributions)).flatmap(
    lambda pairs: built(
        Proposal,
        token_ids=st.just(tuple(token for token, _ in pairs)),
        distributions=st.just(tuple(distribution for _, distribution in pairs)),
    )
)
surprisals = st.tuples(
    *[st.floats(width=32, allow_nan=False, allow_infinity=False)] * len(SURPRISAL_FEATURES)
)
scores = st.builds(SegmentScore, states, surprisals, uint32, st.just(0.0))
tokens = st.builds(
    lambda one, said, a, b: Token(one, said, min(a, b), max(a, b)), uint32, text, uint32, uint32
)
OF_GENERATION = frozenset(
    {
        "want_states",
        "num_logprobs",
        "owner",
        "projection",
        "is_ahead",
        "grammar",
        "penalties",
        "min_tokens",
    }
)
BUDGETS = frozenset({"segmentation", "max_segments", "max_tokens", "max_segment_tokens", "session"})
STOPS = frozenset({"stops", "splits_reasoning"})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (built(Piece), types_pb2.Piece),
        (built(Segment), types_pb2.Piece),
        (states, types_pb2.States),
        (built(GenerationParams, frozenset({"retrieval"})), types_pb2.GenerateRequest),
        (built(GenerationParams, OF_GENERATION | {"retrieval"}), target_pb2.VerifyTokensRequest),
        (built(GenerationParams, OF_GENERATION | BUDGETS | STOPS), types_pb2.ProposeRequest),
        (generated, types_pb2.GenerateResponse),
        (built(OpenText, frozenset({"fallback"})), types_pb2.OpenText),
        (scores, target_pb2.SegmentScore),
        (proposals, types_pb2.Proposal),
        (built(VerifiedTokens), target_pb2.VerifyTokensResponse),
        (built(Judgement), verifier_pb2.Judgement),
        (tokens, target_pb2.Token),
        (built(ModelInfo), types_pb2.ModelInfo),
        (built(VerifierInfo, alternatives=st.lists(text).map(tuple)), verifier_pb2.VerifierInfo),
    ],
)  # fmt: skip
@given(st.data())
def test_value_survives_the_wire_to_the_last_bit(
    values: st.SearchStrategy[Any], kind: type[Wire], data: st.DataObject
) -> None:
    value = data.draw(values)
    received = read(type(value), kind.FromString(message_of(kind, value).SerializeToString()))
    assert repr(received) == repr(value), "also in fields that are not compared"


messages = built(Message)
turns = st.lists(messages, min_size=1).map(tuple)
functions: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"name": text}, optional={"parameters": st.just({})}
)
tools = st.lists(st.fixed_dictionaries({"function": functions}), min_size=1).map(tuple)
variables = st.dictionaries(text, text | st.integers() | st.booleans() | st.none(), min_size=1)
conversations = st.builds(Conversation, turns, tools, st.just({}) | variables)
with_variables = st.builds(Conversation, turns, variables=variables)
token_prompts = built(TokenIds, ids=st.lists(uint32, min_size=1).map(tuple))


@given(text | token_prompts | st.lists(messages, min_size=1) | conversations | with_variables)
def test_prompt_survives_the_wire(prompt: Prompt) -> None:
    assert read_prompt(encode_request(prompt)) == prompt


@pytest.mark.parametrize(
    ("params", "others"),
    [
        (replace(ORDER, max_tokens=-1), {}),
        (replace(ORDER, session="\ud800"), {}),
        (ORDER, {"open_ids": (-1,)}),
        (ORDER, {"open_ids": (2**32,)}),
    ],
)
def test_what_protobuf_cannot_hold_is_the_callers_mistake(
    params: GenerationParams, others: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest):
        message_of(
            types_pb2.ProposeRequest if others else types_pb2.GenerateRequest, params, **others
        )


def test_penalties_that_change_nothing_are_not_sent() -> None:
    assert not message_of(types_pb2.GenerateRequest, ORDER).HasField("penalties")


WHOLE = Context((*CONTEXT.pieces, SEGMENT))


async def answer_to(method: str, request: Any) -> object:
    """Answer a request by a service of fakes."""
    servicers = (
        DraftServicer(FakeEngine),
        TargetServicer(FakeEngine),
        VerifierServicer(FakeVerifier),
    )
    servicer = next(servicer for servicer in servicers if hasattr(servicer, method))
    await servicer.load()
    servicer.refusal = ""
    result = getattr(servicer, method)(request)
    return await anext(result) if method == "Generate" else await result


NO_JSON = ("\x00", "[" * 20_000)
ODD_FIELDS_OF_REQUESTS: dict[str, dict[str, tuple[object, ...]]] = {
    "Generate": {
        **dict.fromkeys(
            ("context", "context[1].end", "segmentation", "max_tokens", "max_segment_tokens"),
            (None,),
        ),
        "context[1].writer": (None, 9),
        "context[0].end": (types_pb2.SEGMENT_END_EOS,),
        "num_logprobs": (21,),
        "sampling.temperature": (math.nan, -0.1, math.inf, 1e-300),
        "sampling.top_p": (1e-300, 1.01, math.nan),
        "penalties.presence": (math.nan,),
        "penalties.frequency": (1e300,),
        "penalties.repetition": (1e-300, 1e300),
    },
    "Propose": {"context": (None,), "num_tokens": (None,), "retrieval.source": ("elsewhere",)},
    "Score": {"segments": (None,)},
    "VerifyTokens": {
        **dict.fromkeys(
            ("context", "max_tokens", "proposal.distributions[0].probabilities"), (None,)
        ),
    },
    "Encode": {
        "conversation.messages": (None,),
        "conversation.messages[0].tool_calls": (
            *NO_JSON,
            "1",
            "[1]",
            "{}1",
            '[{"id": "c"}]',
            '[{"function": {"name": "f", "arguments": {}}}]',
        ),
        "conversation.tools": (
            *NO_JSON,
            "{}",
            "[1]",
            '[{"function": {}}]',
            '[{"function": {"name": 1}}]',
        ),
        "conversation.variables": (*NO_JSON, "[]", "1", '{"a": []}', '{"a": "\\ud800"}'),
    },
    "Judge": {
        **dict.fromkeys(
            ("draft_states", "scores", "scores[0].surprisal", "draft_states[0].shape"), (None,)
        ),
        "draft_states[0].data": (b"\0" * 23, b""),
        "scores[0].duration_ms": (math.nan, -1.0),
    },
    "Cluster": {"segments": (None,), "ends[0]": (9,)},
}
"""What is refused, by method and field; None: the field is not set."""


def set_field(message: Any, path: str, value: object) -> None:
    """Set the field at a path such as `logprobs[1].logprob`, or clear it for None."""
    *parents, last = re.findall(r"\w+", path)
    for name in parents:
        message = message[int(name)] if name.isdigit() else getattr(message, name)
    if last.isdigit():
        message[int(last)] = value
    elif value is None:
        message.ClearField(last)
    else:
        setattr(message, last, value)


async def assert_refused(method: str, request: Any, field: str) -> None:
    with pytest.raises(SemspecError) as refusal:
        await answer_to(method, request)
    assert isinstance(refusal.value, InvalidRequest)
    assert refusal.value.parameter == field
    assert field in str(refusal.value)


@pytest.mark.parametrize("method", ODD_FIELDS_OF_REQUESTS)
async def test_odd_field_of_a_request_is_refused_by_name(method: str) -> None:
    await answer_to(method, sound_requests(WHOLE)[method])
    for field, values in ODD_FIELDS_OF_REQUESTS[method].items():
        for value in values:
            request = sound_requests(WHOLE)[method]
            set_field(request, field, value)
            await assert_refused(method, request, field)


BIASED = types_pb2.Penalties(repetition=1, logit_bias={7: 1e9})


@pytest.mark.parametrize(
    ("method", "spoil", "field"),
    [
        ("Generate", lambda m: setattr(m.tail, "before", b"x"), "context"),
        ("Generate", lambda m: m.ClearField("sampling"), "sampling.top_p"),
        ("Generate", lambda m: m.penalties.CopyFrom(BIASED), "penalties.7"),
        ("Score", lambda m: m.segments[0].CopyFrom(m.context[0]), "segments[0].writer"),
        ("VerifyTokens", lambda m: m.proposal.token_ids.append(1), "proposal.distributions"),
        (
            "VerifyTokens",
            lambda m: m.proposal.distributions[1].Clear(),
            "proposal.distributions[1].token_ids",
        ),
        ("Encode", lambda m: m.Clear(), "prompt"),
        ("Judge", lambda m: m.draft_states[0].shape.append(1), "draft_states[0].shape"),
        ("Judge", lambda m: m.draft_states[0].shape.__setitem__(0, 0), "draft_states[0].data"),
        ("Cluster", lambda m: m.ends.append(types_pb2.SEGMENT_END_EOS), "ends"),
    ],
)
async def test_malformed_request_is_refused_by_field(
    method: str, spoil: Callable[[Any], object], field: str
) -> None:
    request = sound_requests(WHOLE)[method]
    spoil(request)
    await assert_refused(method, request, field)


LOGPROBS = (
    TokenLogprob(4, b"Two", -0.1, (TokenLogprob(4, b"Two", -0.1),)),
    TokenLogprob(5, b".\n\n", -1e-300),
)
WRITTEN = GeneratedSegment(SEGMENT, None, 1.0, LOGPROBS)
POINTS = (
    OperatingPoint(0.0, 1.0, 1.0, 1.0, 3.1),
    OperatingPoint(0.5, 0.8, None, 0.0, None),
    OperatingPoint(None, 0.7, 0.9, None, 0.0),
)
INFO = VerifierInfo("d", "t", "states-v1", (), operating_points=POINTS)


VALUES: dict[object, type[Wire]] = {
    WRITTEN: types_pb2.GenerateResponse,
    PROPOSAL: types_pb2.Proposal,
    VerifiedTokens((SEGMENT,), (), 0, 1.0): target_pb2.VerifyTokensResponse,
    Judgement(0.5, 0.5): verifier_pb2.Judgement,
    Token(2, "b", 2, 3): target_pb2.Token,
    INFO: verifier_pb2.VerifierInfo,
}
ODD_FIELDS: dict[type[Wire], dict[str, tuple[float, ...]]] = {
    types_pb2.GenerateResponse: {
        "duration_ms": (math.nan, math.inf, -0.001),
        "logprobs[1].logprob": (0.01, math.nan),
        "logprobs[0].alternatives[0].logprob": (-math.inf,),
    },
    types_pb2.Proposal: {"duration_ms": (math.nan, math.inf, -0.001)},
    target_pb2.VerifyTokensResponse: {"duration_ms": (math.nan, math.inf, -0.001)},
    verifier_pb2.Judgement: {
        "target_probability": (math.nan, -0.001, 1.001),
        "draft_probability": (1.1,),
    },
    target_pb2.Token: {"stop": (1,)},
    verifier_pb2.VerifierInfo: {
        "operating_points[2].threshold": (-0.1, math.inf),
        "operating_points[2].acceptance": (1.1,),
        "operating_points[2].wrong_accepted": (-1,),
        "operating_points[2].speed_up": (math.nan,),
    },
}


@pytest.mark.parametrize(
    ("value", "kind"), VALUES.items(), ids=lambda one: getattr(one, "__name__", "")
)
def test_odd_number_is_refused_by_field(value: object, kind: type[Wire]) -> None:
    for path, numbers in ODD_FIELDS[kind].items():
        for number in numbers:
            message = message_of(kind, value)
            read(type(value), message)
            set_field(message, path, number)
            with pytest.raises(InvalidRequest) as refusal:
                read(type(value), message)
            assert refusal.value.parameter == path


def test_each_token_has_logprobs_or_none_has() -> None:
    message = message_of(types_pb2.GenerateResponse, WRITTEN)
    message.logprobs.pop()
    with pytest.raises(InvalidRequest) as refusal:
        read(GeneratedSegment, message)
    assert refusal.value.parameter == "logprobs"
