"""What the answers of all APIs have: their format's base, and statistics, which are `semspec`, OpenAI's `usage` and
vLLM's `metrics`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from semspec import records
from semspec.errors import SemspecError
from semspec.gateway.api.shared.errors import error_body
from semspec.gateway.api.shared.resolver import AnswerOptions
from semspec.gateway.generation.output import ChoiceOutput, Ended, Kept, numbers
from semspec.gateway.generation.request import Parameters, Request
from semspec.gateway.generation.strictness import Expected
from semspec.records import Body, SegmentTrace, if_any
from semspec.types import Drafted


class Format(ABC):
    """Formats a generation for one API: chunks of a stream, and the whole response."""

    last_line: str | None = None
    """The data of a stream's last event."""
    options: type[AnswerOptions] = AnswerOptions

    def __init__(self, request: Request, options: Mapping[str, Any], system_fingerprint: str) -> None:
        self._request = request
        self._options: Any = self.options.model_validate(options)
        self._system_fingerprint = system_fingerprint

    def opening(self, index: int) -> Sequence[BaseModel]:
        """Chunks before a choice's first text."""
        return ()

    def drafted(self, event: Drafted) -> Sequence[BaseModel]:
        """Chunks with drafted segments that wait for their verdict, if the client requested them."""
        return ()

    @abstractmethod
    def text(self, index: int, event: Kept | Ended) -> Sequence[BaseModel]:
        """Chunks of a segment, or of the text buffered until the end.

        Called for each event, even if the client has its text already.
        """

    @abstractmethod
    def closing(self, index: int, ended: Ended, outputs: Sequence[ChoiceOutput]) -> Sequence[BaseModel]:
        """A choice's last chunks, after all text; with the `outputs` of all choices, also those of the stream."""

    @abstractmethod
    def response(self, outputs: Sequence[ChoiceOutput]) -> BaseModel:
        """The whole response."""

    def error(self, error: SemspecError) -> BaseModel:
        """The last event of a failed stream."""
        return error_body(error)


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
    """Of the segments up to the one with `</think>`, which counts as a whole."""


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


def statistics(outputs: Sequence[ChoiceOutput], request: Request, trace: bool) -> dict[str, Any]:
    """The response fields beyond OpenAI's: `semspec`, over all choices and for each of several; and `metrics`, null
    for several choices, as in vLLM."""
    is_one = len(outputs) == 1
    total = Statistics(
        **numbers(outputs),
        parameters=Parameters.of(outputs[0].generation, request.strictness, request.stops),
        expected=request.expected,
        seed=request.seed,
        choices=None if is_one else [_choice_statistics(output, trace) for output in outputs],
        trace=_trace(outputs[0]) if is_one and trace else None,
    )
    decisions = records.statistics(outputs[0].records).steps if is_one else []
    decoding = records.speculative_decoding(decisions)
    metrics = AnswerMetrics(speculative_decoding=None if decoding is None else SpeculativeDecoding(**decoding))
    return {"semspec": total, "metrics": metrics}


def _choice_statistics(output: ChoiceOutput, trace: bool) -> ChoiceStatistics:
    seed = output.generation.sampling.seed
    return ChoiceStatistics(**numbers([output]), seed=seed, trace=_trace(output) if trace else None)


def _trace(output: ChoiceOutput) -> list[SegmentTrace]:
    return [SegmentTrace.of(record) for record in output.records]
