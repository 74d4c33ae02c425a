"""The numbers that come with an answer: the object `semspec`, and `usage` and `metrics` in others' shapes."""

from semspec.gateway.generation.request import Parameters
from semspec.gateway.generation.strictness import Expected
from semspec.records import Body, SegmentTrace, if_any


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


class Statistics(Numbers):
    """The answer's `semspec`; `trace` only if asked for, and with several choices in each of `choices`."""

    parameters: Parameters
    expected: Expected | None
    """What the probes' report expects of the rule that `strictness` led to."""
    seed: int
    choices: list[ChoiceStatistics] | None = if_any()
    trace: list[SegmentTrace] | None = if_any()


class SpeculativeDecoding(Body):
    """See `semspec.records.speculative_decoding`."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    """How many steps accepted just 0, 1, 2, ... tokens, up to the most that any did."""
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_steps: int
    num_spec_tokens: None
    """The most tokens a draft may have: a segment has no such bound."""


class AnswerMetrics(Body):
    """Null for several choices, as in vLLM, and where nothing drafted was decided on."""

    speculative_decoding: SpeculativeDecoding | None


class TokenCounts(Body):
    """Over all choices; their common prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
