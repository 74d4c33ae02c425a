"""A gateway whose generation emits scripted events when the test releases them."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from semspec.gateway.api.shared import playground
from semspec.records import record_json
from semspec.types import Judgement, Segment, SegmentEnd, SegmentRecord, StageTimes, Writer

Json = dict[str, Any]

ID = "chatcmpl-0123456789abcdef0123456789abcdef"
MODEL = "semspec-demo"
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
    """`async with ScriptedGateway() as gateway:` — it listens, and its streams wait for `say`, `hang_up` and `end`."""

    def __init__(self) -> None:
        self.status = "running"
        self.records: list[Json] = []
        """What the store has of the generation."""
        self.attached: list[str | None] = []
        """The `Last-Event-ID` of each time somebody came back."""
        self.cancelled = asyncio.Event()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._server = uvicorn.Server(uvicorn.Config(self._app(), port=0, log_config=None, timeout_graceful_shutdown=1))
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def say(self, **semspec: Any) -> None:
        """Send one chunk with this `semspec` object; a segment counts and is stored."""
        name = ""
        if "segment" in semspec:
            self.records.append(semspec["segment"])
            name = f"id: {len(self.records)}\n"
        self._send({"id": ID, "choices": [], "semspec": semspec}, name)

    def fail(self, message: str, code: str) -> None:
        """The last words of a stream that breaks."""
        self._send({"error": {"message": message, "type": "server_error", "param": None, "code": code}})

    def end(self) -> None:
        """Say how it went, and that this is all."""
        self.status = "finished"
        statistics = {"latency_ms": 1000.0, "parameters": PARAMETERS, "seed": 5, "degraded": False, "fallback": None}
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

    def _meta(self) -> Json:
        return {
            "id": ID,
            "status": self.status,
            "model": MODEL,
            "seed": 5,
            "parameters": PARAMETERS,
            "prompt": {"text": "a stored question"},
        }

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.get("/")(playground.page)
        app.get("/static/{name}")(playground.static)

        @app.get("/v1/models")
        async def models() -> Json:
            return {"data": [{"id": MODEL}, {"id": f"{MODEL}:target"}]}

        @app.get("/v1/services")
        async def services() -> Json:
            away = {"name": "draft", "status": "away", "detail": "no handshake: start it"}
            return {"services": [away, {"name": "target", "status": "ok", "detail": "target"}]}

        @app.get("/v1/sessions")
        async def sessions() -> Json:
            return {"data": []}

        @app.post("/v1/chat/completions", response_model=None)
        async def complete() -> StreamingResponse:
            return self._events()

        @app.get(f"/v1/generations/{ID}/events", response_model=None)
        async def events(request: Request) -> StreamingResponse:
            self.attached.append(request.headers.get("last-event-id"))
            return self._events()

        @app.get(f"/v1/generations/{ID}")
        async def generation() -> Json:
            return self._meta()

        @app.get(f"/v1/generations/{ID}/trace")
        async def trace() -> Json:
            return {"segments": self.records}

        @app.post(f"/v1/generations/{ID}/cancel")
        async def cancel() -> Json:
            self.cancelled.set()
            return self._meta()

        return app


def record(index: int, text: str, verdict: str = "accepted", **fields: Any) -> Json:
    """A segment's record; a rewritten one replaces a draft."""
    is_rewritten = verdict == "rewritten"
    decided = SegmentRecord(
        index,
        segment(text, 5, Writer.TARGET if is_rewritten else Writer.DRAFT),
        accepted=not is_rewritten,
        judgement=Judgement(0.5, 0.25),
        draw=0.125,
        rejected=segment(f"refused {index}", 4, Writer.DRAFT) if is_rewritten else None,
        times=StageTimes(2.0, 3.0, 1.0, 0.0, 1.5),
    )
    return {**record_json(decided), **fields}


def segment(text: str, num_tokens: int, writer: Writer) -> Segment:
    return Segment(text, tuple(range(num_tokens)), "", writer, SegmentEnd.BOUNDARY)


def drafted(index: int, *texts: str) -> Json:
    """Segments in flight."""
    return {"index": index, "segments": [{"text": text, "num_tokens": 5} for text in texts]}
