"""A text as a stream of the tokens that Text Generation Inference's clients are shown."""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from semspec.types import SegmentRecord, TokenLogprob


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token as a client sees it."""

    id: int
    text: str
    """Of a character spread over several tokens the last one has it all, the others have nothing."""
    logprob: float | None
    special: bool
    """Whether its text belongs to no answer; end-of-sequence has none here."""
    alternatives: tuple[TokenLogprob, ...] = ()


class SegmentStream:
    """For writers that report no logprobs: a segment passes for one token, known by the id of its last."""

    def __init__(self) -> None:
        self._last_id = 0

    def add(self, record: SegmentRecord, visible: str) -> list[ShownToken]:
        """What there is to show of a further segment, given the text that may be seen by now and could not before."""
        if record.segment.token_ids:  # text that no model wrote has none
            self._last_id = record.segment.token_ids[-1]
        return [self._shown(visible)] if visible else []

    def close(self, visible: str, stopped: bool) -> list[ShownToken]:
        """What is left: always something, for the end to be told with."""
        return [self._shown(visible)]

    def _shown(self, text: str) -> ShownToken:
        return ShownToken(self._last_id, text, None, special=not text)


class TokenStream:
    """For records with logprobs. The last token that may be seen waits for the next: the end is told with the last."""

    def __init__(self) -> None:
        self._waiting: deque[ShownToken] = deque()
        self._num_visible = 0
        """Characters that may be seen and belong to tokens that wait."""
        self._held: list[ShownToken] = []

    def add(self, record: SegmentRecord, visible: str) -> list[ShownToken]:
        """See `SegmentStream.add`."""
        self._waiting.extend(_tokens(record))
        self._num_visible += len(visible)
        ready = [*self._held, *self._ready()]
        self._held = ready[-1:]
        return ready[:-1]

    def close(self, visible: str, stopped: bool) -> list[ShownToken]:
        """What is left. Where a stop sequence ended the text, a token reaches no further than that."""
        self._num_visible += len(visible)
        ready = [*self._held, *self._ready()]
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
    decoder, tokens = getincrementaldecoder("utf-8")("replace"), record.logprobs or ()
    for position, token in enumerate(tokens, 1):
        text = decoder.decode(token.data, final=position == len(tokens))
        yield ShownToken(token.token_id, text, token.logprob, not token.data, token.alternatives)
