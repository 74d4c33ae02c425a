"""What came of a generation, as it grows."""

from time import perf_counter

from gateway.generations.output_text import Delta, StopChecker
from semspec.types import FinishReason, Generation, SegmentEnd, SegmentRecord, TokenLogprob, Writer


class Summary:
    """Grows with a generation's records."""

    def __init__(self, generation_id: str, generation: Generation, stop_checker: StopChecker) -> None:
        self.id = generation_id
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

    def add(self, record: SegmentRecord) -> Delta:
        """What the client sees of a further segment."""
        self.records.append(record)
        self.num_characters += len(record.segment.text)
        self.fallback = self.fallback or record.fallback
        return self.stop_checker.add(record.segment.text)

    def finish(self, reason: FinishReason) -> Delta:
        """What the client sees last."""
        self.finish_reason = reason
        self._end = perf_counter()
        return self.stop_checker.close()

    @property
    def text(self) -> str:
        """All that was written, seen or not."""
        return "".join(record.segment.text for record in self.records)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Of all tokens written, if asked for."""
        if self.generation.num_logprobs is None:
            return None
        return tuple(token for record in self.records for token in record.logprobs or ())

    @property
    def seen(self) -> Delta:
        """What the client sees in all."""
        return self.stop_checker.seen

    @property
    def ended_itself(self) -> bool:
        """Whether the model said that it had finished."""
        return bool(self.records) and self.records[-1].segment.end is SegmentEnd.EOS

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(piece.token_ids) for piece in self.generation.context.pieces)

    @property
    def latency_s(self) -> float:
        """From the start to the end of decoding, or to now."""
        return (self._end or perf_counter()) - self._start

    def num_tokens(self, writer: Writer | None = None) -> int:
        """Output tokens, of one writer or of all."""
        segments = (record.segment for record in self.records)
        return sum(len(segment.token_ids) for segment in segments if writer in (None, segment.writer))

    @property
    def num_proposed_tokens(self) -> int:
        """Of the draft, for the target to verify one by one."""
        return sum(record.num_proposed_tokens for record in self.records)

    @property
    def num_accepted_tokens(self) -> int:
        """How many of these the target kept, in segments that count as written by it."""
        return sum(record.num_accepted_tokens for record in self.records)

    @property
    def num_target_tokens(self) -> int:
        """Output tokens that the target, not the draft, came up with."""
        return self.num_tokens(Writer.TARGET) - self.num_accepted_tokens

    def num_judged(self, accepted: bool) -> int:
        return sum(record.accepted is accepted for record in self.records)
