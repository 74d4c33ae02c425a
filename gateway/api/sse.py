"""From a request to an HTTP response: whole, or as a stream of server-sent events."""

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from semspec.errors import SemspecError
from semspec.gateway.api.errors import ClientGone, internal_error
from semspec.gateway.api.idempotency import HEADER, IdempotencyKey
from semspec.gateway.api.middleware import owner_of
from semspec.gateway.generation.generations import Generations, Run
from semspec.gateway.generation.output import ChoiceEvent, ChoiceOutput, Ended, Kept
from semspec.gateway.generation.request import Api, Request
from semspec.gateway.readiness import Served
from semspec.gateway.settings import GatewaySettings
from semspec.gateway.store.store import Store
from semspec.types import Drafted

GENERATION_ID = "x-generation-id"
"""Header that names the generation before its first chunk does, to cancel it or attach to it."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Format(Protocol):
    """How one API writes what was generated: models, and their JSON as events."""

    last_line: str | None
    """The data of a stream's last event, after which nothing comes."""

    def opening(self, index: int) -> Sequence[BaseModel]:
        """Chunks that come before a choice's first text."""
        ...

    def drafted(self, event: Drafted) -> Sequence[BaseModel]:
        """Chunks that tell of drafts in flight, if the client wants to know."""
        ...

    def text(self, index: int, event: Kept | Ended) -> Sequence[BaseModel]:
        """Chunks of a segment, or of the text held back to the end; called for each, told or not."""
        ...

    def closing(self, index: int, ended: Ended, outputs: Sequence[ChoiceOutput]) -> Sequence[BaseModel]:
        """A choice's last chunks, after all text; with `outputs` of all choices also the stream's."""
        ...

    def response(self, outputs: Sequence[ChoiceOutput]) -> BaseModel:
        """The whole answer at once."""
        ...

    def error(self, error: SemspecError) -> BaseModel:
        """The last event of a stream that broke."""
        ...


class FormatFactory(Protocol):
    """Makes the format of one answer."""

    def __call__(self, request: Request, system_fingerprint: str) -> Format: ...


class Responder:
    """Answers requests for text, in the format of the API each came by."""

    def __init__(
        self, generations: Generations, store: Store, settings: GatewaySettings, formats: Mapping[Api, FormatFactory]
    ) -> None:
        self._generations = generations
        self._store = store
        self._settings = settings
        self._formats = formats

    async def respond(self, http: HttpRequest, request: Request, body: BaseModel) -> Response:
        """The response to a request for text, begun now or, under a known Idempotency-Key, before."""
        request = replace(request, owner=owner_of(http))
        request, run = await self._opened(request, body, http.headers.get(HEADER))
        if request.stream:
            return self._stream(request.id, run)
        answer = await unless_disconnected(http.receive, self._whole(run))
        return Response(answer, media_type="application/json", headers={GENERATION_ID: request.id})

    def attached(self, id: str, seen: Sequence[int], trace: bool) -> Response:
        """The stream of a generation begun before, from where the client has `seen` it."""
        return self._stream(id, self._generations.attached(id, seen, trace), seen)

    async def _opened(
        self, request: Request, body: BaseModel, key: str | None
    ) -> tuple[Request, AbstractAsyncContextManager[Run]]:
        """The request under the id it has, and its run: a new one, or that of the same request before."""
        if key is None:
            return request, self._generations.begun(request)
        idempotency = IdempotencyKey(key, request, body, self._store)
        patience_s = self._settings.queue_timeout_s + self._settings.encode_deadline_s
        request, has_begun = await idempotency.recalled(patience_s)
        if has_begun:
            return request, self._generations.attached(request.id)
        return request, idempotency.unless_refused(self._generations.begun(request))

    async def _whole(self, opened: AbstractAsyncContextManager[Run]) -> bytes:
        async with opened as run:
            while await run.next() is not None:
                pass
            return self._format(run).response(run.outputs).model_dump_json().encode()

    def _stream(self, id: str, run: AbstractAsyncContextManager[Run], seen: Sequence[int] = ()) -> Response:
        return EventStream(id, run, self._format, self._settings.send_timeout_s, seen)

    def _format(self, run: Run) -> Format:
        return self._formats[run.request.api](run.request, _fingerprint(run.served))


class MakeFormat(Protocol):
    """The format for a run."""

    def __call__(self, run: Run) -> Format: ...


class EventStream(Response):
    """Nothing is sent before the first event, so that whatever fails until then has a proper status.

    An event's id tells how many segments of each choice the client has by then, the text that was held back to the end
    being one more; a client that attaches again sends it.
    """

    def __init__(
        self,
        id: str,
        run: AbstractAsyncContextManager[Run],
        make_format: MakeFormat,
        send_timeout_s: float,
        seen: Sequence[int] = (),
    ) -> None:
        """`seen` counts the segments of each choice that the client has already."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", GENERATION_ID: id}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._run = run
        self._make_format = make_format
        self._send_timeout_s = send_timeout_s
        self._seen = seen
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientGone:
            _log.info("the client hung up; its generations wait to be gone on with")

    async def _send_all(self, send: Send) -> None:
        async with self._run as run:
            chunks = _Chunks(run, self._make_format(run), self._seen)
            try:
                while (item := await run.next()) is not None:
                    if data := chunks.add(*item):
                        await self._sent(send, data)
            except ClientGone:
                raise
            except Exception as error:
                if not self._has_started:
                    raise
                await self._sent(send, chunks.failed(error))
            else:
                if data := chunks.ended():
                    await self._sent(send, data)
        await self._sent(send, b"", more=False)

    async def _sent(self, send: Send, body: bytes, more: bool = True) -> None:
        """A client that does not read is as good as gone, or it would hold its generations for ever."""
        if not self._has_started:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._has_started = True
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise ClientGone from None


class _Chunks:
    """The events of a run as bytes for the client."""

    def __init__(self, run: Run, format: Format, seen: Sequence[int]) -> None:
        self._run = run
        self._format = format
        self._counts = [0] * run.request.num_choices
        self._seen = [*seen, *self._counts][: len(self._counts)]
        self._num_running = run.request.num_choices
        self._has_opened = False

    def add(self, index: int, event: ChoiceEvent) -> bytes:
        """What a further event lets the client see; perhaps nothing."""
        data = b"" if self._has_opened else self._opening()
        if isinstance(event, Drafted):
            return data + _events(self._format.drafted(event))
        self._counts[index] += 1
        new = self._format.text(index, event)
        if self._counts[index] > self._seen[index]:
            data += _events(new, "-".join(map(str, self._counts)))
        if isinstance(event, Ended):
            self._num_running -= 1
            data += _events(self._format.closing(index, event, [] if self._num_running else self._run.outputs))
        return data

    def failed(self, error: Exception) -> bytes:
        """The last event of a stream that broke."""
        if isinstance(error, SemspecError):
            _log.warning("a stream broke: %s", error.message)
            return _events([self._format.error(error)])
        _log.error("a stream broke", exc_info=error)
        return _events([self._format.error(internal_error())])

    def ended(self) -> bytes:
        return b"" if self._format.last_line is None else f"data: {self._format.last_line}\n\n".encode()

    def _opening(self) -> bytes:
        self._has_opened = True
        return _events(chunk for index in range(len(self._counts)) for chunk in self._format.opening(index))


def _events(chunks: Iterable[BaseModel], last_id: str = "") -> bytes:
    """Chunks as events, the last of them with an id if it is given."""
    lines = [f"data: {chunk.model_dump_json()}\n\n" for chunk in chunks]
    if lines and last_id:
        lines[-1] = f"id: {last_id}\n{lines[-1]}"
    return "".join(lines).encode()


def _fingerprint(served: Served) -> str:
    """Changes whenever the same seed may give another answer."""
    verifier = served.verifier
    parts = (served.draft.fingerprint, served.target.fingerprint, verifier.draft_probe, verifier.target_probe)
    builds = (served.draft.build, served.target.build, verifier.build)
    return f"semspec-{hashlib.blake2b(' '.join((*parts, *builds)).encode(), digest_size=6).hexdigest()}"


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`; cancel it, and wait until it has cleaned up, as soon as the client hangs up.

    The request's body must have been read. Raises: ClientGone, and what `work` raises.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
