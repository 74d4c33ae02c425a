"""Logprobs in OpenAI's two shapes. They cover every token written, reasoning and a stop sequence included."""

from collections.abc import Sequence
from itertools import accumulate

from pydantic import JsonValue

from semspec.records import Json
from semspec.types import TokenLogprob


def chat_logprobs(tokens: Sequence[TokenLogprob] | None) -> JsonValue:
    """`logprobs` of a chat choice."""
    if tokens is None:
        return None
    content: list[JsonValue] = [
        {**_token(token), "top_logprobs": [_token(other) for other in token.alternatives]} for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprob] | None, offset: int) -> JsonValue:
    """`logprobs` of a plain completion; `offset` is where its first token begins in the whole text, in characters."""
    if tokens is None:
        return None
    texts = [_text(token) for token in tokens]
    offsets: list[JsonValue] = [*accumulate(map(len, texts), initial=offset)]
    return {
        "tokens": list[JsonValue](texts),
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{_text(other): other.logprob for other in token.alternatives} for token in tokens],
        "text_offset": offsets[:-1],
    }


def _token(token: TokenLogprob) -> Json:
    return {"token": _text(token), "logprob": token.logprob, "bytes": list(token.data)}


def _text(token: TokenLogprob) -> str:
    return token.data.decode(errors="replace")
