"""Converts kept segments to the token stream that Text Generation Inference's clients expect."""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from semspec.types import SegmentRecord, TokenLogprob


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token as the client sees it."""

    id: int
    text: str
    """A character spread over several tokens is in the last one's text; in none if they do not complete it."""
    logprob: float | None
    special: bool
    """Whether the token is not part of the text; end-of-sequence has empty text."""
    alternatives: tuple["ShownToken", ...] = ()


class SegmentStream:
    """For writers without logprobs: each segment is sent as one token, with the id of its last token."""

    def __init__(self) -> None:
        self._last_id = 0

    def add(self, record: SegmentRecord, visible: str) -> list[ShownToken]:
        """The tokens to send for the next segment, given the text that became `visible` with it."""
        if record.segment.token_ids:  # empty for text that no model wrote
            self._last_id = record.segment.token_ids[-1]
        return [self._shown(visible)] if visible else []

    def close(self, visible: str, stopped: bool) -> list[ShownToken]:
        """The remaining tokens; at least one, since the final chunk needs a token."""
        return [self._shown(visible)]

    def _shown(self, text: str) -> ShownToken:
        return ShownToken(self._last_id, text, None, special=not text)


class TokenStream:
    """For records with logprobs. The last visible token is buffered, since the final chunk needs the last token."""

    def __init__(self) -> None:
        self._waiting: deque[ShownToken] = deque()
        self._num_visible = 0
        """Visible characters of waiting tokens."""
        self._buffered: list[ShownToken] = []

    def add(self, record: SegmentRecord, visible: str) -> list[ShownToken]:
        """See `SegmentStream.add`."""
        self._waiting.extend(_tokens(record))
        self._num_visible += len(visible)
        ready = [*self._buffered, *self._ready()]
        self._buffered = ready[-1:]
        return ready[:-1]

    def close(self, visible: str, stopped: bool) -> list[ShownToken]:
        """The remaining tokens; the last one is cut where a stop sequence ended the text."""
        self._num_visible += len(visible)
        ready = [*self._buffered, *self._ready()]
        if not stopped:
            ready += self._waiting
        elif self._num_visible:
            ready.append(replace(self._waiting[0], text=self._waiting[0].text[: self._num_visible]))
        return ready

    def _ready(self) -> Iterable[ShownToken]:
        while self._num_visible and self._waiting and len(self._waiting[0].text) <= self._num_visible:
            self._num_visible -= len(self._waiting[0].text)
            yield self._waiting.popleft()


def _tokens(record: SegmentRecord) -> Iterable[ShownToken]:
    decoder = getincrementaldecoder("utf-8")("replace")
    for token in record.logprobs or ():
        text = decoder.decode(token.data)
        alternatives = (_shown(other, other.data.decode(errors="replace")) for other in token.alternatives)
        yield _shown(token, text, tuple(alternatives))


def _shown(token: TokenLogprob, text: str, alternatives: tuple[ShownToken, ...] = ()) -> ShownToken:
    return ShownToken(token.token_id, text, token.logprob, not token.data, alternatives)
