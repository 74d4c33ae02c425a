"""Response schemas that several APIs share: statistics, which are `semspec`, OpenAI's `usage` and vLLM's `metrics`."""

from pydantic import Field

from semspec.records import Body, SegmentTrace, if_any
from semspec_gateway.generation.request import Expected, Parameters


class Numbers(Body):
    """Statistics of one generation, or of all of a request's."""

    id: str
    strategy: str
    num_segments: int
    num_accepted: int
    num_rejected: int
    acceptance_rate: float | None
    """Over judged segments; null if there are none."""
    num_proposed_tokens: int
    num_accepted_tokens: int
    num_undrafted: int = Field(default=0, exclude_if=lambda number: not number)
    """Segments that the target wrote alone because of load; left out if there are none."""
    target_ratio: float | None
    """Share of the output tokens that the target wrote."""
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
    """The response's `semspec`; `trace` only if requested, and with several choices in each of `choices`."""

    parameters: Parameters
    expected: Expected | None
    """What the probes' report expects of the acceptance rule that `strictness` selected."""
    seed: int
    choices: list[ChoiceStatistics] | None = if_any()
    trace: list[SegmentTrace] | None = if_any()


class SpeculativeDecoding(Body):
    """See `semspec.records.speculative_decoding`."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    """Number of steps that accepted exactly 0, 1, 2, ... tokens, up to the maximum."""
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_steps: int
    num_spec_tokens: None
    """vLLM's maximum of tokens per draft; null, since a segment has no such maximum."""


class AnswerMetrics(Body):
    """Null for several choices, as in vLLM, and where no drafted segment was judged."""

    speculative_decoding: SpeculativeDecoding | None


class CompletionTokens(Body):
    """What the output tokens are."""

    reasoning_tokens: int
    """Tokens of the reasoning; a segment with one of its marks is split by the share of characters."""


class PromptTokens(Body):
    """What the prompt tokens are."""

    cached_tokens: int
    """Those that the target kept from earlier requests."""


class TokenCounts(Body):
    """Token counts over all choices; the common prompt of several choices counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens | None = if_any()
    """Only where the target reports what it had cached."""
    completion_tokens_details: CompletionTokens | None = if_any()
    """Only of chats."""
