"""A segment's record, and the numbers that come with an answer."""

from gateway.http.openapi.described import Described
from semspec.records import Verdict
from semspec.types import AcceptanceRule, ScoreMethod, Segmentation, SegmentEnd, Strategy, Writer


class SegmentText(Described):
    """A segment as one of the models wrote it."""

    text: str
    token_ids: list[int]
    num_tokens: int
    tokenizer: str
    """Fingerprint of the tokenizer the ids belong to."""
    writer: Writer
    end: SegmentEnd


class SegmentTimes(Described):
    """Waits for each stage, in milliseconds."""

    draft_ms: float
    read_ms: float
    judge_ms: float
    write_ms: float
    wire_ms: float
    """The part of the others that no engine spent."""


class SegmentForecast(Described):
    """What the strategy `auto` expected when it chose how to go on."""

    gamma: int
    """Segments to draft at a time; 0: the target alone."""
    draft_ms_per_token: float | None
    target_ms_per_token: float | None


class RecordToken(Described):
    """A token in a trace."""

    token_id: int
    bytes: list[int]
    logprob: float
    alternatives: list["RecordToken"]


class SegmentTrace(SegmentText):
    """A kept segment and how it came to be."""

    index: int
    verdict: Verdict
    draft_probability: float | None
    target_probability: float | None
    ratio: float | None
    """Target's over draft's probability; null where the draft's is 0 or nothing was judged."""
    draw: float | None
    """The number the acceptance rule `sample` compared with the ratio."""
    rejected: SegmentText | None
    """The drafted segment that this one replaces."""
    num_proposed_tokens: int
    num_accepted_tokens: int
    score: float | None
    times: SegmentTimes
    fallback: str | None
    """Why the target went on alone."""
    forecast: SegmentForecast | None
    logprobs: tuple[RecordToken, ...] = ()
    """Only if asked for."""


class ServedAcceptance(Described):
    """When a drafted segment was kept."""

    rule: AcceptanceRule
    threshold: float


class ServedScoring(Described):
    """When `spec-reason` kept a step."""

    method: ScoreMethod
    threshold: float


class Parameters(Described):
    """All that was asked for, defaults filled in, but the prompt and the seed."""

    strategy: Strategy
    gamma: int
    token_gamma: int
    segmentation: Segmentation
    acceptance: ServedAcceptance
    strictness: float | None
    scoring: ServedScoring
    draft_ahead: bool
    temperature: float
    top_p: float
    top_k: int
    """0: every token."""
    max_tokens: int
    stop: list[str]


class Expectation(Described):
    """What the probes' report expects of the rule that `strictness` led to."""

    acceptance: float
    wrong_accepted: float | None
    speed_up: float | None


class Numbers(Described):
    """What came of a generation, or of all of a request's."""

    id: str
    strategy: Strategy
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
    trace: tuple[SegmentTrace, ...] = ()


class Statistics(Numbers):
    """The answer's `semspec`; `trace` only if asked for, and with several choices in each of `choices`."""

    parameters: Parameters
    expected: Expectation | None
    seed: int
    choices: tuple[ChoiceStatistics, ...] = ()
    trace: tuple[SegmentTrace, ...] = ()


class SpeculativeDecoding(Described):
    """Acceptance in vLLM's words."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_steps: int
    num_spec_tokens: None


class AnswerMetrics(Described):
    """Null for several choices, and where nothing drafted was decided on."""

    speculative_decoding: SpeculativeDecoding | None
