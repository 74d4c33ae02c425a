"""The checks of what is received. Each raises InvalidRequest, which names the invalid field from the value on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_args

from semspec.rpc.codec.values import invalid
from semspec.types import (
    LEAST_POSITIVE,
    LEAST_REPETITION,
    MOST_PENALTY,
    MOST_REPETITION,
    ChoiceScores,
    Conversation,
    Distribution,
    Gate,
    GeneratedSegment,
    GenerationParams,
    Judgement,
    Message,
    OperatingPoint,
    Penalties,
    Proposal,
    Retrieval,
    RetrievalSource,
    Role,
    SamplingParams,
    Token,
    TokenIds,
    TokenLogprob,
    VerifiedTokens,
)

MAX_LOGPROBS = 20
"""Maximum number of alternatives per token, as in the OpenAI API."""
_SAMPLING_BOUNDS = {one.name: one.metadata["bounds"] for one in fields(SamplingParams) if one.metadata}
_ENTRY_BYTES = 4
"""Of a token id or a probability in a distribution."""


def check_filled(values: Sequence[object], field: str) -> None:
    """Raises: InvalidRequest when `values` is empty."""
    if not values:
        raise invalid(field, "at least one is needed")


def check_positive(number: int, field: str) -> None:
    """Raises: InvalidRequest when `number` is below 1."""
    if number < 1:
        raise invalid(field, "must be at least 1")


def check_length(values: Sequence[object], field: str, number: int, others: str) -> None:
    """Raises: InvalidRequest when there is not one of `values` for each of the `number` `others`."""
    if len(values) != number:
        raise invalid(field, f"{len(values)}, but {number} {others}")


def check_duration(value: Any) -> None:
    """Raises: InvalidRequest when `duration_ms` is negative or not finite: JSON has no such numbers."""
    if not 0 <= value.duration_ms < math.inf:
        raise invalid("duration_ms", f"must be finite and at least 0, not {value.duration_ms}")


def _check_range(field: str, value: float | None, most: float = 1.0, least: float = 0.0) -> None:
    if value is not None and not least <= value <= most:
        raise invalid(field, f"must be in [{least:g}, {most:g}], not {value}")


def _check_one_of(field: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise invalid(field, f"must be one of {values}, not {value!r}")


def _check_logprob(token: TokenLogprob) -> None:
    if not -math.inf < token.logprob <= 0:
        raise invalid("logprob", f"must be finite and at most 0, not {token.logprob}")


def _check_token(token: Token) -> None:
    if token.stop < token.start:
        raise invalid("stop", f"is {token.stop}, before its start at {token.start}")


def _check_params(params: GenerationParams) -> None:
    check_positive(params.max_tokens, "max_tokens")
    check_positive(params.max_segment_tokens, "max_segment_tokens")
    if (params.num_logprobs or 0) > MAX_LOGPROBS:
        raise invalid("num_logprobs", f"must be at most {MAX_LOGPROBS}, not {params.num_logprobs}")


def _check_sampling(sampling: SamplingParams) -> None:
    if not (sampling.temperature == 0 or LEAST_POSITIVE <= sampling.temperature < math.inf):
        raise invalid("temperature", f"must be 0 or at least {LEAST_POSITIVE}, not {sampling.temperature}")
    for name, (least, most) in _SAMPLING_BOUNDS.items():
        _check_range(name, getattr(sampling, name), most, least)


def _check_penalties(penalties: Penalties) -> None:
    rest = (("presence", penalties.presence), ("frequency", penalties.frequency), *penalties.logit_bias)
    for name, value in rest:
        _check_range(str(name), value, MOST_PENALTY, -MOST_PENALTY)
    _check_range("repetition", penalties.repetition, MOST_REPETITION, LEAST_REPETITION)


def _check_gate(gate: Gate) -> None:
    check_positive(gate.window, "window")
    for name in ("entropy", "floor", "density"):
        _check_range(name, getattr(gate, name))


def _check_generated(generated: GeneratedSegment) -> None:
    """Every segment has at least one token, if only end-of-sequence."""
    num_tokens = len(generated.segment.token_ids)
    check_filled(generated.segment.token_ids, "segment.token_ids")
    check_duration(generated)
    if generated.logprobs is not None:
        check_length(generated.logprobs, "logprobs", num_tokens, "segment.token_ids")


def _check_proposal(proposal: Proposal) -> None:
    check_length(proposal.distributions, "distributions", len(proposal.token_ids), "token_ids")
    if proposal.parents:
        check_length(proposal.parents, "parents", len(proposal.token_ids), "token_ids")
    for index, parent in enumerate(proposal.parents):
        if not -1 <= parent < index:
            raise invalid(f"parents[{index}]", f"must be at least -1 and less than {index}, not {parent}")
    check_duration(proposal)


def _check_distribution(distribution: Distribution) -> None:
    num_bytes = len(distribution.token_ids)
    if num_bytes == 0 or num_bytes % _ENTRY_BYTES:
        raise invalid("token_ids", f"{num_bytes} bytes, but an entry takes {_ENTRY_BYTES}, and one is needed")
    if len(distribution.probabilities) != num_bytes:
        raise invalid("probabilities", f"{len(distribution.probabilities)} bytes, but {num_bytes} of token_ids")


def _check_choices(choices: ChoiceScores) -> None:
    check_duration(choices)
    for index, value in enumerate(choices.probabilities):
        _check_range(f"probabilities[{index}]", value)


def _check_judgement(judgement: Judgement) -> None:
    _check_range("draft_probability", judgement.draft_probability)
    _check_range("target_probability", judgement.target_probability)


def _check_point(point: OperatingPoint) -> None:
    for name in ("threshold", "speed_up"):
        value = getattr(point, name)
        if value is not None and not 0 <= value < math.inf:
            raise invalid(name, f"must be finite and at least 0, not {value}")
    for name in ("acceptance", "right_accepted", "wrong_accepted"):
        _check_range(name, getattr(point, name))


CHECKS: dict[type, Callable[[Any], None]] = {
    ChoiceScores: _check_choices,
    Conversation: lambda one: check_filled(one.messages, "messages"),
    Distribution: _check_distribution,
    Gate: _check_gate,
    GeneratedSegment: _check_generated,
    GenerationParams: _check_params,
    Judgement: _check_judgement,
    Message: lambda one: _check_one_of("role", one.role, get_args(Role)),
    OperatingPoint: _check_point,
    Penalties: _check_penalties,
    Proposal: _check_proposal,
    Retrieval: lambda one: _check_one_of("source", one.source, get_args(RetrievalSource)),
    SamplingParams: _check_sampling,
    Token: _check_token,
    TokenIds: lambda one: check_filled(one.ids, "ids"),
    TokenLogprob: _check_logprob,
    VerifiedTokens: check_duration,
}
