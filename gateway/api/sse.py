"""From a run to an HTTP response: whole, or as a stream of events."""

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.generations.call import Call
from gateway.generations.choice import Ended
from gateway.generations.run import Run, attached_run, new_run
from gateway.generations.served import Served
from gateway.http.errors import internal_error
from gateway.http.formats import Envelope, Format, format_of
from gateway.http.idempotency import HEADER, recalled, unless_refused
from gateway.http.middleware import owner_of
from gateway.http.schemas import GenerationRequest
from gateway.parts import Parts
from gateway.tasks import ClientGone, unless_disconnected
from semspec.errors import SemspecError
from semspec.records import Json
from semspec.types import Drafted

GENERATION_ID = "x-generation-id"
"""Header that names the generation before its first chunk does, to cancel it or attach to it."""

_log = logging.getLogger(__name__)


async def answered(request: Request, call: Call, body: GenerationRequest, parts: Parts) -> Response:
    """The response to a request for text, begun now or, under a known Idempotency-Key, before."""
    call = replace(call, owner=owner_of(request))
    call, run = await _opened(call, body, request.headers.get(HEADER), parts)
    if call.stream:
        return EventStream(call.id, run, parts)
    answer = await unless_disconnected(request.receive, _whole(run))
    return JSONResponse(answer, headers={GENERATION_ID: call.id})


async def _opened(
    call: Call, body: GenerationRequest, key: str | None, parts: Parts
) -> tuple[Call, AbstractAsyncContextManager[Run]]:
    """The call under the id it has, and its run: a new one, or that of the same request before."""
    if key is None:
        return call, new_run(call, parts)
    patience_s = parts.settings.queue_timeout_s + parts.settings.encode_deadline_s
    call, has_begun = await recalled(call, body, key, parts.store, patience_s)
    if has_begun:
        return call, attached_run(call.id, parts)
    return call, unless_refused(new_run(call, parts), call, body, key, parts.store)


async def _whole(opened: AbstractAsyncContextManager[Run]) -> object:
    async with opened as run, aclosing(run.events()) as events:
        async for _ in events:
            pass
    return format_of(run.call, _envelope(run)).response(run.summaries)


class EventStream(Response):
    """Nothing is sent before the first event, so that whatever fails until then has a proper status.

    An event's id tells how many segments of each choice the client has by then, the text that was held back to the end
    being one more; a client that attaches again sends it.
    """

    def __init__(self, id: str, run: AbstractAsyncContextManager[Run], parts: Parts, seen: Sequence[int] = ()) -> None:
        """`seen` counts the segments of each choice that the client has already."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", GENERATION_ID: id}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._run = run
        self._parts = parts
        self._seen = seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientGone:
            _log.info("the client hung up; its generations wait to be gone on with")

    async def _send_all(self, send: Send) -> None:
        started = False
        async with self._run as run, aclosing(self._events(run)) as events:
            async for event in events:
                if not started:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    started = True
                await self._sent(send, event.encode(), more=True)
        await self._sent(send, b"", more=False)

    async def _sent(self, send: Send, body: bytes, more: bool) -> None:
        """A client that does not read is as good as gone, or it would hold its generations for ever."""
        try:
            async with asyncio.timeout(self._parts.settings.send_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise ClientGone from None

    async def _events(self, run: Run) -> AsyncGenerator[str, None]:
        started, format = False, format_of(run.call, _envelope(run))
        try:
            async with aclosing(self._chunks(run, format)) as chunks:
                async for chunk, id in chunks:
                    yield _event(chunk, id)
                    started = True
        except Exception as error:
            if not started:
                raise
            yield _event(format.error(_last_words(error)), "")
        else:
            if format.last_line is not None:
                yield f"data: {format.last_line}\n\n"

    async def _chunks(self, run: Run, format: Format) -> AsyncGenerator[tuple[Json, str], None]:
        """Chunks, each with the id of its event or nothing."""
        counts, running = [0] * run.call.num_choices, run.call.num_choices
        seen = [*self._seen, *counts][: len(counts)]
        opening = [chunk for index in range(len(counts)) for chunk in format.opening(index)]
        async with aclosing(run.events()) as events:
            async for index, event in events:
                for chunk in opening:
                    yield chunk, ""
                opening = []
                if isinstance(event, Drafted):
                    for chunk in format.drafted(event):
                        yield chunk, ""
                    continue
                counts[index] += 1
                new = format.text(index, event)
                if counts[index] > seen[index]:
                    for position, chunk in enumerate(new, 1):
                        yield chunk, "-".join(map(str, counts)) if position == len(new) else ""
                if isinstance(event, Ended):
                    running -= 1
                    for chunk in format.closing(index, event, [] if running else run.summaries):
                        yield chunk, ""


def _event(chunk: Json, id: str) -> str:
    name = f"id: {id}\n" if id else ""
    return f"{name}data: {json.dumps(chunk)}\n\n"


def _last_words(error: Exception) -> SemspecError:
    if isinstance(error, SemspecError):
        _log.warning("a stream broke: %s", error.message)
        return error
    _log.error("a stream broke", exc_info=error)
    return internal_error()


def _envelope(run: Run) -> Envelope:
    return Envelope(run.call.id, run.call.created, run.call.model, _fingerprint(run.served))


def _fingerprint(served: Served) -> str:
    """Changes whenever the same seed may give another answer."""
    verifier = served.verifier
    parts = (served.draft.fingerprint, served.target.fingerprint, verifier.draft_probe, verifier.target_probe)
    builds = (served.draft.build, served.target.build, verifier.build)
    return f"semspec-{hashlib.blake2b(' '.join((*parts, *builds)).encode(), digest_size=6).hexdigest()}"
