"""Messages of `Encode`, `Tokenize`, `Write` and `Propose`."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import get_args

from semspec.rpc.codec.common import (
    SEGMENTATIONS_FROM_WIRE,
    SEGMENTATIONS_TO_WIRE,
    check_filled,
    check_positive,
    context_from_wire,
    duration,
    invalid,
    known,
    num_cached_tokens,
    piece_from_wire,
    put_context,
    put_piece,
    put_states,
    segment_from_wire,
    states_from_wire,
)
from semspec.rpc.contexts import LastContexts
from semspec.types import (
    LEAST_POSITIVE,
    LEAST_REPETITION,
    MOST_PENALTY,
    MOST_REPETITION,
    Context,
    Conversation,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    Message,
    Penalties,
    Piece,
    Prompt,
    Proposal,
    Retrieval,
    RetrievalSource,
    Role,
    SamplingParams,
    Segment,
    Token,
    TokenIds,
    TokenLogprob,
)
from semspec.v1 import target_pb2, types_pb2

_ROLES: tuple[str, ...] = get_args(Role)


def encode_request_to_wire(prompt: Prompt) -> types_pb2.EncodeRequest:
    """See `semspec.types.Prompt`."""
    if isinstance(prompt, str):
        return types_pb2.EncodeRequest(text=prompt)
    if isinstance(prompt, TokenIds):
        return types_pb2.EncodeRequest(tokens=types_pb2.TokenIds(ids=prompt.ids))
    given = prompt if isinstance(prompt, Conversation) else Conversation(tuple(prompt))
    turns = [types_pb2.Message(**asdict(turn)) for turn in given.messages]
    conversation = types_pb2.Conversation(messages=turns, tools=given.tools, variables=given.variables)
    return types_pb2.EncodeRequest(conversation=conversation)


def encode_request_from_wire(message: types_pb2.EncodeRequest) -> Prompt:
    """See `semspec.types.Prompt`."""
    match message.WhichOneof("prompt"):
        case "text":
            return message.text
        case "tokens":
            check_filled(message.tokens.ids, "tokens.ids")
            return TokenIds(tuple(message.tokens.ids))
        case "conversation":
            given = message.conversation
            messages = _messages_from_wire(given.messages)
            is_plain = not (given.tools or given.variables)
            return messages if is_plain else Conversation(tuple(messages), given.tools, given.variables)
        case _:
            raise invalid("prompt", "give a text, token ids or a conversation")


def _messages_from_wire(turns: Sequence[types_pb2.Message]) -> list[Message]:
    check_filled(turns, "conversation.messages")
    for i, turn in enumerate(turns):
        if turn.role not in _ROLES:
            raise invalid(f"conversation.messages[{i}].role", f"must be one of {_ROLES}, not {turn.role!r}")
    return [
        Message(turn.role, turn.content, turn.tool_calls, turn.tool_call_id)  # type: ignore[arg-type]  # one of _ROLES
        for turn in turns
    ]


def encode_response_to_wire(prompt: Piece) -> types_pb2.EncodeResponse:
    """The tokenized prompt."""
    message = types_pb2.EncodeResponse()
    put_piece(message.prompt, prompt)
    return message


def encode_response_from_wire(message: types_pb2.EncodeResponse) -> Piece:
    """The tokenized prompt."""
    piece = piece_from_wire(message.prompt, "prompt")
    if isinstance(piece, Segment):
        raise invalid("prompt.writer", f"must be the user, not the {piece.writer}")
    return piece


def tokenize_request_to_wire(text: str) -> target_pb2.TokenizeRequest:
    """A text to tokenize unchanged."""
    return target_pb2.TokenizeRequest(text=text)


def tokenize_request_from_wire(message: target_pb2.TokenizeRequest) -> str:
    """A text to tokenize unchanged; may be empty."""
    return message.text


def tokenize_response_to_wire(tokens: Sequence[Token]) -> target_pb2.TokenizeResponse:
    """The tokens of a text."""
    message = target_pb2.TokenizeResponse()
    for token in tokens:
        message.tokens.add(id=token.id, text=token.text, start=token.start, stop=token.stop)
    return message


def tokenize_response_from_wire(message: target_pb2.TokenizeResponse) -> list[Token]:
    """The tokens of a text."""
    for i, token in enumerate(message.tokens):
        if token.stop < token.start:
            raise invalid(f"tokens[{i}].stop", f"is {token.stop}, before its start at {token.start}")
    return [Token(token.id, token.text, token.start, token.stop) for token in message.tokens]


def put_logprobs(message: types_pb2.WriteResponse, logprobs: Sequence[TokenLogprob]) -> None:
    """Fill in the logprobs of a segment's tokens."""
    for logprob in logprobs:
        _put(message.logprobs.add(), logprob)


def _put(message: types_pb2.TokenLogprob, logprob: TokenLogprob) -> None:
    message.token_id, message.data, message.logprob = logprob.token_id, logprob.data, logprob.logprob
    for alternative in logprob.alternatives:
        _put(message.alternatives.add(), alternative)


def logprobs_from_wire(message: types_pb2.WriteResponse) -> tuple[TokenLogprob, ...] | None:
    """One per token of the segment, or None if there are none; every segment has at least one token."""
    if not message.logprobs:
        return None
    if len(message.logprobs) != len(message.segment.token_ids):
        raise invalid("logprobs", f"{len(message.logprobs)}, but {len(message.segment.token_ids)} segment.token_ids")
    return tuple(_from_wire(logprob, f"logprobs[{i}]") for i, logprob in enumerate(message.logprobs))


def _from_wire(message: types_pb2.TokenLogprob, field: str) -> TokenLogprob:
    if not float("-inf") < message.logprob <= 0:
        raise invalid(f"{field}.logprob", f"must be finite and at most 0, not {message.logprob}")
    alternatives = (
        _from_wire(alternative, f"{field}.alternatives[{i}]") for i, alternative in enumerate(message.alternatives)
    )
    return TokenLogprob(message.token_id, message.data, message.logprob, tuple(alternatives))


MAX_LOGPROBS = 20
"""Maximum number of alternatives per token, as in the OpenAI API."""


def write_request_to_wire(context: Context, params: GenerationParams, before: bytes = b"") -> types_pb2.WriteRequest:
    """The request of a `Write` call. `before` as for `put_context`."""
    message = types_pb2.WriteRequest(
        sampling=sampling_to_wire(params.sampling),
        segmentation=SEGMENTATIONS_TO_WIRE[params.segmentation],
        max_segments=params.max_segments,
        max_tokens=params.max_tokens,
        max_segment_tokens=params.max_segment_tokens,
        want_states=params.want_states,
        num_logprobs=params.num_logprobs,
        session=params.session,
        projection=params.projection,
        is_ahead=params.is_ahead,
        grammar=params.grammar,
        penalties=None if params.penalties.is_neutral else penalties_to_wire(params.penalties),
    )
    put_context(message, context, before)
    return message


def write_request_from_wire(message: types_pb2.WriteRequest, kept: LastContexts) -> tuple[Context, GenerationParams]:
    """The context and the parameters of a `Write` call."""
    params = params_from_wire(message)
    params = replace(
        params,
        want_states=message.want_states,
        num_logprobs=_num_logprobs(message),
        projection=message.projection,
        is_ahead=message.is_ahead,
        grammar=message.grammar,
        penalties=penalties_from_wire(message.penalties) if message.HasField("penalties") else Penalties(),
    )
    return context_from_wire(message, kept), params


def params_from_wire(message: types_pb2.WriteRequest | target_pb2.VerifyRequest) -> GenerationParams:
    """Sampling, segmentation and budgets of a `Write` or `Verify` request, checked to be in range."""
    check_positive(message.max_tokens, "max_tokens")
    check_positive(message.max_segment_tokens, "max_segment_tokens")
    return GenerationParams(
        sampling=sampling_from_wire(message.sampling),
        segmentation=known(SEGMENTATIONS_FROM_WIRE, message.segmentation, "segmentation"),
        max_segments=message.max_segments,
        max_tokens=message.max_tokens,
        max_segment_tokens=message.max_segment_tokens,
        session=message.session,
    )


def _num_logprobs(message: types_pb2.WriteRequest) -> int | None:
    if not message.HasField("num_logprobs"):
        return None
    if message.num_logprobs > MAX_LOGPROBS:
        raise invalid("num_logprobs", f"must be at most {MAX_LOGPROBS}, not {message.num_logprobs}")
    return message.num_logprobs


def sampling_to_wire(sampling: SamplingParams) -> types_pb2.Sampling:
    """Sampling parameters."""
    return types_pb2.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        min_p=sampling.min_p,
    )


def sampling_from_wire(message: types_pb2.Sampling) -> SamplingParams:
    """Sampling parameters, checked to be in range."""
    if not (message.temperature == 0 or LEAST_POSITIVE <= message.temperature < math.inf):
        raise invalid("sampling.temperature", f"must be 0 or at least {LEAST_POSITIVE}, not {message.temperature}")
    if not LEAST_POSITIVE <= message.top_p <= 1:
        raise invalid("sampling.top_p", f"must be in [{LEAST_POSITIVE}, 1], not {message.top_p}")
    if not 0 <= message.min_p <= 1:
        raise invalid("sampling.min_p", f"must be in [0, 1], not {message.min_p}")
    return SamplingParams(message.temperature, message.top_p, message.top_k, message.seed, message.min_p)


def penalties_to_wire(penalties: Penalties) -> types_pb2.Penalties:
    """Penalties and biases."""
    return types_pb2.Penalties(
        presence=penalties.presence,
        frequency=penalties.frequency,
        repetition=penalties.repetition,
        logit_bias=dict(penalties.logit_bias),
    )


def penalties_from_wire(message: types_pb2.Penalties) -> Penalties:
    """Penalties and biases, checked to be in range."""
    biases = tuple(sorted(message.logit_bias.items()))
    for name, value in (("presence", message.presence), ("frequency", message.frequency), *biases):
        if not abs(value) <= MOST_PENALTY:
            raise invalid(f"penalties.{name}", f"must be in [-{MOST_PENALTY:g}, {MOST_PENALTY:g}], not {value}")
    if not LEAST_REPETITION <= message.repetition <= MOST_REPETITION:
        limits = f"[{LEAST_REPETITION:g}, {MOST_REPETITION:g}]"
        raise invalid("penalties.repetition", f"must be in {limits}, not {message.repetition}")
    return Penalties(message.presence, message.frequency, message.repetition, biases)


def written_to_wire(generated: GeneratedSegment) -> types_pb2.WriteResponse:
    """One message of a `Write` stream."""
    message = types_pb2.WriteResponse(duration_ms=generated.duration_ms, num_cached_tokens=generated.num_cached_tokens)
    put_piece(message.segment, generated.segment)
    if generated.states is not None:
        put_states(message.states, generated.states)
    if generated.logprobs is not None:
        put_logprobs(message, generated.logprobs)
    return message


def written_from_wire(message: types_pb2.WriteResponse) -> GeneratedSegment:
    """One message of a `Write` stream; every segment has at least one token, if only end-of-sequence."""
    check_filled(message.segment.token_ids, "segment.token_ids")
    states = states_from_wire(message.states, "states") if message.HasField("states") else None
    segment = segment_from_wire(message.segment, "segment")
    duration_ms = duration(message.duration_ms, "duration_ms")
    return GeneratedSegment(segment, states, duration_ms, logprobs_from_wire(message), num_cached_tokens(message))


_ENTRY_BYTES = 4


def propose_request_to_wire(
    context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int, before: bytes = b""
) -> types_pb2.ProposeRequest:
    """The request of a `Propose` call; of `params`, only sampling, session and retrieval are sent. `before` as for
    `put_context`."""
    message = types_pb2.ProposeRequest(
        open_token_ids=open_ids,
        sampling=sampling_to_wire(params.sampling),
        num_tokens=num_tokens,
        session=params.session,
    )
    if params.retrieval is not None:
        retrieval = params.retrieval
        message.retrieval.CopyFrom(
            types_pb2.Retrieval(state=retrieval.state, source=retrieval.source, tree=retrieval.tree)
        )
    put_context(message, context, before)
    return message


def propose_request_from_wire(
    message: types_pb2.ProposeRequest, kept: LastContexts
) -> tuple[Context, tuple[int, ...], GenerationParams, int]:
    """Context, open tokens, parameters and number of tokens of a `Propose` call."""
    check_positive(message.num_tokens, "num_tokens")
    retrieval = _retrieval_from_wire(message.retrieval) if message.HasField("retrieval") else None
    params = GenerationParams(sampling_from_wire(message.sampling), session=message.session, retrieval=retrieval)
    return context_from_wire(message, kept), tuple(message.open_token_ids), params, message.num_tokens


def _retrieval_from_wire(message: types_pb2.Retrieval) -> Retrieval:
    for source in get_args(RetrievalSource):
        if message.source == source:
            return Retrieval(message.state, source, message.tree)
    raise invalid("retrieval.source", f"must be one of {get_args(RetrievalSource)}, not {message.source!r}")


def proposal_to_wire(proposal: Proposal) -> types_pb2.Proposal:
    """The proposed tokens."""
    message = types_pb2.Proposal()
    put_proposal(message, proposal)
    return message


def put_proposal(message: types_pb2.Proposal, proposal: Proposal) -> None:
    """Fill in proposed tokens; the proposal may be empty."""
    message.token_ids.extend(proposal.token_ids)
    message.tokenizer = proposal.tokenizer
    message.duration_ms = proposal.duration_ms
    message.parents.extend(proposal.parents)
    if proposal.state_layer is not None:
        message.state_layer = proposal.state_layer
    for distribution in proposal.distributions:
        entry = message.distributions.add()
        entry.token_ids, entry.probabilities = distribution.token_ids, distribution.probabilities


def proposal_from_wire(message: types_pb2.Proposal, field: str = "") -> Proposal:
    """Proposed tokens with one distribution each. Checks the sizes of the byte fields; does not copy the bytes."""
    path = f"{field}." if field else ""
    if len(message.distributions) != len(message.token_ids):
        complaint = f"{len(message.distributions)}, but {len(message.token_ids)} token_ids"
        raise invalid(f"{path}distributions", complaint)
    distributions = tuple(
        _distribution_from_wire(entry, f"{path}distributions[{i}]") for i, entry in enumerate(message.distributions)
    )
    state_layer = message.state_layer if message.HasField("state_layer") else None
    parents = tuple(message.parents)
    if parents and len(parents) != len(message.token_ids):
        raise invalid(f"{path}parents", f"{len(parents)}, but {len(message.token_ids)} token_ids")
    for index, parent in enumerate(parents):
        if not -1 <= parent < index:
            raise invalid(f"{path}parents[{index}]", f"must be at least -1 and less than {index}, not {parent}")
    token_ids, duration_ms = tuple(message.token_ids), duration(message.duration_ms, f"{path}duration_ms")
    return Proposal(token_ids, distributions, message.tokenizer, duration_ms, state_layer, parents)


def _distribution_from_wire(message: types_pb2.Distribution, field: str) -> Distribution:
    num_bytes = len(message.token_ids)
    if num_bytes == 0 or num_bytes % _ENTRY_BYTES:
        raise invalid(f"{field}.token_ids", f"{num_bytes} bytes, but an entry takes {_ENTRY_BYTES}, and one is needed")
    if len(message.probabilities) != num_bytes:
        raise invalid(f"{field}.probabilities", f"{len(message.probabilities)} bytes, but {num_bytes} of token_ids")
    return Distribution(message.token_ids, message.probabilities)
