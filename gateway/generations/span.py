"""A generation's span: how it was to go and how it went, in numbers."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from semspec.tracing import Attributes, Span, span
from semspec.types import Drafted, Event, Generation, Segment, SegmentRecord, Writer


async def in_span(generation: Generation, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """The `events` of a generation, in a span `generation`: the parent of every call that is made for them.

    The span ends with the last event, before that is given out; closed earlier, it is marked as cancelled.
    """
    tally = _Tally()
    with span("generation", attributes=_asked(generation)) as opened:
        async with aclosing(events):
            while isinstance(event := await _next(events, opened), SegmentRecord | Drafted):
                if isinstance(event, SegmentRecord):
                    tally.add(event)
                    opened.set(tally.numbers)
                yield event
            if event is not None:
                opened.set({"semspec.finish_reason": event.reason.value})
    if event is not None:
        yield event


async def _next(events: AsyncGenerator[Event, None], opened: Span) -> Event | None:
    """The next event; calls made for it, drafting ahead included, are the span's, what our consumer does is not."""
    with opened.active():
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
