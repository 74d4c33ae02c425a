"""Cutting tokens that are already chosen into segments, exactly where a writer of them would have ended each."""

from collections.abc import Sequence

from semspec.engine.causal_lm import CausalLM
from semspec.engine.ending import end_after, ends_before
from semspec.types import GenerationParams, Segment, SegmentEnd, Writer


class Segmenter:
    """Takes tokens one by one until the order is fulfilled."""

    def __init__(
        self, lm: CausalLM, writer: Writer, context: Sequence[int], open_ids: Sequence[int], params: GenerationParams
    ) -> None:
        """`open_ids`: tokens of a segment begun after `context`, from whose end the budgets of `params` count."""
        self._lm, self._writer, self._order = lm, writer, params
        self._context = list(context)
        self._budget = min(params.max_tokens, lm.info.max_context_tokens - len(context))
        self.open_ids = list(open_ids)
        self.segments: list[Segment] = []

    @property
    def num_left(self) -> int:
        """Most tokens that can still be taken."""
        return self._budget - len(self.open_ids)

    def take(self, token: int) -> bool:
        """Whether there was a place for `token`: not if the order is fulfilled, or now turns out to be."""
        if self._is_fulfilled:
            return False
        if ends_before(self._lm, self._order.segmentation, self._context, self.open_ids, token):
            self._close(SegmentEnd.BOUNDARY)
            if self._is_fulfilled:
                return False
        self.open_ids.append(token)
        limit = min(self._order.max_segment_tokens, self._budget)
        if end := end_after(self._lm, self._order.segmentation, self._context, self.open_ids, limit):
            self._close(end)
        return True

    @property
    def _is_fulfilled(self) -> bool:
        has_ended = bool(self.segments) and self.segments[-1].end is SegmentEnd.EOS
        return has_ended or self._budget <= 0 or len(self.segments) == (self._order.max_segments or -1)

    def _close(self, end: SegmentEnd) -> None:
        text = self._lm.text_of(self._context, self.open_ids)
        self.segments.append(Segment(text, tuple(self.open_ids), self._lm.info.tokenizer, self._writer, end))
        self._context += self.open_ids
        self._budget -= len(self.open_ids)
        self.open_ids = []
