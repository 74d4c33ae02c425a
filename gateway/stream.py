"""Answers as server-sent events: one chunk a finished segment."""

import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.call import Call
from gateway.disconnect import ClientGone, unless_disconnected
from gateway.errors import error_body, internal_error
from gateway.formats import Format
from gateway.parts import Parts
from gateway.run import Run, admitted_run
from gateway.summary import Summary, extension, usage
from semspec.core import FinishReason, SegmentRecord
from semspec.errors import SemspecError
from semspec.trace import Json, record_json

_log = logging.getLogger(__name__)


class SegmentStream(Response):
    """Nothing is sent before the first event, so that whatever fails until then has a proper status."""

    def __init__(self, call: Call, format: Format, parts: Parts) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._call = call
        self._format = format
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientGone:
            _log.info("the client hung up; its generations are cancelled")

    async def _send_all(self, send: Send) -> None:
        started = False
        async with admitted_run(self._call, self._parts) as run, aclosing(self._lines(run)) as lines:
            async for line in lines:
                if not started:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    started = True
                body = f"data: {line}\n\n".encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _lines(self, run: Run) -> AsyncGenerator[str, None]:
        started = False
        try:
            async with aclosing(self._chunks(run)) as chunks:
                async for chunk in chunks:
                    yield json.dumps(chunk)
                    started = True
        except Exception as error:
            if not started:
                raise
            yield json.dumps(_last_words(error))
        else:
            yield "[DONE]"

    async def _chunks(self, run: Run) -> AsyncGenerator[Json, None]:
        opened, running = False, self._call.num_choices
        async with aclosing(run.events()) as events:
            async for index, event in events:
                for chunk in () if opened else self._opening():
                    yield chunk
                opened = True
                if isinstance(event, SegmentRecord):
                    yield self._segment(index, event)
                    continue
                running -= 1
                for chunk in self._closing(index, event.reason, [] if running else run.summaries):
                    yield chunk

    def _opening(self) -> list[Json]:
        return [chunk for index in range(self._call.num_choices) for chunk in self._format.opening(index)]

    def _segment(self, index: int, record: SegmentRecord) -> Json:
        chunk = self._format.delta(index, record.segment.text)
        return {**chunk, "semspec": {"segment": record_json(record)}} if self._call.trace else chunk

    def _closing(self, index: int, reason: FinishReason, summaries: Sequence[Summary]) -> list[Json]:
        """A choice's end; with all summaries also the stream's, whose very last chunk carries the statistics."""
        chunks = [self._format.closing(index, reason)]
        if summaries and self._call.include_usage:
            chunks.append(self._format.usage(usage(summaries)))
        if summaries:
            chunks[-1] = {**chunks[-1], "semspec": extension(summaries, self._call.seed, self._call.trace)}
        return chunks


def _last_words(error: Exception) -> Json:
    if isinstance(error, SemspecError):
        _log.warning("a stream broke: %s", error.message)
        return error_body(error)
    _log.error("a stream broke", exc_info=error)
    return error_body(internal_error())
