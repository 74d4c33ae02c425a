"""Answers generation requests, whole or as a stream of server-sent events."""

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from semspec.errors import SemspecError
from semspec.gateway.api.shared.answers import Format
from semspec.gateway.api.shared.errors import ClientGone, internal_error
from semspec.gateway.api.shared.idempotency import IdempotencyKey
from semspec.gateway.api.shared.middleware import ShuttingDown, handed_over, owner_of
from semspec.gateway.api.shared.resolver import Api, ClientRequest, Resolver, naming, new_id
from semspec.gateway.generation.generations import Generations, Run
from semspec.gateway.generation.output import ChoiceEvent, Ended
from semspec.gateway.generation.preparation import ENCODE_DEADLINE_S
from semspec.gateway.served import Served
from semspec.gateway.settings import GatewaySettings
from semspec.gateway.store.store import Store
from semspec.types import Drafted

GENERATION_ID = "x-generation-id"
"""Header with the generation's id, sent before the first chunk, to cancel the generation or attach to it."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


Opened = tuple[Run, Format]


class Responder:
    """Answers generation requests in the format of their API."""

    def __init__(
        self,
        resolver: Resolver,
        generations: Generations,
        store: Store,
        settings: GatewaySettings,
        formats: Mapping[Api, type[Format]],
    ) -> None:
        self._resolver = resolver
        self._generations = generations
        self._store = store
        self._settings = settings
        self._formats = formats

    async def respond(self, http: HttpRequest, asked: ClientRequest, body: BaseModel, key: str | None) -> Response:
        """The response to a new request, or to one repeated under its idempotency `key` with the same `body`."""
        api, owner = asked.answer.api, owner_of(http)
        id = new_id(api)
        if key is None:
            opened: AbstractAsyncContextManager[Opened] = self._begin(asked, id, owner)
        else:
            content = (api, json.dumps(body.model_dump(exclude_unset=True)))
            idempotency = IdempotencyKey(key, owner, content, self._store)
            timeout_s = self._settings.queue_timeout_s + ENCODE_DEADLINE_S
            id, has_begun = await unless_disconnected(http.receive, idempotency.recall(id, timeout_s))
            opened = self._attach(id) if has_begun else idempotency.unless_refused(self._begin(asked, id, owner))
        if asked.body.stream:
            return EventStream(id, opened, self._settings.send_timeout_s)
        try:
            answer = await unless_disconnected(http.receive, _whole(opened))
        except ShuttingDown:
            raise handed_over(id) from None
        return Response(answer, media_type="application/json", headers={GENERATION_ID: id})

    def attach(self, id: str, seen: Sequence[int], trace: bool) -> Response:
        """The stream of an existing generation, after the segments that the client has `seen` of each choice; with the
        usage, and with segment records if `trace`."""
        opened = self._attach(id, seen, trace=trace, include_usage=True)
        return EventStream(id, opened, self._settings.send_timeout_s, seen)

    @asynccontextmanager
    async def _begin(self, asked: ClientRequest, id: str, owner: str) -> AsyncIterator[Opened]:
        with naming(asked.answer.fields):
            request, served = self._resolver.resolve(asked, id, owner)
            async with self._generations.begin(request, served) as run:
                yield run, self._format(run, asked.answer.model_dump())

    @asynccontextmanager
    async def _attach(self, id: str, seen: Sequence[int] = (), **changes: bool) -> AsyncIterator[Opened]:
        async with self._generations.attach(id, seen) as run:
            options = {**json.loads(run.request.answer), **changes}
            with naming(options["fields"]):
                yield run, self._format(run, options)

    def _format(self, run: Run, options: Mapping[str, Any]) -> Format:
        return self._formats[options["api"]](run.request, options, _fingerprint(run.served))


async def _whole(opened: AbstractAsyncContextManager[Opened]) -> bytes:
    async with opened as (run, format):
        while await run.next() is not None:
            pass
        return format.response(run.outputs).model_dump_json().encode()


class EventStream(Response):
    """A response of server-sent events.

    Nothing is sent before the first event, so that earlier errors get their own HTTP status. An event's id counts the
    segments of each choice sent so far; the text buffered until the end counts as one more. A client that attaches
    again sends the id back.
    """

    def __init__(
        self,
        id: str,
        opened: AbstractAsyncContextManager[Opened],
        send_timeout_s: float,
        seen: Sequence[int] = (),
    ) -> None:
        """`seen` is the number of segments of each choice that the client already has."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", GENERATION_ID: id}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._id = id
        self._opened = opened
        self._send_timeout_s = send_timeout_s
        self._seen = seen
        self._has_started = False
        self._chunks: _Chunks | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientGone:
            _log.info("the client disconnected; its generations can be resumed")
        except ShuttingDown:
            error = handed_over(self._id)
            if self._chunks is None or not self._has_started:
                raise error from None
            await self._sent(send, self._chunks.failed(error), more=False)

    async def _send_all(self, send: Send) -> None:
        try:
            async with self._opened as (run, format):
                self._chunks = _Chunks(run, format, self._seen)
                while (item := await run.next()) is not None:
                    if data := self._chunks.add(*item):
                        await self._sent(send, data)
                if data := self._chunks.ended():
                    await self._sent(send, data)
        except ClientGone:
            raise
        except Exception as error:
            if self._chunks is None or not self._has_started:
                raise
            await self._sent(send, self._chunks.failed(error))
        await self._sent(send, b"", more=False)

    async def _sent(self, send: Send, body: bytes, more: bool = True) -> None:
        """Send with a timeout: a client that stops reading must not block its generations.

        Raises: ClientGone.
        """
        if not self._has_started:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._has_started = True
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise ClientGone from None


class _Chunks:
    """Encodes the events of a run as server-sent events."""

    def __init__(self, run: Run, format: Format, seen: Sequence[int]) -> None:
        self._run = run
        self._format = format
        self._counts = [0] * run.request.num_choices
        self._seen = [*seen, *self._counts][: len(self._counts)]
        self._num_running = run.request.num_choices
        self._has_opened = False

    def add(self, index: int, event: ChoiceEvent) -> bytes:
        """The bytes to send for the next event; may be empty."""
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
        """The last event of a failed stream."""
        if isinstance(error, SemspecError):
            _log.warning("stream failed: %s", error.message)
        else:
            _log.error("stream failed", exc_info=error)
            error = internal_error()
        return _events([self._format.error(error)])

    def ended(self) -> bytes:
        return b"" if self._format.last_line is None else f"data: {self._format.last_line}\n\n".encode()

    def _opening(self) -> bytes:
        self._has_opened = True
        return _events(chunk for index in range(len(self._counts)) for chunk in self._format.opening(index))


def _events(chunks: Iterable[BaseModel], last_id: str = "") -> bytes:
    """Chunks as events; the last one has `last_id`, if given."""
    lines = [f"{_name(chunk)}data: {chunk.model_dump_json()}\n\n" for chunk in chunks]
    if lines and last_id:
        lines[-1] = f"id: {last_id}\n{lines[-1]}"
    return "".join(lines).encode()


def _name(chunk: BaseModel) -> str:
    """The line with the name of an event that has a type; chunks have none, which OpenAI's clients would not read."""
    type = getattr(chunk, "type", None)
    return "" if type is None else f"event: {type}\n"


def _fingerprint(served: Served) -> str:
    """A hash that changes whenever the same seed may give another output."""
    verifier = served.verifier
    parts = [served.draft.fingerprint, served.target.fingerprint, verifier.draft_probe, verifier.target_probe]
    if served.likelihood:
        parts.append(served.likelihood.digest)
    builds = (served.draft.build, served.target.build, verifier.build)
    return f"semspec-{hashlib.blake2b(' '.join((*parts, *builds)).encode(), digest_size=6).hexdigest()}"


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; when the client disconnects or the drain is over, cancel it and wait for its clean-up.

    The request's body must already be read. Raises: ClientGone, ShuttingDown, and what `work` raises.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        watcher.result()
        raise ClientGone
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
