"""What an API does to format a generation, whole or as a stream."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from semspec import records
from semspec.errors import SemspecError
from semspec.records import SegmentTrace
from semspec.types import Drafted
from semspec_gateway.api.shared.answers import AnswerMetrics, ChoiceStatistics, Statistics
from semspec_gateway.api.shared.errors import error_body
from semspec_gateway.generation.choice import Choice, Ended, Kept, Written
from semspec_gateway.generation.request import AnswerOptions, GenerationRequest
from semspec_gateway.generation.usage import numbers


class Format(ABC):
    """Formats a generation for one API: chunks of a stream, and the whole response."""

    last_line: str | None = None
    """The data of a stream's last event."""
    options: type[AnswerOptions] = AnswerOptions

    def __init__(self, request: GenerationRequest, system_fingerprint: str) -> None:
        self._request = request
        self._options: Any = self.options.model_validate(request.answer.model_dump())

    def opening(self, index: int) -> Sequence[BaseModel]:
        """Chunks before a choice's first text."""
        return ()

    def drafted(self, event: Drafted) -> Sequence[BaseModel]:
        """Chunks with drafted segments that wait for their verdict, if the client requested them."""
        return ()

    @abstractmethod
    def text(self, index: int, event: Written | Kept | Ended) -> Sequence[BaseModel]:
        """Chunks of text that is written, of a segment, or of the text buffered until the end.

        Called for each event, even if the client has its text already.
        """

    @abstractmethod
    def closing(self, index: int, ended: Ended, choices: Sequence[Choice]) -> Sequence[BaseModel]:
        """A choice's last chunks, after all text; with all `choices`, if it is the last one to end."""

    @abstractmethod
    def response(self, choices: Sequence[Choice]) -> BaseModel:
        """The whole response."""

    def error(self, error: SemspecError) -> BaseModel:
        """The last event of a failed stream."""
        return error_body(error)

    def statistics(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The fields beyond OpenAI's: `semspec`, of all choices and each; `metrics`, null for several, as in vLLM."""
        request, has_trace, is_single = self._request, self._options.trace, len(choices) == 1
        traces = [
            [SegmentTrace.of(record) for record in choice.records] if has_trace else None
            for choice in choices
        ]
        of_choices = [
            ChoiceStatistics(**numbers([choice]), seed=choice.generation.sampling.seed, trace=trace)
            for choice, trace in zip(choices, traces, strict=True)
            if not is_single
        ]
        total = Statistics(
            **numbers(choices),
            parameters=choices[0].parameters,
            expected=request.expected,
            seed=request.sampling.seed,
            choices=of_choices or None,
            trace=traces[0] if is_single else None,
        )
        decisions = records.statistics(choices[0].records).steps if is_single else []
        return {
            "semspec": total,
            "metrics": AnswerMetrics(speculative_decoding=records.speculative_decoding(decisions)),
        }
