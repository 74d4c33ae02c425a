"""A gateway whose generation emits scripted events when the test releases them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from semspec_gateway.api.shared import playground

Json = dict[str, Any]

ID = "chatcmpl-0123456789abcdef0123456789abcdef"
MODEL = "semspec-demo"
MODELS = {
    "data": [{"id": MODEL}, {"id": f"{MODEL}:target"}],
    "unsupported": {"retrieval": "no datastore"},
}
SERVICES = [
    {"name": "draft", "status": "away", "detail": "no handshake: start it"},
    {"name": "target", "status": "ok", "detail": "target"},
]
PARAMETERS = {
    "strategy": "semantic",
    "gamma": 2,
    "acceptance": {"rule": "sample", "threshold": 0.5},
    "strictness": None,
    "temperature": 0.6,
}


class HungUp(Exception):
    """Ends a response in the middle, as a lost connection does."""


class ScriptedGateway:
    """Its streams wait for `say`, `hang_up` and `end`."""

    def __init__(self) -> None:
        self.status = "running"
        self.parameters: Json = PARAMETERS
        self.records: list[Json] = []
        """What the store has of the generation."""
        self.attached: list[str | None] = []
        """The `Last-Event-ID` of each time somebody came back."""
        self.cancelled = asyncio.Event()
        self.written = ""
        """What has been sent of the segment that has not ended yet."""
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self.base_url = ""

    def say(self, **semspec: Any) -> None:
        """Send one chunk with this `semspec` object; a segment counts and is stored, and brings what of its text is
        not written yet."""
        name, choices = "", list[Json]()
        if "segment" in semspec:
            self.records.append(semspec["segment"])
            name = f"id: {len(self.records)}\n"
            choices = _choices(semspec["segment"]["text"].removeprefix(self.written))
            self.written = ""
        self._send({"id": ID, "choices": choices, "semspec": semspec}, name)

    def write(self, text: str, part: str = "content") -> None:
        """Send a piece of a segment that has not ended yet."""
        self.written += text
        self._send(
            {"id": ID, "choices": _choices(text, part), "semspec": {"writing": len(self.records)}}
        )

    def fail(self, message: str, code: str) -> None:
        """The last words of a stream that breaks."""
        self._send(
            {"error": {"message": message, "type": "server_error", "param": None, "code": code}}
        )

    def end(self) -> None:
        """Say how it went, and that this is all."""
        self.status = "finished"
        statistics = {
            "latency_ms": 1000.0,
            "parameters": self.parameters,
            "seed": 5,
            "degraded": False,
            "fallback": None,
        }
        self._send({"id": ID, "choices": [], "semspec": {"id": ID, **statistics}})
        self._lines.put_nowait("data: [DONE]\n\n")

    def hang_up(self) -> None:
        """Break the connection."""
        self._lines.put_nowait(None)

    def _send(self, chunk: Json, name: str = "") -> None:
        self._lines.put_nowait(f"{name}data: {json.dumps(chunk)}\n\n")

    async def _stream(self) -> AsyncIterator[str]:
        while (line := await self._lines.get()) is not None:
            yield line
            if "[DONE]" in line:
                return
        raise HungUp

    def _events(self) -> StreamingResponse:
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    def _attached(self, request: Request) -> StreamingResponse:
        self.attached.append(request.headers.get("last-event-id"))
        return self._events()

    def _meta(self) -> Json:
        told = {
            "id": ID,
            "status": self.status,
            "model": MODEL,
            "seed": 5,
            "parameters": self.parameters,
        }
        return {**told, "prompt": {"text": "a stored question"}}

    async def _cancel(self) -> Json:
        self.cancelled.set()
        return self._meta()

    def app(self) -> FastAPI:
        app, path = FastAPI(), f"/v1/generations/{ID}"
        app.get("/")(playground.page)
        app.get("/static/{name}")(playground.static)
        app.get("/v1/models")(lambda: MODELS)
        app.get("/v1/services")(lambda: {"services": SERVICES})
        app.get("/v1/sessions")(lambda: {"data": []})
        app.post("/v1/chat/completions")(self._events)
        app.get(path)(self._meta)
        app.get(f"{path}/events")(self._attached)
        app.get(f"{path}/trace")(lambda: {"segments": self.records})
        app.post(f"{path}/cancel")(self._cancel)
        return app


def _choices(text: str, part: str = "content") -> list[Json]:
    return [{"index": 0, "delta": {"role": "assistant", part: text}}]


def drafted(index: int, *texts: str) -> Json:
    """Segments in flight."""
    return {"index": index, "segments": [{"text": text, "num_tokens": 5} for text in texts]}
