"""The response bodies of Text Generation Inference, version 3, and a text as a stream of its tokens.

Fields of our own stand under additional keys at the end.
"""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from gateway.generations.call import Call
from gateway.generations.choice import Ended, Kept
from gateway.generations.statistics import Summary, statistics
from gateway.http.errors import tgi_error_body
from gateway.http.formats.format import Envelope
from semspec.errors import SemspecError
from semspec.records import Json
from semspec.types import Drafted, FinishReason, SegmentRecord, TokenLogprob


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


class TgiFormat:
    """`POST /generate`, and its stream: an event a token or, under strategies without logprobs, a segment."""

    last_line: str | None = None

    def __init__(self, call: Call, envelope: Envelope) -> None:
        self._call = call
        self._id = envelope.id
        self._tokens = _stream_of(call)
        self._num_events = 0

    def opening(self, index: int) -> list[Json]:
        return []

    def drafted(self, event: Drafted) -> list[Json]:
        return []

    def text(self, index: int, event: Kept | Ended) -> list[Json]:
        if isinstance(event, Ended):
            return []  # the end is told with the last text
        return [self._chunk(token) for token in self._tokens.add(event.record, event.delta.content)]

    def closing(self, index: int, ended: Ended, summaries: Sequence[Summary]) -> list[Json]:
        (summary,) = summaries  # TGI knows no choices
        tokens = self._tokens.close(ended.delta.content, summary.stop_checker.stop is not None)
        chunks = [self._chunk(token) for token in tokens]
        chunks[-1] |= {
            "generated_text": self._text(summary),
            "details": self._end(summary, self._num_events) if self._call.details else None,
            **statistics(summaries, self._call),
        }
        return chunks

    def response(self, summaries: Sequence[Summary]) -> JsonValue:
        (summary,) = summaries
        body: Json = {"generated_text": self._text(summary)}
        if self._call.details:
            body["details"] = self._details(summary)
        return {**body, **statistics(summaries, self._call)}

    def error(self, error: SemspecError) -> Json:
        return tgi_error_body(error)

    def _text(self, summary: Summary) -> str:
        prompt = self._call.prompt if self._call.full_text else ""
        return f"{prompt}{summary.seen.content}"

    def _chunk(self, token: ShownToken) -> Json:
        self._num_events += 1
        body: Json = {"index": self._num_events, "token": _token(token), "generated_text": None, "details": None}
        if self._call.plan.num_logprobs:
            body["top_tokens"] = _alternatives(token)
        if self._num_events == 1:
            body["semspec"] = {"id": self._id}  # for clients that lose the stream and attach again
        return body

    def _end(self, summary: Summary, num_tokens: int) -> Json:
        by_token = isinstance(self._tokens, TokenStream)
        return {
            "finish_reason": _reason(summary),
            "generated_tokens": num_tokens if by_token else summary.num_tokens(),
            "input_length": summary.num_prompt_tokens,
            "seed": self._call.seed if self._call.plan.sampling.temperature > 0 else None,
        }

    def _details(self, summary: Summary) -> Json:
        tokens = _shown(self._call, summary)
        body: Json = {
            **self._end(summary, len(tokens)),
            "prefill": [],
            "tokens": [_token(token) for token in tokens],
        }
        if self._call.plan.num_logprobs:
            body["top_tokens"] = [_alternatives(token) for token in tokens]
        return body


def _stream_of(call: Call) -> TokenStream | SegmentStream:
    return SegmentStream() if call.plan.num_logprobs is None else TokenStream()


def _shown(call: Call, summary: Summary) -> list[ShownToken]:
    """All tokens of a text that has ended."""
    stream, tokens, rest = _stream_of(call), list[ShownToken](), summary.seen.content
    for record in summary.records:
        size = len(record.segment.text)
        tokens += stream.add(record, rest[:size])
        rest = rest[size:]
    last = stream.close("", summary.stop_checker.stop is not None)
    return tokens + (last if isinstance(stream, TokenStream) else [])


def _reason(summary: Summary) -> str:
    if summary.stop_checker.stop is not None:
        return "stop_sequence"
    return "length" if summary.finish_reason is FinishReason.LENGTH else "eos_token"


def _token(token: ShownToken) -> Json:
    return {"id": token.id, "text": token.text, "logprob": token.logprob, "special": token.special}


def _alternatives(token: ShownToken) -> list[JsonValue]:
    return [_alternative(other) for other in token.alternatives]


def _alternative(token: TokenLogprob) -> Json:
    text = token.data.decode(errors="replace")
    return {"id": token.token_id, "text": text, "logprob": token.logprob, "special": not token.data}
