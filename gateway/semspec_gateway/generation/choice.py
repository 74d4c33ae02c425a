"""One choice of a request: its records, the visible text, and the events of both."""

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from zlib import crc32

from semspec.decoding import Prompts
from semspec.errors import Conflict
from semspec.reasoning import ReasoningParser
from semspec.types import (
    Context,
    Drafted,
    FinishReason,
    Message,
    OpenText,
    SegmentRecord,
    TokenLogprob,
)
from semspec_gateway.generation.load import Pace
from semspec_gateway.generation.parsers import CallParser, Delta, StopChecker
from semspec_gateway.generation.request import GenerationRequest, Parameters
from semspec_gateway.served import Served


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place between two events of a choice, as in the ids of its stream's events."""

    num_segments: int
    """Complete segments before it; the text buffered until the end counts as one more."""
    num_characters: int = 0
    """Written of the next segment, visible or not."""
    checksum: int = field(default=0, compare=False)
    """CRC-32 of these characters."""

    def __str__(self) -> str:
        parts = (self.num_segments, self.num_characters, self.checksum)
        return ".".join(map(str, parts if self.num_characters else parts[:1]))

    @classmethod
    def of_id(cls, id: str) -> "Place":
        """The inverse of `str`."""
        return cls(*map(int, id.split(".")))


@dataclass(frozen=True, slots=True)
class Written:
    """The target is writing a segment; `delta` is the text that became visible."""

    delta: Delta
    place: Place
    """After the text."""
    token_id: int
    """The last token of the text, as far as is known."""
    logprobs: tuple[TokenLogprob, ...] | None
    """Log-probabilities of the text's tokens, if requested."""
    offset: int
    """Position of the first of them in all text written, in characters."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A segment was kept; `delta` is the text that became visible, after that of `Written`."""

    record: SegmentRecord
    delta: Delta
    place: Place
    logprobs: tuple[TokenLogprob, ...] | None
    """Log-probabilities of the tokens that no `Written` had, if requested."""
    offset: int
    """Position of the first of them in all text written, in characters."""
    was_shown: bool
    """Whether a `Written` showed text of the segment."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a choice."""

    reason: FinishReason
    delta: Delta
    """The text buffered until the end."""
    place: Place


ChoiceEvent = Written | Kept | Drafted | Ended


class Choice:
    """One choice of a request: its generation, the segments so far, and their visible text."""

    def __init__(
        self,
        request: GenerationRequest,
        index: int,
        prompts: Prompts,
        max_tokens: int,
        served: Served,
        num_turns: int,
    ) -> None:
        """`num_turns`: number of the session's turns before the request."""
        self.request, self.index, self.prompts = request, index, prompts
        self.served, self.num_turns = served, num_turns
        self.id = request.choice_id(index)
        self.generation = request.generation(index, prompts, max_tokens)
        """The decoding loop's input."""
        self.prompt = prompts.target.text
        """The rendered prompt that the target receives."""
        reasoning_parser = ReasoningParser.after(self.prompt) if request.messages else None
        call_parser = CallParser(self.id, request.tool_names) if request.tools else None
        self.stop_checker = StopChecker(
            request.stops, request.keep_stop, reasoning_parser, call_parser
        )
        self.records: list[SegmentRecord] = []
        self.num_characters = 0
        """Length of all text written, visible or not."""
        self.open_text = ""
        """The text of the next segment that was written so far, and given to `stop_checker`."""
        self._logprobs: list[TokenLogprob] = []
        """Log-probabilities of the next segment's tokens so far."""
        self._num_logprobs_shown = 0
        self._was_shown = False
        """Whether some of `open_text` became visible."""
        self.shows_text = False
        """Whether a client reads the text while it is written."""
        self.seen_by_client = Place(0)
        """Position up to which a client that attaches has the text."""
        self.pace: Pace | None = None
        """Its segments, for the load control; None: there is none, or the load decides nothing."""
        self.finish_reason: FinishReason | None = None
        self.fallback: str | None = None
        """Why the target generated alone, if it did."""
        self.degraded = False
        """Whether the trace or the session's turns could not be stored in full."""
        self.emit: Callable[[ChoiceEvent], None] = lambda event: None
        """Sends an event to the task that answers the request."""
        self._start = perf_counter()
        self._end: float | None = None

    def start(self, emit: Callable[[ChoiceEvent], None]) -> None:
        """Begin the time of the generation, whose events go to `emit`."""
        self.emit, self._start = emit, perf_counter()

    def write(self, text: OpenText) -> None:
        """Show the next text of an incomplete segment, without what a retry writes again.

        Raises: Conflict when a retry writes other text.
        """
        known = self.open_text[text.start : text.start + len(text.text)]
        if text.start > len(self.open_text) or not text.text.startswith(known):
            raise _changed()
        self._logprobs += text.logprobs[max(0, len(self._logprobs) - text.first_logprob) :]
        self.fallback = self.fallback or text.fallback
        self._show(text.text[len(known) :], text.token_id)

    def add(self, record: SegmentRecord) -> None:
        """Append a segment and emit it. Raises: Conflict when it differs from what was shown of it."""
        text = record.segment.text
        if not text.startswith(self.open_text):
            raise _changed()
        self._logprobs = list(record.logprobs or ())
        num_seen = (
            self.seen_by_client.num_characters
            if self.seen_by_client.num_segments == len(self.records)
            else 0
        )
        self._show(
            text[len(self.open_text) : num_seen], record.segment.token_ids[-1] if num_seen else 0
        )
        delta = self.stop_checker.add(text[len(self.open_text) :])
        logprobs, offset = self._next_logprobs(len(self._logprobs))
        self.records.append(record)
        self.num_characters += len(text)
        self.fallback = self.fallback or record.fallback
        was_shown, self.open_text, self._logprobs = self._was_shown, "", []
        self._num_logprobs_shown, self._was_shown = 0, False
        self.emit(Kept(record, delta, Place(len(self.records)), logprobs, offset, was_shown))

    def _show(self, text: str, token_id: int) -> None:
        """Emit the next text of the open segment, cut where the text ends that the client has."""
        seen, num_before = self.seen_by_client, len(self.open_text)
        num_first = (
            seen.num_characters - num_before if seen.num_segments == len(self.records) else 0
        )
        for part in (text[:num_first], text[num_first:]) if 0 < num_first < len(text) else (text,):
            self.open_text += part
            place = Place(len(self.records), len(self.open_text), crc32(self.open_text.encode()))
            if place == seen and place.checksum != seen.checksum:
                raise _changed()
            delta = self.stop_checker.add(part)
            if delta != Delta():
                logprobs, offset = self._next_logprobs(
                    _num_tokens_of(self._logprobs, len(self.open_text))
                )
                self._was_shown = True
                self.emit(Written(delta, place, token_id, logprobs, offset))

    def _next_logprobs(self, stop: int) -> tuple[tuple[TokenLogprob, ...] | None, int]:
        """Return the logprobs up to number `stop` that were not shown, with the position of the first in all text."""
        if self.generation.num_logprobs is None:
            return None, self.num_characters
        shown = self._num_logprobs_shown
        self._num_logprobs_shown = max(stop, shown)
        offset = sum(len(token.data.decode(errors="replace")) for token in self._logprobs[:shown])
        return tuple(self._logprobs[shown : self._num_logprobs_shown]), self.num_characters + offset

    def finish(self, reason: FinishReason) -> Ended:
        """End the choice and release the buffered text; the event is for the caller to emit."""
        delta = self.stop_checker.close()
        self.finish_reason = reason if self.stop_checker.stop is None else FinishReason.STOP
        self._end = perf_counter()
        return Ended(self.finish_reason, delta, Place(len(self.records) + 1))

    @property
    def has_begun(self) -> bool:
        """Whether anything is written."""
        return bool(self.records or self.open_text)

    @property
    def context(self) -> Context:
        """The context of the next segment, as the target reads it."""
        return self.generation.context.extended(*(record.segment for record in self.records))

    @property
    def follows_load(self) -> bool:
        """Whether the load may decide that a segment is not drafted."""
        strategies = (self.generation.strategy, self.generation.answer_strategy)
        can_skip_drafts = any(strategy and strategy.can_skip_drafts for strategy in strategies)
        return can_skip_drafts and not self.request.has_seed

    @property
    def was_text_seen(self) -> bool:
        """Whether a client has text of the segment that is not complete."""
        seen = self.seen_by_client
        is_next = seen.num_segments == len(self.records)
        return bool(self.open_text or (is_next and seen.num_characters))

    @property
    def parameters(self) -> Parameters:
        return Parameters.of(self.generation, self.request.strictness)

    @property
    def text(self) -> str:
        """All text written, visible or not."""
        return "".join(record.segment.text for record in self.records)

    @property
    def seen(self) -> Delta:
        """All text visible to the client."""
        return self.stop_checker.seen

    @property
    def answer(self) -> Message:
        """The assistant's turn."""
        return Message("assistant", self.seen.content, self.seen.calls)

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
        """Number of output tokens of the reasoning, with its opening; None where reasoning is not split off.

        A segment that contains a mark counts by its share of characters, since segments do not say which a token has.
        """
        parser = self.stop_checker.reasoning_parser
        if parser is None:
            return None
        start, num_tokens = 0, 0
        for segment in (record.segment for record in self.records):
            stop = start + len(segment.text)
            inside = (
                min(stop, stop if end is None else end) - max(start, begin)
                for begin, end in parser.spans
            )
            share = sum(max(0, num_characters) for num_characters in inside)
            num_tokens += len(segment.token_ids) * share // (stop - start) if share else 0
            start = stop
        return num_tokens

    @property
    def has_thought_enough(self) -> bool:
        """Whether the reasoning goes on, and has had the tokens of its budget."""
        budget, parser = self.request.thinking_token_budget, self.stop_checker.reasoning_parser
        if budget is None or parser is None or not parser.is_inside:
            return False
        return (self.num_reasoning_tokens or 0) >= budget

    @property
    def latency_s(self) -> float:
        """Time from the start of decoding to its end, or until now."""
        return (self._end or perf_counter()) - self._start


def _changed() -> Conflict:
    """Return the error of a generation that cannot go on as it began: the client has text that is not written again."""
    return Conflict(
        "the models wrote other text than before the interruption",
        "id",
        remedy="start a new generation",
    )


def _num_tokens_of(tokens: Sequence[TokenLogprob], num_characters: int) -> int:
    """Return the number of the first tokens that have this many characters, a last one that is not whole included."""
    decoder, num_decoded = getincrementaldecoder("utf-8")("replace"), 0
    for number, token in enumerate(tokens):
        if num_decoded >= num_characters:
            return number
        num_decoded += len(decoder.decode(token.data))
    return len(tokens)
