"""Converts kept segments to the token stream that Text Generation Inference's clients expect."""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from semspec.types import TokenLogprob


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
    """For writers without logprobs: each text is sent as one token, with the id of its last token."""

    def __init__(self) -> None:
        self._last_id = 0

    def add(
        self,
        logprobs: Sequence[TokenLogprob],
        last_id: int | None,
        visible: str,
        is_followed: bool = False,
    ) -> list[ShownToken]:
        """The tokens to send for the next text, given what became `visible` with it. `last_id`: None for text that no
        model wrote. `is_followed`: a token of the same segment follows in any case."""
        self._last_id = self._last_id if last_id is None else last_id
        return [self._shown(visible)] if visible else []

    def close(self, visible: str, stopped: bool) -> list[ShownToken]:
        """The remaining tokens; at least one, since the final chunk needs a token."""
        return [self._shown(visible)]

    def _shown(self, text: str) -> ShownToken:
        return ShownToken(self._last_id, text, None, special=not text)


class TokenStream:
    """For tokens with logprobs. The last visible token of a segment is buffered, since the final chunk needs one."""

    def __init__(self) -> None:
        self._waiting: deque[ShownToken] = deque()
        self._num_visible = 0
        """Visible characters of waiting tokens."""
        self._buffered: list[ShownToken] = []
        self._last_id = 0
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def add(
        self,
        logprobs: Sequence[TokenLogprob],
        last_id: int | None,
        visible: str,
        is_followed: bool = False,
    ) -> list[ShownToken]:
        """See `SegmentStream.add`."""
        self._last_id = self._last_id if last_id is None else last_id
        self._waiting.extend(self._tokens(logprobs))
        self._num_visible += len(visible)
        ready = [*self._buffered, *self._ready()]
        self._buffered = [] if is_followed else ready[-1:]
        return ready[: len(ready) - len(self._buffered)]

    def close(self, visible: str, stopped: bool) -> list[ShownToken]:
        """The remaining tokens, at least one; the last one is cut where a stop sequence ended the text."""
        self._num_visible += len(visible)
        ready = [*self._buffered, *self._ready()]
        if not stopped:
            ready += self._waiting
        elif self._num_visible:
            ready.append(replace(self._waiting[0], text=self._waiting[0].text[: self._num_visible]))
        return ready or [ShownToken(self._last_id, "", None, special=True)]

    def _tokens(self, logprobs: Sequence[TokenLogprob]) -> Iterable[ShownToken]:
        for token in logprobs:
            text = self._decoder.decode(token.data)
            alternatives = (
                _shown(other, other.data.decode(errors="replace")) for other in token.alternatives
            )
            yield _shown(token, text, tuple(alternatives))

    def _ready(self) -> Iterable[ShownToken]:
        while (
            self._num_visible and self._waiting and len(self._waiting[0].text) <= self._num_visible
        ):
            self._num_visible -= len(self._waiting[0].text)
            yield self._waiting.popleft()


def _shown(token: TokenLogprob, text: str, alternatives: tuple[ShownToken, ...] = ()) -> ShownToken:
    return ShownToken(token.token_id, text, token.logprob, not token.data, alternatives)
