"""A stand-in for servers of others: TGI's and OpenAI's shapes over a real socket, and a script for what they say."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from semspec.remote.client import Api

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
    keeps_stop: bool = True
    late_error: Json | None = None
    """Told in the stream, after the pieces."""
    seen: list[Json] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

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

    connections = set[asyncio.Task[None] | None]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            script.headers.append(head)
            length = next(
                (int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:")), 0
            )
            body = json.loads(await reader.readexactly(length)) if length else {}
            await (_stream(api, script, body, reader, writer) if length else _listing(writer))
        except (OSError, EOFError):
            pass  # the client has hung up
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield address if api == "tgi" else f"{address}/v1"
    await asyncio.wait_for(asyncio.gather(*filter(None, connections)), 60)


async def _stream(
    api: Api, script: Script, body: Json, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    script.seen.append(body)
    if script.refusal:
        return await _whole(writer, *script.refusal)
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n")
    events = _tgi_events if api == "tgi" else _openai_events
    for event in events(script, body):
        writer.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
        await asyncio.sleep(0)
    if script.stalls:
        await _until_left(script, reader, writer)


async def _until_left(script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    left = asyncio.create_task(reader.read())
    while not left.done():
        writer.write(b":\n\n")
        await asyncio.wait([left], timeout=0.05)
    await asyncio.gather(left, return_exceptions=True)  # a client that disconnects may reset the connection
    script.hung_up.set()


def _tgi_events(script: Script, body: Json) -> Iterator[Json]:
    said, end = script.said(body["parameters"].get("stop", []))
    for index, piece in enumerate(said):
        is_last = end != "eos_token" and not script.stalls and index == len(said) - 1
        yield _tgi_event(piece, False, end if is_last else None)
    if script.late_error:
        yield script.late_error
    elif end == "eos_token" and not script.stalls:
        yield _tgi_event("</s>", True, end)


def _tgi_event(text: str, special: bool, end: str | None) -> Json:
    details = {"finish_reason": end, "generated_tokens": 1, "input_length": 1} if end else None
    token = {"id": 7, "text": text, "logprob": 0.0, "special": special}
    return {"index": 1, "token": token, "generated_text": "all" if end else None, "details": details}


def _openai_events(script: Script, body: Json) -> Iterator[Json | str]:
    common = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"]}
    for piece in script.said([])[0]:
        yield common | {"choices": [{"index": 0, "text": piece, "finish_reason": None, "logprobs": None}]}
    if script.late_error:
        yield script.late_error
    elif script.end and not script.stalls:
        reason = "length" if script.end == "length" else "stop"
        yield common | {"choices": [{"index": 0, "text": "", "finish_reason": reason, "logprobs": None}]}
        yield "[DONE]"


async def _listing(writer: asyncio.StreamWriter) -> None:
    """`GET /info` of TGI and `GET /v1/models` of OpenAI in one."""
    model = {"id": NAME, "object": "model", "created": 1, "owned_by": "someone"}
    await _whole(writer, 200, {"model_id": NAME, "object": "list", "data": [model]})


async def _whole(writer: asyncio.StreamWriter, status: int, body: Json) -> None:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
