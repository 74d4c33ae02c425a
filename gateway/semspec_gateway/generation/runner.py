"""Runs the decoding loop for one choice; each segment is stored, then counted, then emitted."""

import json
import logging
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace

from semspec.decoding import decode, next_strategy
from semspec.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from semspec.observability import known, span
from semspec.reasoning import THINK
from semspec.records import statistics, stored
from semspec.types import (
    Drafted,
    Finished,
    FinishReason,
    OpenText,
    Segment,
    SegmentEnd,
    SegmentRecord,
    Writer,
)
from semspec_gateway.generation.audit import Audit
from semspec_gateway.generation.choice import Choice, Ended
from semspec_gateway.generation.load import LoadControl
from semspec_gateway.generation.target_faults import LEAST_PATIENCE_S, TargetRetry, broken_target
from semspec_gateway.generation.usage import usage
from semspec_gateway.metrics import Metrics
from semspec_gateway.readiness import Readiness
from semspec_gateway.settings import GatewaySettings
from semspec_gateway.store.leases import Journal, SessionLease

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChoiceRunner:
    """Runs choices concurrently."""

    readiness: Readiness
    metrics: Metrics
    settings: GatewaySettings
    audit: Audit | None = None
    load: LoadControl | None = None
    """None: all segments are drafted that a strategy drafts."""

    async def run(self, choice: Choice, journal: Journal, lease: SessionLease | None) -> None:
        """Continue after the records of `choice` until the end.

        Each segment is stored, or marked as not stored, before it is emitted. If the task is cancelled, the generation
        can be resumed. Raises: Cancelled, and what the decoding loop raises.
        """
        self.metrics.in_flight.inc()
        journal.beat()
        status = "interrupted"
        try:
            with self._paced(choice):
                reason = await self._decode(choice, journal)
            ended = await self._finish(choice, journal, lease, reason)
            status = "finished"
        except Cancelled:
            raise
        except Exception as error:
            status = "failed"
            if isinstance(error, Unavailable | DeadlineExceeded):
                self.readiness.suspect()
            await journal.finish("failed")
            raise
        finally:
            journal.leave()
            self._count_end(choice, journal, status)
        choice.emit(ended)

    @contextmanager
    def _paced(self, choice: Choice) -> Iterator[None]:
        """Let the load control measure the segments of `choice`, and decide which of them are drafted.

        A segment of which the client has some text is written as before: by the target, which gives the same text after
        a rejected draft and without a draft, or by its strategy if that verifies tokens.
        """
        if self.load is None:
            yield
            return
        if not choice.follows_load:
            with self.load.running_fixed():
                yield
            return
        drafts_first = None
        if choice.was_text_seen:
            drafts_first = next_strategy(choice.generation, choice.context).verifies_tokens
        with self.load.running(drafts_first) as choice.pace:
            yield

    async def _decode(self, choice: Choice, journal: Journal) -> FinishReason:
        """Run the loop to its end or a stop sequence; restart it after the last segment when the target is back.

        A span of the generation covers all its calls, including drafting ahead.
        """
        target, timeout_s = choice.served.target, self.settings.target_patience_s
        if timeout_s is None:
            timeout_s = max(LEAST_PATIENCE_S, 2 * target.load_s)
        retry = TargetRetry(choice.served.pinned.target, target.fingerprint, timeout_s)
        generation = choice.generation
        attributes: dict[str, str | int | float] = {
            "semspec.strategy": generation.strategy.name,
            "semspec.gamma": generation.strategy.options.gamma,
            "semspec.acceptance_rule": generation.strategy.options.acceptance.rule,
            "semspec.max_tokens": generation.max_tokens,
            "semspec.num_prompt_tokens": choice.num_prompt_tokens,
            "gen_ai.operation.name": "chat" if choice.request.messages else "text_completion",
            "gen_ai.provider.name": "semspec",
            "gen_ai.request.model": choice.request.model,
            "gen_ai.request.max_tokens": generation.max_tokens,
            "gen_ai.request.temperature": generation.sampling.temperature,
            "gen_ai.request.top_p": generation.sampling.top_p,
            "gen_ai.response.id": choice.id,
            "gen_ai.usage.input_tokens": choice.num_prompt_tokens,
        }
        with span("generation", attributes=attributes) as generation_span:
            try:
                while True:
                    try:
                        if (reason := await self._decode_once(choice, journal)) is not None:
                            break
                    except (Unavailable, Overloaded) as error:
                        self.readiness.suspect()
                        if choice.pace is not None:
                            choice.pace.interrupt()
                        await retry.wait_for_target(error, len(choice.records))
                        self.readiness.recover()
                        self.metrics.resumptions.inc()
            finally:
                generation_span.set_attributes(_result_attributes(choice))
            generation_span.set_attribute("semspec.finish_reason", reason.value)
            generation_span.set_attribute("gen_ai.response.finish_reasons", [reason.value])
        return reason

    async def _decode_once(self, choice: Choice, journal: Journal) -> FinishReason | None:
        """Run the loop once; None: the reasoning has used its budget, and has to end before the next segment."""
        if choice.has_thought_enough and not await self._end_reasoning(choice, journal):
            return FinishReason.LENGTH
        generation = replace(
            choice.generation,
            context=choice.context,
            show_text=choice.shows_text,
            open_piece=choice.records[-1].open_piece if choice.records else None,
        )
        if choice.fallback is not None:  # the fallback to the target alone outlasts a restart
            generation = replace(generation, fallback=choice.fallback)
        should_draft = None if choice.pace is None else choice.pace.should_draft
        async with aclosing(decode(generation, choice.served.pinned, should_draft)) as events:
            # After a stop sequence, the open segment is still completed.
            while choice.stop_checker.stop is None or choice.open_text:
                # The prompt was accepted when it was encoded; else what is invalid now is not the client's mistake.
                with broken_target(InvalidRequest, InternalError):
                    event = await anext(events)
                match event:
                    case Finished(reason):
                        return reason
                    case Drafted() as drafted:
                        choice.emit(drafted)
                    case OpenText() as text:
                        self._note_fallback(choice, text.fallback)
                        self._note_first(choice)
                        choice.write(text)
                    case SegmentRecord() as record:
                        if not self.settings.prompt_tokens_details:
                            record = replace(record, num_cached_tokens=None)
                        await self._keep(choice, journal, record)
                        if choice.has_thought_enough and choice.stop_checker.stop is None:
                            return None
        return FinishReason.STOP

    async def _end_reasoning(self, choice: Choice, journal: Journal) -> bool:
        """Append the end of the reasoning as a segment of the target; False if no tokens are left for an answer."""
        parser = choice.stop_checker.reasoning_parser
        form = (parser and parser.form) or THINK
        text = form.answer if choice.text[-1:] in ("", "\n") else f"\n{form.answer}"
        tokens = await choice.served.pinned.target.tokenize(text)
        if choice.num_tokens + len(tokens) >= choice.generation.max_tokens:
            return False
        ids, tokenizer = tuple(token.id for token in tokens), choice.prompts.target.tokenizer
        segment = Segment(text, ids, tokenizer, Writer.TARGET, SegmentEnd.BOUNDARY)
        await self._keep(
            choice, journal, SegmentRecord(len(choice.records), segment, accepted=None)
        )
        return True

    async def _keep(self, choice: Choice, journal: Journal, record: SegmentRecord) -> None:
        self._note_fallback(choice, record.fallback)
        await journal.append(record.index, stored(record))
        self._note_first(choice)
        if not choice.records:
            self.metrics.first_segment(choice.generation.strategy.name, choice.latency_s)
        self.metrics.segment(record, choice.request.owner)
        if self.audit is not None:
            self.audit.offer(choice, record)
        choice.add(record)
        if choice.pace is not None:
            choice.pace.keep(record)

    def _note_fallback(self, choice: Choice, reason: str | None) -> None:
        """Log and count that the target writes alone, when it begins to."""
        if reason is not None and choice.fallback is None:
            _log.warning("fallback: the target generates alone", extra={"reason": reason})
            self.metrics.fallbacks.inc()
            self.readiness.suspect(reason)

    def _note_first(self, choice: Choice) -> None:
        """Count the time to the first token, if this is the first."""
        if not choice.has_begun:
            self.metrics.first_token(self.settings.model_name, choice.latency_s)

    async def _finish(
        self, choice: Choice, journal: Journal, lease: SessionLease | None, reason: FinishReason
    ) -> Ended:
        """Store everything before the last event is sent, so that the client can query it immediately."""
        ended = choice.finish(reason)
        if journal.cancelled.is_set():  # cancelled with the last segment: the session gets no turn
            raise Cancelled(f"generation {choice.id} was cancelled")
        committed = True
        if lease is not None:
            turns = [*choice.request.messages, choice.answer]
            committed = await lease.commit(turns, choice.num_turns)
        await journal.finish(
            "finished", finish_reason=ended.reason.value, usage=json.dumps(usage([choice]))
        )
        choice.degraded = journal.degraded or not committed
        return ended

    def _count_end(self, choice: Choice, journal: Journal, status: str) -> None:
        if status == "interrupted" and journal.cancelled.is_set():
            status = "cancelled"
        self.metrics.in_flight.dec()
        self.metrics.generation(
            choice.generation.strategy.name, status, choice.latency_s, choice.request.owner
        )
        if status == "finished":
            self.metrics.used(
                self.settings.model_name,
                choice.latency_s,
                choice.num_prompt_tokens,
                choice.num_tokens,
            )
        _log_end(choice, status, self.settings.log_prompts)
        if journal.degraded or choice.degraded:
            self.metrics.degraded_generations.inc()


def _log_end(choice: Choice, status: str, with_texts: bool) -> None:
    """Log how a generation ended, in one line.

    `with_texts` (`SEMSPEC_GATEWAY_LOG_PROMPTS`) adds prompt and answer so far; nothing else logs texts.
    """
    numbers = statistics(choice.records)
    fields = {
        "generation": choice.id,
        "owner": choice.request.owner or None,
        "strategy": choice.generation.strategy.name,
        "status": status,
        "num_segments": numbers.num_segments,
        "num_tokens": numbers.num_tokens,
        "acceptance_rate": numbers.acceptance_rate and round(numbers.acceptance_rate, 3),
        "duration_ms": round(choice.latency_s * 1e3),
        "num_undrafted": numbers.num_undrafted or None,
        "fallback": numbers.fallback,
    }
    if with_texts:
        fields |= {"prompt": choice.prompt, "answer": choice.text}
    _log.info("generation ended", extra=known(fields))


def _result_attributes(choice: Choice) -> dict[str, str | int | float | bool]:
    numbers = statistics(choice.records)
    return known(
        {
            "semspec.num_segments": numbers.num_segments,
            "semspec.num_tokens": numbers.num_tokens,
            "gen_ai.usage.output_tokens": numbers.num_tokens,
            "semspec.num_target_tokens": numbers.num_target_tokens,
            "semspec.acceptance_rate": numbers.acceptance_rate,
            "semspec.num_undrafted": numbers.num_undrafted or None,
            "semspec.fallback": numbers.fallback,
        }
    )
