"""Answers requests: begins a generation or attaches to one, and gives it the format of its API."""

import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

from fastapi import Request as HttpRequest
from fastapi.responses import Response

from semspec_gateway.api.shared.event_stream import GENERATION_ID, EventStream, Opened
from semspec_gateway.api.shared.formats import Format
from semspec_gateway.api.shared.idempotency import IdempotencyKey
from semspec_gateway.api.shared.middleware import (
    ShuttingDown,
    handed_over,
    owner_of,
    unless_disconnected,
)
from semspec_gateway.api.shared.requests import GenerationBody
from semspec_gateway.api.shared.resolver import Resolver, naming, new_id
from semspec_gateway.generation.choice import Place
from semspec_gateway.generation.generations import Generations
from semspec_gateway.generation.preparation import ENCODE_DEADLINE_S
from semspec_gateway.generation.request import ClientRequest, GenerationRequest
from semspec_gateway.served import Served
from semspec_gateway.settings import GatewaySettings
from semspec_gateway.store.sharing import Shared
from semspec_gateway.store.store import Store


@dataclass(frozen=True, slots=True)
class Responder:
    """Answers generation requests in the format of their API."""

    resolver: Resolver
    generations: Generations
    store: Store
    calls: Shared
    """Calls that wait under idempotency keys."""
    settings: GatewaySettings
    formats: Mapping[str, type[Format]]

    async def respond(
        self,
        http: HttpRequest,
        body: GenerationBody,
        client_request: ClientRequest,
        key: str | None,
    ) -> Response:
        """The response to a new request, or to one repeated under its idempotency `key` with the same body."""
        api, owner = client_request.answer.api, owner_of(http)
        id = new_id(api)
        if key is None:
            opened: AbstractAsyncContextManager[Opened] = self._begin(
                body, client_request, id, owner
            )
        else:
            content = (api, json.dumps(body.model_dump(exclude_unset=True)))
            idempotency = IdempotencyKey(key, owner, content, self.store, self.calls)
            timeout_s = self.settings.queue_timeout_s + ENCODE_DEADLINE_S
            id, has_begun = await unless_disconnected(
                http.receive, idempotency.recall(id, timeout_s)
            )
            if has_begun:
                opened = self._attach(id, bool(body.stream))
            else:
                opened = idempotency.unless_refused(self._begin(body, client_request, id, owner))
        if body.stream:
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
    async def _begin(
        self, body: GenerationBody, client_request: ClientRequest, id: str, owner: str
    ) -> AsyncIterator[Opened]:
        with naming(client_request.answer.fields):
            request, served = self.resolver.resolve(body, client_request, id, owner)
            async with self.generations.begin(request, served, bool(body.stream)) as run:
                yield run, self._format(request, served)

    @asynccontextmanager
    async def _attach(
        self, id: str, shows_text: bool, seen: Sequence[Place] = (), **changes: bool
    ) -> AsyncIterator[Opened]:
        async with self.generations.attach(id, seen, shows_text) as run:
            answer = run.request.answer.model_copy(update=changes)
            with naming(answer.fields):
                yield run, self._format(replace(run.request, answer=answer), run.served)

    def _format(self, request: GenerationRequest, served: Served) -> Format:
        rule = served.release.digest if served.release else ""
        parts = (
            *served.identity.values(),
            rule,
            served.draft.build,
            served.target.build,
            served.verifier.build,
        )
        fingerprint = hashlib.blake2b(" ".join(parts).encode(), digest_size=6).hexdigest()
        return self.formats[request.answer.api](request, f"semspec-{fingerprint}")


async def _whole(opened: AbstractAsyncContextManager[Opened]) -> bytes:
    async with opened as (run, format):
        while await run.next() is not None:
            pass
        return format.response(run.choices).model_dump_json().encode()
