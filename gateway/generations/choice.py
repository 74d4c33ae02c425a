"""One generation on its way: the loop's events, counted, written down, and turned into what the client sees."""

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Self

from opentelemetry.trace import Span

from gateway.generations.call import Call
from gateway.generations.output_text import Delta
from gateway.generations.served import Served
from gateway.generations.sessions import SessionLease
from gateway.generations.statistics import Summary, usage
from gateway.generations.target_retry import TargetRetry
from gateway.parts import Parts
from gateway.storage.journal import Journal
from semspec.decoding import decode
from semspec.errors import Cancelled, DeadlineExceeded, Overloaded, Unavailable
from semspec.observability import Attributes, current, detached_span, known
from semspec.records import record_json
from semspec.types import (
    Context,
    Drafted,
    Event,
    Finished,
    FinishReason,
    Generation,
    Message,
    Segment,
    SegmentRecord,
    Writer,
)


async def in_span(generation: Generation, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """The `events` of a generation, in a span `generation`: the parent of every call that is made for them.

    The span ends with the last event, before that is given out; closed earlier, it is marked as cancelled.
    """
    tally = _Tally()
    with detached_span("generation", attributes=_asked(generation)) as opened:
        async with aclosing(events):
            while isinstance(event := await _next(events, opened), SegmentRecord | Drafted):
                if isinstance(event, SegmentRecord):
                    tally.add(event)
                    opened.set_attributes(known(tally.numbers))
                yield event
            if event is not None:
                opened.set_attribute("semspec.finish_reason", event.reason.value)
    if event is not None:
        yield event


async def _next(events: AsyncGenerator[Event, None], opened: Span) -> Event | None:
    """The next event; calls made for it, drafting ahead included, are the span's, what our consumer does is not."""
    with current(opened):
        return await anext(events, None)


def _asked(generation: Generation) -> Attributes:
    prompt = (piece for piece in generation.context.pieces if not isinstance(piece, Segment))
    return {
        "semspec.strategy": generation.strategy,
        "semspec.gamma": generation.gamma,
        "semspec.acceptance_rule": generation.acceptance.rule,
        "semspec.max_tokens": generation.max_tokens,
        "semspec.num_prompt_tokens": sum(len(piece.token_ids) for piece in prompt),
    }


class _Tally:
    """Counts of the segments kept so far."""

    def __init__(self) -> None:
        self._num_segments = self._num_tokens = self._num_target_tokens = self._num_judged = self._num_accepted = 0
        self._fallback: str | None = None

    def add(self, record: SegmentRecord) -> None:
        num_tokens = len(record.segment.token_ids)
        self._num_segments += 1
        self._num_tokens += num_tokens
        if record.segment.writer is Writer.TARGET:
            self._num_target_tokens += num_tokens - record.num_accepted_tokens
        self._num_judged += record.accepted is not None
        self._num_accepted += record.accepted is True
        self._fallback = self._fallback or record.fallback

    @property
    def numbers(self) -> Attributes:
        return {
            "semspec.num_segments": self._num_segments,
            "semspec.num_tokens": self._num_tokens,
            "semspec.num_target_tokens": self._num_target_tokens,
            "semspec.acceptance_rate": self._num_accepted / self._num_judged if self._num_judged else None,
            "semspec.fallback": self._fallback,
        }


_log = logging.getLogger(__name__)


def log_texts(wanted: bool, generation_id: str, prompt: str, answer: str) -> None:
    """One line at the end of a generation, if `wanted` (`SEMSPEC_GATEWAY_LOG_PROMPTS`); nowhere else are texts logged.

    `prompt` is the rendered one, as the target read it.
    """
    if wanted:
        fields = {"generation": generation_id, "prompt": prompt, "answer": answer}
        _log.info("generation ended", extra=fields)


@dataclass(frozen=True, slots=True)
class Order:
    """What one choice is to generate, and for whom."""

    id: str
    index: int
    call: Call
    generation: Generation
    served: Served

    @classmethod
    def of(cls, call: Call, index: int, context: Context, max_tokens: int, served: Served) -> Self:
        """The order of one of a call's choices."""
        return cls(call.choice_id(index), index, call, call.generation(index, context, max_tokens), served)

    @property
    def prompt(self) -> str:
        return self.generation.context.pieces[0].text

    def summary(self) -> Summary:
        return Summary(self.id, self.generation, self.call.stop_checker(self.prompt))


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


def kept(summary: Summary, record: SegmentRecord) -> Kept:
    """Add a segment to the summary."""
    offset = summary.num_characters
    return Kept(record, summary.add(record), offset)


class Choice:
    """Runs once, from its first segment or from where another left it."""

    def __init__(self, order: Order, summary: Summary, journal: Journal, parts: Parts) -> None:
        """`summary` holds what was generated before."""
        self._order = order
        self._summary = summary
        self._journal = journal
        self._parts = parts
        self._status = "interrupted"

    async def events(self, lease: SessionLease | None) -> AsyncGenerator[ChoiceEvent, None]:
        """What follows. Each segment is stored, or known not to be, before it is given out; closing cancels all work.

        Raises: what the loop raises.
        """
        self._parts.metrics.in_flight.inc()
        self._journal.beat(self._parts.settings.writer_lease_s / 3, self._parts.background)
        try:
            async with aclosing(in_span(self._order.generation, self._continued())) as events:
                async for event in events:
                    match event:
                        case SegmentRecord():
                            yield await self._keep(event)
                        case Drafted():
                            yield event
                        case Finished():
                            yield await self._finish(event.reason, lease)
        except Exception as error:
            await self._fail(error)
            raise
        finally:
            self._end()

    async def _continued(self) -> AsyncGenerator[Event, None]:
        """The loop's events, begun anew behind the last segment when a target that was lost is back."""
        target_retry = TargetRetry(
            self._parts.backends.target, self._order.served.target.fingerprint, self._parts.settings.target_patience_s
        )
        while True:
            try:
                async with aclosing(self._from_last_segment()) as events:
                    async for event in events:
                        yield event
                return
            except (Unavailable, Overloaded) as lost:
                self._parts.readiness.suspect()
                await target_retry.target_is_back(lost, len(self._summary.records))
                self._parts.metrics.resumed()

    async def _from_last_segment(self) -> AsyncGenerator[Event, None]:
        """The loop's events, until its end or a stop sequence."""
        stop_checker, generation = self._summary.stop_checker, self._order.generation
        segments = (record.segment for record in self._summary.records)
        generation = replace(generation, context=generation.context.extended(*segments))
        if self._summary.fallback is not None:  # as it would have gone on without the interruption
            generation = replace(generation, strategy="target")
        costs = self._parts.costs.of(generation) if generation.strategy == "auto" else None
        async with aclosing(decode(generation, self._order.served.pinned(self._parts.backends), costs)) as events:
            while stop_checker.stop is None and (event := await anext(events, None)) is not None:
                yield event
        if stop_checker.stop is not None:
            yield Finished(FinishReason.STOP)

    async def _keep(self, record: SegmentRecord) -> Kept:
        if record.fallback is not None and self._summary.fallback is None:
            _log.warning("the target goes on alone", extra={"reason": record.fallback})
            self._parts.metrics.fallback()
            self._parts.readiness.suspect()
        await self._journal.append(record_json(record))
        if not self._summary.records:
            self._parts.metrics.first_segment(self._order.generation.strategy, self._summary.latency_s)
        self._parts.metrics.segment(record)
        return kept(self._summary, record)

    async def _finish(self, reason: FinishReason, lease: SessionLease | None) -> Ended:
        """Store everything before the client hears of the end, so that it may ask for it at once."""
        delta = self._summary.finish(reason)
        if self._journal.is_cancelled:  # the word came with the last segment: no turn of the session
            raise Cancelled(f"generation {self._order.id} was cancelled")
        committed = await self._commit(lease)
        counts = json.dumps(usage([self._summary]))
        await self._journal.finish("finished", finish_reason=reason.value, usage=counts)
        self._status = "finished"
        self._summary.degraded = self._journal.degraded or not committed
        log_texts(self._parts.settings.log_prompts, self._order.id, self._order.prompt, self._summary.text)
        return Ended(reason, delta)

    async def _commit(self, lease: SessionLease | None) -> bool:
        prompt = self._order.call.prompt
        if lease is None or isinstance(prompt, str):
            return True
        turns = [*prompt, Message("assistant", self._summary.seen.content)]
        return await lease.commit(turns, self._order.call.num_turns)

    async def _fail(self, error: Exception) -> None:
        if isinstance(error, Cancelled):
            return
        self._status = "failed"
        if isinstance(error, Unavailable | DeadlineExceeded):
            self._parts.readiness.suspect()
        await self._journal.finish("failed")

    def _end(self) -> None:
        self._journal.leave(self._parts.background)
        if self._status == "interrupted" and self._journal.is_cancelled:
            self._status = "cancelled"
        metrics = self._parts.metrics
        metrics.in_flight.dec()
        metrics.generation(self._order.generation.strategy, self._status, self._summary.latency_s)
        if self._journal.degraded or self._summary.degraded:
            metrics.degraded()
