"""Segments of the text that a server streams."""

from collections.abc import Iterator

from semspec.engine.segmentation import RULES, Segmenter, first_segment
from semspec.engine.tokenization import ModelTokenizer
from semspec.stops import StopSearch
from semspec.types import GenerationParams, Segment, SegmentEnd, Token, Writer


class TextSegmenter(Segmenter):
    """Segments a stream of text pieces of any size, and tokenizes the segments.

    A segment is complete with the piece that completes it, as for `TokenSegmenter` with a token.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        writer: Writer,
        params: GenerationParams,
        num_context_tokens: int,
        before: str,
        stops: StopSearch | None = None,
    ) -> None:
        """`before`: the text of the context."""
        super().__init__(tokenizer, writer, params, num_context_tokens, stops)
        self._before = before
        """All text before the open text."""
        self.text = ""
        """The text received so far."""
        self._open = ""
        """The received text after the last complete segment."""
        self._num_bytes_within_limit = 0
        """Open text of at most this many bytes cannot exceed the token limit, since a token has at least one byte."""

    @property
    def num_left(self) -> int:
        """Number of tokens the server may still generate."""
        left = self._budget
        if self._params.max_segments:
            num_segments = self._params.max_segments - len(self.segments)
            left = min(left, num_segments * self._params.max_segment_tokens)
        return max(1, left - len(self._open_tokens()))

    def take(self, text: str, end: SegmentEnd | None = None) -> Iterator[Segment]:
        """Yield the segments that `text` completes. `end`: why the server stopped, with the last piece."""
        self.text += text
        self._open += text
        if self._stops and self._stops.ends_in(text):
            end = SegmentEnd.STOP
        while not self.is_done and (segment := self._next(end)):
            self._num_bytes_within_limit = 0
            yield segment
        self.is_done |= end in (SegmentEnd.EOS, SegmentEnd.LENGTH, SegmentEnd.STOP)

    def _next(self, end: SegmentEnd | None) -> Segment | None:
        complete = first_segment(self._open, self._params.segmentation)
        if (
            complete is not None
            and (complete := self._to_end_of_token(complete, is_all=end is not None)) is not None
        ):
            return self._close_text(complete, SegmentEnd.BOUNDARY)
        if end is SegmentEnd.EOS or (end in (SegmentEnd.LENGTH, SegmentEnd.STOP) and self._open):
            return self._close_text(self._open, end)
        return self._close_text(self._open, SegmentEnd.LENGTH) if self._is_too_long() else None

    def _to_end_of_token(self, complete: str, is_all: bool) -> str | None:
        """Extend `complete`, a prefix of the open text, by the white space of its last token, such as `.\\n\\n`. Return
        None if the token may go on in text that has not arrived."""
        rest = self._open[len(complete) :]
        if RULES[self._params.segmentation].ends_inside(complete) or not rest:
            return complete
        if not is_all and rest.isspace():
            return None
        stops = [token.stop for token in self._open_tokens()]
        return self._open[: next(stop for stop in stops if stop >= len(complete))]

    def _is_too_long(self) -> bool:
        num_bytes = len(self._open.encode())
        if num_bytes <= max(self._num_bytes_within_limit, self._limit):
            return False
        num_tokens = len(self._open_tokens())
        self._num_bytes_within_limit = num_bytes + self._limit - num_tokens
        return num_tokens > self._limit

    def _open_tokens(self) -> list[Token]:
        return self._tokenizer.tokens_after(self._before, self._open)

    def _close_text(self, text: str, end: SegmentEnd) -> Segment:
        """Close a segment with `text`, a prefix of the open text, truncated to the token limit."""
        ids = self._tokenizer.read_ids(Segment(text, (), "", self._writer, end), self._before)
        if len(ids) > self._limit:
            kept, ids = self._truncated(text)
            end = (
                SegmentEnd.BOUNDARY
                if kept == text and end is SegmentEnd.BOUNDARY
                else SegmentEnd.LENGTH
            )
            text = kept
        self._open = self._open[len(text) :]
        self._before += text
        return self._close(text, ids, end)

    def _truncated(self, text: str) -> tuple[str, list[int]]:
        """Return the beginning of a segment that is too long, and its ids, as `TokenSegmenter` ends it: after the
        character that reaches the limit, or before the character that exceeds the budget."""
        tokens = self._tokenizer.tokens_after(self._before, text)
        num_kept = min(self._limit, len(tokens))
        while num_kept < len(tokens) and tokens[num_kept].start < tokens[num_kept - 1].stop:
            num_kept += 1
        stop = tokens[num_kept - 1].stop
        if num_kept > self._budget:
            num_kept, stop = self._budget, tokens[num_kept - 1].start
        return text[:stop], [token.id for token in tokens[:num_kept]]
