"""Cutting text that arrives in pieces into segments: by text alone, and with ids within an order's budgets."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from semspec.engine.segmentation import RULES, cut
from semspec.remote.client import Delta
from semspec.types import Context, GenerationParams, ModelInfo, Piece, Segment, Segmentation, SegmentEnd, Token, Writer


class Tokens(Protocol):
    """What `semspec.engine.causal_lm.CausalLM` knows of texts, where this module wants it."""

    @property
    def info(self) -> ModelInfo: ...

    def context_ids(self, context: Context) -> list[int]: ...

    def read_ids(self, piece: Piece, is_first: bool) -> Sequence[int]: ...

    def tokenize(self, text: str) -> list[Token]: ...

    def without_bos(self, text: str) -> str: ...


class TextSegmenter:
    """A segment is whole with the piece that completes it, as for the engine it is with a token."""

    def __init__(self, segmentation: Segmentation) -> None:
        self._segmentation, self._rule = segmentation, RULES[segmentation]
        self.open = ""
        """What has come and is not yet part of a whole segment."""

    def take_whole(self) -> str | None:
        """The segment that `open` begins with, if it is whole."""
        if self._rule.marks.isdisjoint(self.open):
            return None
        first, *others = cut(self.open, self._segmentation)
        return self.take(len(first)) if others or self._rule.ends_inside(first) else None

    def take(self, num_characters: int) -> str:
        taken, self.open = self.open[:num_characters], self.open[num_characters:]
        return taken


class TokenizedSegmenter:
    """Segments with ids, until the order is fulfilled."""

    def __init__(self, tokens: Tokens, writer: Writer, params: GenerationParams, room: int) -> None:
        """`room`: what the model's window leaves, in tokens."""
        self._tokens, self._writer, self._order = tokens, writer, params
        self._budget = min(params.max_tokens, room)
        self._segmenter = TextSegmenter(params.segmentation)
        self._num_segments = 0
        self._look_at_bytes = 0
        """Shorter open text cannot have too many tokens: each has a byte at least."""
        self.text = ""
        """All that has come."""
        self.is_done = False

    @property
    def num_left(self) -> int:
        """Tokens the server may still write."""
        left = self._budget
        if self._order.max_segments:
            num_segments = self._order.max_segments - self._num_segments
            left = min(left, num_segments * self._order.max_segment_tokens)
        return max(1, left - len(self._tokens.tokenize(self._segmenter.open)))

    def take(self, delta: Delta) -> Iterator[Segment]:
        """The segments that `delta` completes."""
        self.text += delta.text
        self._segmenter.open += delta.text
        while not self.is_done and (segment := self._next(delta.end)):
            self._budget -= len(segment.token_ids)
            self._num_segments += 1
            self._look_at_bytes = 0
            has_all = self._budget <= 0 or self._num_segments == (self._order.max_segments or -1)
            self.is_done = has_all or segment.end is SegmentEnd.EOS
            yield segment
        self.is_done |= delta.end in (SegmentEnd.EOS, SegmentEnd.LENGTH)

    def _next(self, end: SegmentEnd | None) -> Segment | None:
        if (whole := self._segmenter.take_whole()) is not None:
            return self._segment(whole, SegmentEnd.BOUNDARY)
        is_last = end is SegmentEnd.EOS or (end is SegmentEnd.LENGTH and self._segmenter.open)
        if end and is_last:
            return self._segment(self._segmenter.take(len(self._segmenter.open)), end)
        if self._is_too_long():
            return self._segment(self._segmenter.take(len(self._segmenter.open)), SegmentEnd.LENGTH)
        return None

    @property
    def _limit(self) -> int:
        return min(self._order.max_segment_tokens, self._budget)

    def _is_too_long(self) -> bool:
        num_bytes = len(self._segmenter.open.encode())
        if num_bytes <= max(self._look_at_bytes, self._limit):
            return False
        num_tokens = len(self._tokens.tokenize(self._segmenter.open))
        self._look_at_bytes = num_bytes + self._limit - num_tokens
        return num_tokens > self._limit

    def _segment(self, text: str, end: SegmentEnd) -> Segment:
        """`text` as a segment, or as much of it as a segment may hold; the rest is open again."""
        as_text = Segment(text, (), "", self._writer, end)
        ids = self._tokens.read_ids(as_text, is_first=False)
        if len(ids) > self._limit:
            stop, ids = self._cut_off(text)
            self._segmenter.open = text[stop:] + self._segmenter.open
            text, end = text[:stop], SegmentEnd.LENGTH
        return Segment(text, tuple(ids), self._tokens.info.tokenizer, self._writer, end)

    def _cut_off(self, text: str) -> tuple[int, list[int]]:
        """Where a segment that is too long ends, between two characters, and its ids."""
        tokens = self._tokens.tokenize(text)
        num_kept = min(self._limit, len(tokens))
        while 1 < num_kept < len(tokens) and tokens[num_kept].start < tokens[num_kept - 1].stop:
            num_kept -= 1
        return tokens[num_kept - 1].stop, [token.id for token in tokens[:num_kept]]
