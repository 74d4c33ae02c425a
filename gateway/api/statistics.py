"""The numbers that come with an answer: the object `semspec`, and `usage` and `metrics` in others' shapes."""

from collections.abc import Sequence
from typing import Any, Self

from gateway.generation.output import ChoiceOutput
from gateway.generation.request import Parameters, Request
from gateway.generation.strictness import Expected
from semspec import records
from semspec.records import Body, SegmentTrace, if_any, share


class Numbers(Body):
    """What came of a generation, or of all of a request's."""

    id: str
    strategy: str
    num_segments: int
    num_accepted: int
    num_rejected: int
    acceptance_rate: float | None
    """Of judged segments; null if none was."""
    num_proposed_tokens: int
    num_accepted_tokens: int
    target_ratio: float | None
    """Share of the output's tokens that the target came up with."""
    latency_ms: float
    tokens_per_s: float | None
    fallback: str | None
    degraded: bool
    """Whether the trace or the session's turns could not be stored in full."""


class ChoiceStatistics(Numbers):
    """One of several choices."""

    seed: int
    trace: list[SegmentTrace] | None = if_any()

    @classmethod
    def of(cls, output: ChoiceOutput, trace: bool) -> Self:
        seed = output.generation.sampling.seed
        return cls(**_numbers([output]), seed=seed, trace=_trace(output) if trace else None)


class Statistics(Numbers):
    """The answer's `semspec`; `trace` only if asked for, and with several choices in each of `choices`."""

    parameters: Parameters
    expected: Expected | None
    """What the probes' report expects of the rule that `strictness` led to."""
    seed: int
    choices: list[ChoiceStatistics] | None = if_any()
    trace: list[SegmentTrace] | None = if_any()

    @classmethod
    def of(cls, outputs: Sequence[ChoiceOutput], request: Request) -> Self:
        """Over all choices, and each by itself if there are several."""
        is_one = len(outputs) == 1
        return cls(
            **_numbers(outputs),
            parameters=Parameters.of(outputs[0].generation, request.strictness, request.stops),
            expected=request.expected,
            seed=request.seed,
            choices=None if is_one else [ChoiceStatistics.of(output, request.trace) for output in outputs],
            trace=_trace(outputs[0]) if is_one and request.trace else None,
        )


class SpeculativeDecoding(Body):
    """Acceptance as `vllm serve --per-request-spec-decode-metrics summary` has it; `semspec.records.Step` says what a
    step is here."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    """How many steps accepted just 0, 1, 2, ... tokens, up to the most that any did."""
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_steps: int
    num_spec_tokens: None
    """The most tokens a draft may have: a segment has no such bound."""

    @classmethod
    def of(cls, steps: Sequence[records.Step]) -> Self | None:
        """None where nothing drafted was decided on."""
        num_draft = sum(step.num_draft_tokens for step in steps)
        if not num_draft:
            return None
        num_accepted = sum(step.num_accepted_tokens for step in steps)
        histogram = [0] * (1 + max(step.num_accepted_tokens for step in steps))
        for step in steps:
            histogram[step.num_accepted_tokens] += 1
        return cls(
            mean_acceptance_length=1 + num_accepted / len(steps),
            draft_acceptance_rate=num_accepted / num_draft,
            acceptance_histogram=histogram,
            num_accepted_draft_tokens=num_accepted,
            num_draft_tokens=num_draft,
            num_spec_steps=len(steps),
            num_spec_tokens=None,
        )


class AnswerMetrics(Body):
    """Null for several choices, as in vLLM, and where nothing drafted was decided on."""

    speculative_decoding: SpeculativeDecoding | None

    @classmethod
    def of(cls, outputs: Sequence[ChoiceOutput]) -> Self:
        is_one = len(outputs) == 1
        steps = records.statistics(outputs[0].records).steps
        return cls(speculative_decoding=SpeculativeDecoding.of(steps) if is_one else None)


class TokenCounts(Body):
    """Over all choices; their common prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, outputs: Sequence[ChoiceOutput]) -> Self:
        num_prompt, num_completion = outputs[0].num_prompt_tokens, sum(output.num_tokens for output in outputs)
        return cls(prompt_tokens=num_prompt, completion_tokens=num_completion, total_tokens=num_prompt + num_completion)


def _trace(output: ChoiceOutput) -> list[SegmentTrace]:
    return [SegmentTrace.of(record) for record in output.records]


def _numbers(outputs: Sequence[ChoiceOutput]) -> dict[str, Any]:
    """The fields of `Numbers`."""
    numbers = records.statistics(record for output in outputs for record in output.records)
    latency_s = max(output.latency_s for output in outputs)
    return {
        "id": outputs[0].id,
        "strategy": outputs[0].generation.strategy,
        "num_segments": numbers.num_segments,
        "num_accepted": numbers.num_accepted,
        "num_rejected": numbers.num_rejected,
        "acceptance_rate": numbers.acceptance_rate,
        "num_proposed_tokens": numbers.num_proposed_tokens,
        "num_accepted_tokens": numbers.num_accepted_tokens,
        "target_ratio": numbers.target_ratio,
        "latency_ms": latency_s * 1e3,
        "tokens_per_s": share(numbers.num_tokens, latency_s),
        "fallback": numbers.fallback,
        "degraded": any(output.degraded for output in outputs),
    }
