"""What a choice has come to: its records, and the text a client sees, ended before a stop sequence, with reasoning and
answer apart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from semspec.decoding import Generation
from semspec.records import share, statistics
from semspec.types import Drafted, FinishReason, SegmentRecord, TokenLogprob

THINK, END_OF_THINKING = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Delta:
    """The next text of either kind; the reasoning comes first."""

    reasoning: str = ""
    content: str = ""

    def __add__(self, other: "Delta") -> "Delta":
        return Delta(self.reasoning + other.reasoning, self.content + other.content)


class StopChecker:
    """Grows with the segments kept. Text that may yet turn out to begin a mark is held back until that is known."""

    def __init__(
        self, stops: Sequence[str] = (), keep_stop: bool = False, reasoning_parser: "ReasoningParser | None" = None
    ) -> None:
        """`keep_stop` leaves the stop sequence in the text; without a parser everything is content."""
        self._stops, self._keep_stop = tuple(stops), keep_stop
        self._reasoning_parser = reasoning_parser or ReasoningParser("content")
        self._held = ""
        self.seen = Delta()
        """All that was let through."""
        self.stop: str | None = None
        """The stop sequence that ended the text."""

    def add(self, text: str) -> Delta:
        """What a further segment lets the client see; nothing more once a stop sequence was met."""
        if self.stop is not None:
            return Delta()
        text = self._held + text
        places = [(position, stop) for stop in self._stops if (position := text.find(stop)) >= 0]
        if not places:
            self._held = _unfinished(text, self._stops)
            return self._let(text.removesuffix(self._held))
        position, stop = min(places)
        self.stop, self._held = stop, ""
        return self._let(text[: position + len(stop)] if self._keep_stop else text[:position])

    def close(self) -> Delta:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        rest = self._reasoning_parser.split(held) + self._reasoning_parser.close()
        self.seen += rest
        return rest

    def _let(self, text: str) -> Delta:
        delta = self._reasoning_parser.split(text)
        self.seen += delta
        return delta


class ReasoningParser:
    """Parts text at `</think>`; the marks belong to neither side."""

    def __init__(self, kind: str) -> None:
        """`kind` of the text to come: "reasoning", "content", or "unknown" until it begins with `<think>` or not."""
        self._kind = kind
        self._held = ""

    @classmethod
    def after(cls, prompt: str) -> "ReasoningParser":
        """For a prompt whose template may have opened the reasoning already, as that of DeepSeek-R1 does."""
        return cls("reasoning" if prompt.rstrip().endswith(THINK) else "unknown")

    def split(self, text: str) -> Delta:
        text, self._held = self._held + text, ""
        if self._kind == "unknown":
            return self._begin(text)
        if self._kind == "content":
            return Delta(content=text)
        reasoning, mark, content = text.partition(END_OF_THINKING)
        if mark:
            self._kind = "content"
            return Delta(reasoning, content)
        self._held = _unfinished(text, (END_OF_THINKING,))
        return Delta(reasoning=text.removesuffix(self._held))

    def close(self) -> Delta:
        held, self._held = self._held, ""
        return Delta(reasoning=held) if self._kind == "reasoning" else Delta(content=held)

    def _begin(self, text: str) -> Delta:
        start = text.lstrip()
        if not start or (len(start) < len(THINK) and THINK.startswith(start)):
            self._held = text
            return Delta()
        self._kind = "reasoning" if start.startswith(THINK) else "content"
        return self.split(start.removeprefix(THINK) if self._kind == "reasoning" else text)


def _unfinished(text: str, marks: Iterable[str]) -> str:
    """The longest end of `text` that begins one of `marks`."""
    ends = (mark[:size] for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size]))
    return max(ends, key=len, default="")


@dataclass(frozen=True, slots=True)
class Kept:
    """A segment was kept; the client sees `delta` of it."""

    record: SegmentRecord
    delta: Delta
    offset: int
    """Where the segment begins in all text written, in characters."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a choice."""

    reason: FinishReason
    delta: Delta
    """What had been held back."""


ChoiceEvent = Kept | Drafted | Ended


class ChoiceOutput:
    """Grows with a choice's records."""

    def __init__(self, id: str, generation: Generation, stop_checker: StopChecker) -> None:
        self.id = id
        self.generation = generation
        self.stop_checker = stop_checker
        self.records: list[SegmentRecord] = []
        self.num_characters = 0
        """Of all that was written, seen or not."""
        self.finish_reason: FinishReason | None = None
        self.fallback: str | None = None
        """Why the target went on alone, if it did."""
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
        """Let out what was held back."""
        self.finish_reason = reason
        self._end = perf_counter()
        return Ended(reason, self.stop_checker.close())

    @property
    def text(self) -> str:
        """All that was written, seen or not."""
        return "".join(record.segment.text for record in self.records)

    @property
    def seen(self) -> Delta:
        """What the client sees in all."""
        return self.stop_checker.seen

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Of all tokens written, if asked for."""
        if self.generation.num_logprobs is None:
            return None
        return tuple(token for record in self.records for token in record.logprobs or ())

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(piece.token_ids) for piece in self.generation.context.pieces)

    @property
    def num_tokens(self) -> int:
        """Of the output."""
        return sum(len(record.segment.token_ids) for record in self.records)

    @property
    def latency_s(self) -> float:
        """From the start to the end of decoding, or to now."""
        return (self._end or perf_counter()) - self._start


def numbers(outputs: Sequence[ChoiceOutput]) -> dict[str, Any]:
    """What came of a choice, or of all of a request's, as responses tell it."""
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


def usage(outputs: Sequence[ChoiceOutput]) -> dict[str, int]:
    """OpenAI's token counts over all choices; their common prompt counts once."""
    num_prompt, num_completion = outputs[0].num_prompt_tokens, sum(output.num_tokens for output in outputs)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }
