"""The output of a choice: its records, and the visible text."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Any

from semspec.decoding import Generation
from semspec.gateway.generation.parsers import END_OF_THINKING, THINK, Delta, StopChecker
from semspec.records import share, statistics
from semspec.types import Drafted, FinishReason, SegmentRecord, TokenLogprob


@dataclass(frozen=True, slots=True)
class Kept:
    """A segment was kept; `delta` is the text that became visible."""

    record: SegmentRecord
    delta: Delta
    offset: int
    """Position of the segment in all text written, in characters."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a choice."""

    reason: FinishReason
    delta: Delta
    """The text buffered until the end."""


ChoiceEvent = Kept | Drafted | Ended


class ChoiceOutput:
    """Accumulates the records of a choice."""

    def __init__(self, id: str, generation: Generation, stop_checker: StopChecker) -> None:
        self.id = id
        self.generation = generation
        self.stop_checker = stop_checker
        self.records: list[SegmentRecord] = []
        self.num_characters = 0
        """Length of all text written, visible or not."""
        self.finish_reason: FinishReason | None = None
        self.fallback: str | None = None
        """Why the target generated alone, if it did."""
        self.degraded = False
        """Whether the trace or the session's turns could not be stored in full."""
        self._start = perf_counter()
        self._end: float | None = None

    def add(self, record: SegmentRecord) -> Kept:
        """Append a segment."""
        offset = self.num_characters
        self.records.append(record)
        self.num_characters += len(record.segment.text)
        self.fallback = self.fallback or record.fallback
        return Kept(record, self.stop_checker.add(record.segment.text), offset)

    def finish(self, reason: FinishReason) -> Ended:
        """End the choice and release the buffered text."""
        self.finish_reason = reason
        self._end = perf_counter()
        return Ended(reason, self.stop_checker.close())

    @property
    def text(self) -> str:
        """All text written, visible or not."""
        return "".join(record.segment.text for record in self.records)

    @property
    def seen(self) -> Delta:
        """All text visible to the client."""
        return self.stop_checker.seen

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Log-probabilities of all tokens written; None if not requested."""
        if self.generation.num_logprobs is None:
            return None
        return tuple(token for record in self.records for token in record.logprobs or ())

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(piece.token_ids) for piece in self.generation.context.pieces)

    @property
    def num_cached_tokens(self) -> int | None:
        """Number of prompt tokens that the target had cached when it first was called; None: not known."""
        num_cached = self.records[0].num_cached_tokens if self.records else None
        return None if num_cached is None else min(num_cached, self.num_prompt_tokens)

    @property
    def num_tokens(self) -> int:
        """Number of output tokens."""
        return sum(len(record.segment.token_ids) for record in self.records)

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Number of output tokens up to the end of the segment with `</think>`; None where reasoning is not split off.

        Only segments are counted, since the writers do not say which characters a token has.
        """
        parser = self.stop_checker.reasoning_parser
        if parser is None:
            return None
        text = self.text
        if not parser.begins_inside and not text.lstrip().startswith(THINK):
            return 0
        end = text.find(END_OF_THINKING)
        sizes = [len(record.segment.text) for record in self.records]
        begins = accumulate(sizes, initial=0)
        pairs = zip(self.records, begins, strict=False)
        return sum(len(record.segment.token_ids) for record, begin in pairs if end < 0 or begin <= end)

    @property
    def latency_s(self) -> float:
        """Time from the start of decoding to its end, or until now."""
        return (self._end or perf_counter()) - self._start


def numbers(outputs: Sequence[ChoiceOutput]) -> dict[str, Any]:
    """Statistics of one choice, or of all of a request's, as in responses."""
    counted = statistics(record for output in outputs for record in output.records)
    latency_s = max(output.latency_s for output in outputs)
    return {
        "id": outputs[0].id,
        "strategy": outputs[0].generation.strategy,
        "num_segments": counted.num_segments,
        "num_accepted": counted.num_accepted,
        "num_rejected": counted.num_rejected,
        "acceptance_rate": counted.acceptance_rate,
        "num_proposed_tokens": counted.num_proposed_tokens,
        "num_accepted_tokens": counted.num_accepted_tokens,
        "target_ratio": counted.target_ratio,
        "latency_ms": latency_s * 1e3,
        "tokens_per_s": share(counted.num_tokens, latency_s),
        "fallback": counted.fallback,
        "degraded": any(output.degraded for output in outputs),
    }


def usage(outputs: Sequence[ChoiceOutput], num_prompts: int = 1) -> dict[str, Any]:
    """OpenAI's token counts over all choices; the common prompt of several choices counts once."""
    firsts = outputs[:: len(outputs) // num_prompts]
    num_prompt, num_completion = sum(output.num_prompt_tokens for output in firsts), sum(o.num_tokens for o in outputs)
    reasoning = [output.num_reasoning_tokens for output in outputs if output.num_reasoning_tokens is not None]
    cached = [output.num_cached_tokens for output in firsts if output.num_cached_tokens is not None]
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        **({"prompt_tokens_details": {"cached_tokens": sum(cached)}} if cached else {}),
        **({"completion_tokens_details": {"reasoning_tokens": sum(reasoning)}} if reasoning else {}),
    }
