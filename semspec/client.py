"""A small client of the gateway: what the command line, the demo and the bench know of its REST interface."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote

import httpx

from semspec.errors import (
    TABLE,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    SemspecError,
    Unauthenticated,
    Unavailable,
)

Json = dict[str, Any]

NUM_REATTACHMENTS = 4
"""How often a broken stream is taken up again before giving up; progress starts the count anew."""
FIRST_PAUSE_S = 0.5
"""Before the first of them; each further one waits twice as long."""
TIMEOUT = httpx.Timeout(600, connect=5)

GENERATION_ID = "x-generation-id"
"""Header of a server that keeps what it generates, and may be asked for it again."""
NOTHING = "0"
"""The Last-Event-ID of a client that has no text yet."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    id: str
    """What to send as Last-Event-ID; empty if the server keeps nothing to attach to."""
    data: Json


async def read_events(response: httpx.Response, last: str = "") -> AsyncGenerator[Event, None]:
    """The events of a stream up to `[DONE]`, behind the event `last` if the stream was taken up again.

    Raises: httpx.TransportError when it ends before.
    """
    identity = last or (NOTHING if GENERATION_ID in response.headers else "")
    async for line in response.aiter_lines():
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            identity = value
        elif name == "data":
            if value == "[DONE]":
                return
            yield Event(identity, json.loads(value))
    raise httpx.RemoteProtocolError("the stream ended before it was done")


class Gateway:
    """One gateway. All calls raise SemspecError: `Unavailable` without an answer, else the gateway's error."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    @classmethod
    def at(cls, url: str, api_key: str | None = None) -> "Gateway":
        """Raises: InvalidRequest when `url` is none."""
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            return cls(httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False))
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"{url} is no address ({error}); give --url such as http://127.0.0.1:8080") from error

    async def aclose(self) -> None:
        await self._http.aclose()

    async def models(self) -> list[str]:
        """The names a request may put in `model`, the pair's own first."""
        return [model["id"] for model in (await self._call("GET", "/v1/models"))["data"]]

    async def generation(self, id: str) -> Json:
        """Parameters, models, prompt and outcome of a generation."""
        return await self._call("GET", _path(id))

    async def trace(self, id: str) -> Json:
        """The records of a generation's segments."""
        return await self._call("GET", _path(id, "/trace"))

    async def cancel(self, id: str) -> Json:
        """End a generation that runs."""
        return await self._call("POST", _path(id, "/cancel"))

    async def chat(self, body: Json, on_break: Callable[[str], None]) -> AsyncGenerator[Json, None]:
        """The chunks of a streamed chat completion.

        A stream that breaks is taken up again behind the last event that came, where the server keeps what it
        generates; `on_break` is told so each time.
        """
        last, num_breaks = Event("", {}), 0
        request = self._http.build_request("POST", "/v1/chat/completions", json={**body, "stream": True})
        while True:
            try:
                async with aclosing(self._events(request, last.id)) as events:
                    async for event in events:
                        num_breaks = num_breaks if event.id == last.id else 0
                        last = event
                        yield event.data
                return
            except httpx.TransportError as error:
                num_breaks += 1
                if not last.id or num_breaks > NUM_REATTACHMENTS:
                    self._give_up(last, error)
                on_break(f"the connection broke ({_reason(error)}); try {num_breaks} of {NUM_REATTACHMENTS} to go on")
            await asyncio.sleep(FIRST_PAUSE_S * 2 ** (num_breaks - 1))
            request = self._reattachment(last, bool(body.get("semspec", {}).get("trace")))

    def _reattachment(self, last: Event, trace: bool) -> httpx.Request:
        """Asks for what came after `last`, with records if there were any before."""
        path = _path(last.data["id"], "/events")
        parameters = {"trace": "true"} if trace else {}
        return self._http.build_request("GET", path, params=parameters, headers={"last-event-id": last.id})

    async def _events(self, request: httpx.Request, last: str) -> AsyncGenerator[Event, None]:
        response = await self._http.send(request, stream=True)
        try:
            if response.is_error:
                await response.aread()
                error = refusal(response)
                if request.method == "GET" and isinstance(error, Unavailable | Overloaded):  # just starting, or full
                    raise httpx.RemoteProtocolError(error.message)
                raise error
            async with aclosing(read_events(response, last)) as events:
                async for event in events:
                    if "error" in event.data:
                        raise _known(event.data["error"])
                    yield event
        finally:
            await response.aclose()

    async def _call(self, method: str, path: str) -> Json:
        try:
            response = await self._http.request(method, path)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise refusal(response)
        body: Json = response.json()
        return body

    def _give_up(self, last: Event, error: httpx.TransportError) -> NoReturn:
        if not last.data:
            raise self._unreachable(error) from error
        id = last.data.get("id")
        raise Unavailable(
            f"the connection to {self._http.base_url} broke ({_reason(error)}); what was kept of the answer: "
            f"semspec trace {id}"
        ) from error

    def _unreachable(self, error: httpx.TransportError) -> Unavailable:
        return Unavailable(
            f"no gateway answers at {self._http.base_url} ({_reason(error)}); start one with `semspec serve`, or give "
            "the address of another with --url"
        )


def refusal(response: httpx.Response) -> SemspecError:
    """The error in the body of a response that is one; the response must have been read."""
    try:
        return _known(response.json()["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return InternalError(f"the server answers {response.status_code}: {response.text.strip()[:300]}")


def _path(id: str, part: str = "") -> str:
    return f"/v1/generations/{quote(id, safe='')}{part}"


def _known(detail: Json) -> SemspecError:
    """OpenAI's error object as an error of the tree."""
    code, message, parameter = detail["code"], str(detail["message"]), detail.get("param")
    if code == "model_not_found":
        return NotFound(message, parameter)
    kind = next((kind for kind, row in TABLE.items() if row.code == code), InternalError)
    if kind is Unauthenticated:
        message += "; give it with --api-key or in SEMSPEC_API_KEY"
    return kind(message, parameter)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
