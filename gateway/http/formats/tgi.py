"""The shapes of Text Generation Inference, version 3. Our own words stand under additional keys at the end."""

from collections.abc import Sequence

from pydantic import JsonValue

from gateway.generations.call import Call
from gateway.generations.choice import Ended, Kept
from gateway.generations.statistics import statistics
from gateway.generations.summary import Summary
from gateway.http.errors import tgi_error_body
from gateway.http.formats.format import Envelope
from gateway.http.formats.tokens import SegmentStream, ShownToken, TokenStream
from semspec.errors import SemspecError
from semspec.records import Json
from semspec.types import Drafted, FinishReason, TokenLogprob


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
            body["semspec"] = {"id": self._id}  # for whoever loses the stream and wants to go on with it
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
