"""A stand-in for servers of others: TGI's and OpenAI's shapes over a real socket, and a script for what they say."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from semspec.remote.client import Api
from tests.helpers.gateway import listening

Json = dict[str, Any]
NAME = "some/model"


@dataclass
class Script:
    """What the server says, and what it was asked."""

    pieces: list[str]
    end: str | None = "eos_token"
    """In TGI's words; None breaks the stream off."""
    stalls: bool = False
    """Says its pieces and then nothing, with TGI's signs of life."""
    refusal: tuple[int, Json] | None = None
    """A status and a body instead of a stream."""
    special: tuple[str, ...] = ()
    """Pieces that TGI calls special tokens."""
    keeps_stop: bool = True
    late_error: Json | None = None
    """Told in the stream, after the pieces."""
    seen: list[Json] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    num_left: int = 0
    """Streams that a client left before their end."""

    def said(self, stop: list[str]) -> tuple[list[str], str | None]:
        """The pieces up to the first that ends in a stop text, as TGI stops, and the reason."""
        text = ""
        for index, piece in enumerate(self.pieces):
            text += piece
            if any(text.endswith(one) for one in stop):
                last = piece if self.keeps_stop else piece.removesuffix(stop[0])
                said, self.pieces = [*self.pieces[:index], last], self.pieces[index + 1 :]
                return said, "stop_sequence"
        return self.pieces, self.end


@asynccontextmanager
async def serving(api: Api, script: Script) -> AsyncIterator[str]:
    """Its address, as a client of that API writes it."""
    app = FastAPI()

    @app.get("/{path:path}")
    async def listing(request: Request) -> Json:
        """`GET /info` of TGI and `GET /v1/models` of OpenAI in one."""
        script.headers.append(request.headers)
        model = {"id": NAME, "object": "model", "created": 1, "owned_by": "someone"}
        return {"model_id": NAME, "object": "list", "data": [model]}

    @app.post("/{path:path}")
    async def stream(request: Request, body: Json) -> Response:
        script.headers.append(request.headers)
        script.seen.append(body)
        if script.refusal:
            status, content = script.refusal
            return JSONResponse(content, status)
        events = _tgi_events if api == "tgi" else _openai_events
        return StreamingResponse(
            _lines(script, events(script, body)), media_type="text/event-stream"
        )

    async with listening(app) as address:
        yield address if api == "tgi" else f"{address}/v1"


async def _lines(script: Script, events: Iterator[Json | str]) -> AsyncIterator[str]:
    try:
        for event in events:
            yield f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n"
        while script.stalls:
            yield ":\n\n"
            await asyncio.sleep(0.05)
    except (asyncio.CancelledError, GeneratorExit):
        script.num_left += 1
        raise


def _tgi_events(script: Script, body: Json) -> Iterator[Json | str]:
    said, end = script.said(body["parameters"].get("stop", []))
    for index, piece in enumerate(said):
        is_last = end != "eos_token" and not script.stalls and index == len(said) - 1
        yield _tgi_event(piece, piece in script.special, end if is_last else None)
    if script.late_error:
        yield script.late_error
    elif end == "eos_token" and not script.stalls:
        yield _tgi_event("</s>", True, end)


def _tgi_event(text: str, special: bool, end: str | None) -> Json:
    details = {"finish_reason": end, "generated_tokens": 1, "input_length": 1} if end else None
    token = {"id": 7, "text": text, "logprob": 0.0, "special": special}
    return {
        "index": 1,
        "token": token,
        "generated_text": "all" if end else None,
        "details": details,
    }


def _openai_events(script: Script, body: Json) -> Iterator[Json | str]:
    common = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"]}
    for piece in script.said([])[0]:
        yield common | {
            "choices": [{"index": 0, "text": piece, "finish_reason": None, "logprobs": None}]
        }
    if script.late_error:
        yield script.late_error
    elif script.end and not script.stalls:
        reason = "length" if script.end == "length" else "stop"
        yield common | {
            "choices": [{"index": 0, "text": "", "finish_reason": reason, "logprobs": None}]
        }
        yield "[DONE]"
