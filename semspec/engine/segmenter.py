"""Splits token ids into segments: while a model writes them, or after they were chosen."""

from collections.abc import Sequence

from semspec.engine.causal_lm import CausalLM
from semspec.engine.segmentation import RULES
from semspec.types import GenerationParams, Segment, Segmentation, SegmentEnd, Writer


def end_after(
    lm: CausalLM, segmentation: Segmentation, context: Sequence[int], tokens: Sequence[int], max_tokens: int
) -> SegmentEnd | None:
    """Why the segment `tokens` ends with its last token, if it does."""
    if tokens[-1] in lm.eos_ids:
        return SegmentEnd.EOS
    if _may_end(lm, segmentation, tokens[-1]) and RULES[segmentation].ends_inside(lm.text_of(context, tokens)):
        return SegmentEnd.BOUNDARY
    return SegmentEnd.LENGTH if len(tokens) >= max_tokens else None


def ends_before(
    lm: CausalLM, segmentation: Segmentation, context: Sequence[int], tokens: Sequence[int], following: int
) -> bool:
    """Whether `following` shows that the segment had ended with `tokens`."""
    if not tokens or not (_may_end(lm, segmentation, tokens[-1]) or _may_end(lm, segmentation, following)):
        return False
    return RULES[segmentation].ends_before(lm.text_of(context, tokens), lm.token_text(following))


def _may_end(lm: CausalLM, segmentation: Segmentation, token: int) -> bool:
    return not RULES[segmentation].marks.isdisjoint(lm.token_text(token))


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
