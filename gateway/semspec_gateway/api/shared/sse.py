"""Answers generation requests, whole or as a stream of server-sent events."""

import asyncio
import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from semspec import records
from semspec.errors import SemspecError
from semspec.records import SegmentTrace
from semspec.types import Drafted
from semspec_gateway.api.shared.answers import AnswerMetrics, ChoiceStatistics, Statistics
from semspec_gateway.api.shared.errors import ClientGone, error_body, internal_error
from semspec_gateway.api.shared.idempotency import IdempotencyKey, IdempotencyKeys
from semspec_gateway.api.shared.middleware import (
    ShuttingDown,
    handed_over,
    owner_of,
    unless_disconnected,
)
from semspec_gateway.api.shared.resolver import (
    AnswerOptions,
    Api,
    ClientRequest,
    Resolver,
    naming,
    new_id,
)
from semspec_gateway.generation.choice import (
    Choice,
    ChoiceEvent,
    Ended,
    Kept,
    Place,
    Written,
    numbers,
)
from semspec_gateway.generation.generations import Generations, Run
from semspec_gateway.generation.preparation import ENCODE_DEADLINE_S
from semspec_gateway.generation.request import Request
from semspec_gateway.settings import GatewaySettings

GENERATION_ID = "x-generation-id"
"""Header with the generation's id, sent before the first chunk, to cancel the generation or attach to it."""

_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}
"""JSON escapes of the characters that some clients take for the end of a line, for example Python's `splitlines`. The
other characters of this kind are control characters, which JSON always escapes."""

_log = logging.getLogger(__name__)


class Format(ABC):
    """Formats a generation for one API: chunks of a stream, and the whole response."""

    last_line: str | None = None
    """The data of a stream's last event."""
    options: type[AnswerOptions] = AnswerOptions

    def __init__(
        self, request: Request, options: Mapping[str, Any], system_fingerprint: str
    ) -> None:
        self._request = request
        self._options: Any = self.options.model_validate(options)

    def opening(self, index: int) -> Sequence[BaseModel]:
        """Chunks before a choice's first text."""
        return ()

    def drafted(self, event: Drafted) -> Sequence[BaseModel]:
        """Chunks with drafted segments that wait for their verdict, if the client requested them."""
        return ()

    @abstractmethod
    def text(self, index: int, event: Written | Kept | Ended) -> Sequence[BaseModel]:
        """Chunks of text that is written, of a segment, or of the text buffered until the end.

        Called for each event, even if the client has its text already.
        """

    @abstractmethod
    def closing(self, index: int, ended: Ended, choices: Sequence[Choice]) -> Sequence[BaseModel]:
        """A choice's last chunks, after all text; with all `choices`, if it is the last one to end."""

    @abstractmethod
    def response(self, choices: Sequence[Choice]) -> BaseModel:
        """The whole response."""

    def error(self, error: SemspecError) -> BaseModel:
        """The last event of a failed stream."""
        return error_body(error)

    def statistics(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The fields beyond OpenAI's: `semspec`, of all choices and each; `metrics`, null for several, as in vLLM."""
        request, trace, is_one = self._request, self._options.trace, len(choices) == 1
        traces = [
            [SegmentTrace.of(record) for record in choice.records] if trace else None
            for choice in choices
        ]
        of_choices = [
            ChoiceStatistics(**numbers([choice]), seed=choice.generation.sampling.seed, trace=own)
            for choice, own in zip(choices, traces, strict=True)
            if not is_one
        ]
        total = Statistics(
            **numbers(choices),
            parameters=choices[0].parameters,
            expected=request.expected,
            seed=request.seed,
            choices=of_choices or None,
            trace=traces[0] if is_one else None,
        )
        decisions = records.statistics(choices[0].records).steps if is_one else []
        return {
            "semspec": total,
            "metrics": AnswerMetrics(speculative_decoding=records.speculative_decoding(decisions)),
        }


Opened = tuple[Run, Format]


@dataclass(frozen=True, slots=True)
class Responder:
    """Answers generation requests in the format of their API."""

    resolver: Resolver
    generations: Generations
    keys: IdempotencyKeys
    settings: GatewaySettings
    formats: Mapping[Api, type[Format]]

    async def respond(
        self, http: HttpRequest, asked: ClientRequest, body: BaseModel, key: str | None
    ) -> Response:
        """The response to a new request, or to one repeated under its idempotency `key` with the same `body`."""
        api, owner = asked.answer.api, owner_of(http)
        id = new_id(api)
        if key is None:
            opened: AbstractAsyncContextManager[Opened] = self._begin(asked, id, owner)
        else:
            content = (api, json.dumps(body.model_dump(exclude_unset=True)))
            idempotency = IdempotencyKey(key, owner, content, self.keys)
            timeout_s = self.settings.queue_timeout_s + ENCODE_DEADLINE_S
            id, has_begun = await unless_disconnected(
                http.receive, idempotency.recall(id, timeout_s)
            )
            if has_begun:
                opened = self._attach(id, bool(asked.body.stream))
            else:
                opened = idempotency.unless_refused(self._begin(asked, id, owner))
        if asked.body.stream:
            return EventStream(id, opened, self.settings.send_timeout_s)
        try:
            answer = await unless_disconnected(http.receive, _whole(opened))
        except ShuttingDown:
            raise handed_over(id) from None
        return Response(answer, media_type="application/json", headers={GENERATION_ID: id})

    def attach(self, id: str, seen: Sequence[Place], trace: bool) -> Response:
        """The stream of an existing generation, after what the client has `seen` of each choice; with the usage, and
        with segment records if `trace`."""
        opened = self._attach(id, True, seen, trace=trace, include_usage=True)
        return EventStream(id, opened, self.settings.send_timeout_s, seen)

    @asynccontextmanager
    async def _begin(self, asked: ClientRequest, id: str, owner: str) -> AsyncIterator[Opened]:
        with naming(asked.answer.fields):
            request, served = self.resolver.resolve(asked, id, owner)
            async with self.generations.begin(request, served, bool(asked.body.stream)) as run:
                yield run, self._format(run, asked.answer.model_dump())

    @asynccontextmanager
    async def _attach(
        self, id: str, shows_text: bool, seen: Sequence[Place] = (), **changes: bool
    ) -> AsyncIterator[Opened]:
        async with self.generations.attach(id, seen, shows_text) as run:
            options = {**json.loads(run.request.answer), **changes}
            with naming(options["fields"]):
                yield run, self._format(run, options)

    def _format(self, run: Run, options: Mapping[str, Any]) -> Format:
        served = run.served
        rule = served.route.digest if served.route else ""
        parts = (
            *served.identity.values(),
            rule,
            served.draft.build,
            served.target.build,
            served.verifier.build,
        )
        fingerprint = hashlib.blake2b(" ".join(parts).encode(), digest_size=6).hexdigest()
        return self.formats[options["api"]](run.request, options, f"semspec-{fingerprint}")


async def _whole(opened: AbstractAsyncContextManager[Opened]) -> bytes:
    async with opened as (run, format):
        while await run.next() is not None:
            pass
        return format.response(run.choices).model_dump_json().encode()


class EventStream(Response):
    """A response of server-sent events.

    Nothing is sent before the first event, so that earlier errors get their own HTTP status. An event's id is the place
    of each choice up to which its text was sent. A client that attaches again sends the id back.
    """

    def __init__(
        self,
        id: str,
        opened: AbstractAsyncContextManager[Opened],
        send_timeout_s: float,
        seen: Sequence[Place] = (),
    ) -> None:
        """`seen` is what the client already has of each choice."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", GENERATION_ID: id}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._id = id
        self._opened = opened
        self._send_timeout_s = send_timeout_s
        self._seen = seen
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientGone:
            _log.info("the client disconnected; its generations can be resumed")
        except ShuttingDown:
            error = handed_over(self._id)
            if not self._has_started:
                raise error from None
            await self._sent(send, self._failed(error), more=False)

    async def _send_all(self, send: Send) -> None:
        try:
            async with self._opened as (run, self._format):
                self._places = [Place(0)] * len(run.choices)
                self._num_running = len(run.choices)
                while (item := await run.next()) is not None:
                    if data := self._encoded(run, *item):
                        await self._sent(send, data)
                if self._format.last_line is not None:
                    await self._sent(send, f"data: {self._format.last_line}\n\n".encode())
        except ClientGone:
            raise
        except Exception as error:
            if not self._has_started:
                raise
            await self._sent(send, self._failed(error))
        await self._sent(send, b"", more=False)

    def _encoded(self, run: Run, index: int, event: ChoiceEvent) -> bytes:
        """The bytes to send for the next event; may be empty."""
        opening = () if self._has_started else range(len(run.choices))
        data = _events(chunk for choice in opening for chunk in self._format.opening(choice))
        if isinstance(event, Drafted):
            return data + _events(self._format.drafted(event))
        self._places[index] = event.place
        new = self._format.text(index, event)
        if event.place > (self._seen[index] if index < len(self._seen) else Place(0)):
            data += _events(new, "-".join(map(str, self._places)))
        if isinstance(event, Ended):
            self._num_running -= 1
            data += _events(
                self._format.closing(index, event, [] if self._num_running else run.choices)
            )
        return data

    def _failed(self, error: Exception) -> bytes:
        """The last event of a failed stream."""
        if isinstance(error, SemspecError):
            _log.warning("stream failed: %s", error)
        else:
            _log.error("stream failed", exc_info=error)
            error = internal_error()
        return _events([self._format.error(error)])

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


def _events(chunks: Iterable[BaseModel], last_id: str = "") -> bytes:
    """Chunks as events; the last one has `last_id`, if given."""
    lines = [
        f"{_name(chunk)}data: {chunk.model_dump_json().translate(_LINE_ENDS)}\n\n"
        for chunk in chunks
    ]
    if lines and last_id:
        lines[-1] = f"id: {last_id}\n{lines[-1]}"
    return "".join(lines).encode()


def _name(chunk: BaseModel) -> str:
    """The line with the name of an event that has a type; chunks have none, which OpenAI's clients would not read."""
    type = getattr(chunk, "type", None)
    return "" if type is None else f"event: {type}\n"
