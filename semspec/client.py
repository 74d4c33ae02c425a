"""A small client of the gateway's REST API for notebooks, the command line, the demo and the benchmarks."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote

import httpx
from httpx_sse import EventSource

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
from semspec.records import SegmentTrace

Json = dict[str, Any]

NUM_REATTACHMENTS = 4
"""Maximum consecutive attempts to resume a broken stream; progress resets the count."""
FIRST_PAUSE_S = 0.5
"""Pause before the first attempt; it doubles with each further one."""
TIMEOUT = httpx.Timeout(600, connect=5)

GENERATION_ID = "x-generation-id"
"""Response header of a server that stores generations, so that streams can be resumed."""
BEFORE_FIRST_EVENT = "0"
"""Last-Event-ID of a client that has received no text."""


def gateway_url(text: str) -> httpx.URL:
    """Return the base URL of a gateway; `text` without a scheme is an address of plain HTTP. Raises: InvalidRequest."""
    remedy = "give one such as http://127.0.0.1:8080"
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL as error:
        raise InvalidRequest(
            f"{text} is not the address of a gateway ({error})", "url", remedy=remedy
        ) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidRequest(f"{text} is not the address of a gateway", "url", remedy=remedy)
    return url


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    id: str
    """Value for Last-Event-ID; empty if the server does not store generations."""
    data: Json


async def read_events(response: httpx.Response, last: str = "") -> AsyncGenerator[Event, None]:
    """Yield the events of a stream up to `[DONE]`; `last`: id of the last event before a resumption.

    Raises: httpx.TransportError when the stream ends before `[DONE]`.
    """
    first = last or (BEFORE_FIRST_EVENT if GENERATION_ID in response.headers else "")
    async with aclosing(EventSource(response).aiter_sse()) as events:
        async for event in events:
            if event.data == "[DONE]":
                return
            if event.data:  # EventSource also yields comments, with the id of the event before them
                yield Event(event.id or first, event.json())
    raise httpx.RemoteProtocolError("the stream ended before it was done")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole chat completion."""

    id: str
    content: str
    """The text after `</think>`."""
    reasoning: str
    finish_reason: str
    usage: Json
    """OpenAI's token counts."""
    statistics: Json
    """The response's `semspec`: strategy, acceptance rate, share of the target, tokens/s, ..."""
    trace: tuple[SegmentTrace, ...]
    """Each kept segment with its verdict and probabilities."""


class Gateway:
    """A gateway. All calls raise SemspecError: `Unavailable` without a response, else the gateway's error."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    @classmethod
    def at(cls, url: str, api_key: str | None = None) -> "Gateway":
        """Return a client of the gateway at `url`, see `gateway_url`. Raises: InvalidRequest when `url` is invalid."""
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        return cls(
            httpx.AsyncClient(
                base_url=gateway_url(url), headers=headers, timeout=TIMEOUT, trust_env=False
            )
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def readiness(self) -> str:
        """Return `ready`, and the parts that the gateway lacks, in one line."""
        return str((await self._call("GET", "/ready"))["detail"])

    async def models(self) -> list[Json]:
        """Return the valid values of a request's `model`, each as `id` with its properties, the default first."""
        models: list[Json] = (await self.model_list())["data"]
        return models

    async def model_list(self) -> Json:
        """Return the models as `data`, and the reason why each other strategy is unsupported as `unsupported`."""
        return await self._call("GET", "/v1/models")

    async def generation(self, id: str) -> Json:
        """Return parameters, models, prompt and outcome of a generation."""
        return await self._call("GET", _path(id))

    async def session(self, id: str) -> list[Json]:
        """Return the messages of a conversation that the gateway keeps, each with its `role` and `content`."""
        turns: list[Json] = (await self._call("GET", f"/v1/sessions/{quote(id, safe='')}"))["turns"]
        return [{name: turn[name] for name in ("role", "content")} for turn in turns]

    async def cancel(self, id: str) -> Json:
        """Cancel a running generation."""
        return await self._call("POST", _path(id, "/cancel"))

    async def ask(self, question: str | Sequence[Json], **fields: Any) -> Answer:
        """Return the answer to a question, or to the messages of a conversation. `fields`: other fields of the request,
        such as `temperature`, `seed` or `semspec={"strategy": "target"}`."""
        messages = (
            [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
        )
        body = {
            "messages": messages,
            **fields,
            "semspec": {**fields.get("semspec", {}), "trace": True},
        }
        answer = await self._call("POST", "/v1/chat/completions", body)
        [choice], statistics = answer["choices"], answer["semspec"]
        trace = tuple(SegmentTrace.model_validate(segment) for segment in statistics.pop("trace"))
        message = choice["message"]
        texts = message["content"] or "", message["reasoning_content"] or ""
        return Answer(
            answer["id"], *texts, choice["finish_reason"], answer["usage"], statistics, trace
        )

    async def chat(self, body: Json, on_break: Callable[[str], None]) -> AsyncGenerator[Json, None]:
        """Yield the chunks of a streamed chat completion.

        A stream that is broken, or ended by a gateway that shuts down, is resumed after the last received event if the
        server stores generations. `on_break` is called with a message before each attempt.
        """
        last, num_breaks = Event("", {}), 0
        request = self._http.build_request(
            "POST", "/v1/chat/completions", json={**body, "stream": True}
        )
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
                on_break(
                    f"the connection broke ({_reason(error)}); try {num_breaks} of {NUM_REATTACHMENTS} to resume"
                )
            except (
                Unavailable,
                Overloaded,
            ) as error:  # a gateway that shuts down, or has no slot to continue
                num_breaks += 1
                if (
                    not last.id
                    or num_breaks > NUM_REATTACHMENTS
                    or await self._has_failed(last.data["id"])
                ):
                    raise
                on_break(
                    f"the gateway ended the stream ({error.text}); try {num_breaks} of {NUM_REATTACHMENTS} to resume"
                )
            await asyncio.sleep(FIRST_PAUSE_S * 2 ** (num_breaks - 1))
            parameters = {"trace": "true"} if body.get("semspec", {}).get("trace") else {}
            path, position = _path(last.data["id"], "/events"), {"last-event-id": last.id}
            request = self._http.build_request("GET", path, params=parameters, headers=position)

    async def _has_failed(self, id: str) -> bool:
        """Return whether a generation is known to have failed, so that no gateway continues it."""
        try:
            return bool((await self.generation(id))["status"] == "failed")
        except SemspecError:
            return False

    async def _events(self, request: httpx.Request, last: str) -> AsyncGenerator[Event, None]:
        response = await self._http.send(request, stream=True)
        try:
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            if response.is_error or not is_stream:
                await response.aread()
                error = error_from_response(response)
                if request.method == "GET" and isinstance(
                    error, Unavailable | Overloaded
                ):  # starting or overloaded
                    raise httpx.RemoteProtocolError(error.text)
                raise error
            async with aclosing(read_events(response, last)) as events:
                async for event in events:
                    if "error" in event.data:
                        raise _error_from_detail(event.data["error"])
                    yield event
        finally:
            await response.aclose()

    async def _call(self, method: str, path: str, body: Json | None = None) -> Json:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.is_success:
            with suppress(ValueError):
                found: Json = response.json()
                return found
        raise error_from_response(response)

    def _give_up(self, last: Event, error: httpx.TransportError) -> NoReturn:
        if not last.data:
            raise self._unreachable(error) from error
        raise Unavailable(
            f"the connection to {self._http.base_url} broke ({_reason(error)})",
            remedy=f"GET {_path(str(last.data.get('id')))} returns the stored part of the answer",
        ) from error

    def _unreachable(self, error: httpx.TransportError) -> Unavailable:
        return Unavailable(
            f"no gateway answers at {self._http.base_url} ({_reason(error)})",
            remedy="start one with `semspec serve`, or give the address of another with --url",
        )


def error_from_response(response: httpx.Response) -> SemspecError:
    """Return the error of an error response, whose body must have been read."""
    try:
        return _error_from_detail(response.json()["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        answer = f"{response.status_code}, not as a gateway would: {' '.join(response.text.split())[:120]}"
        return InternalError(f"{response.url} answers {answer}", remedy="give the URL of a gateway")


def _path(id: str, part: str = "") -> str:
    return f"/v1/generations/{quote(id, safe='')}{part}"


def _error_from_detail(detail: Json) -> SemspecError:
    """Return the `SemspecError` of an OpenAI error object."""
    code, message, parameter = detail["code"], str(detail["message"]), detail.get("param")
    if code == "model_not_found":
        return NotFound(message, parameter)
    kind = next((kind for kind, row in TABLE.items() if row.code == code), InternalError)
    remedy = "give it with --api-key or in SEMSPEC_API_KEY" if kind is Unauthenticated else ""
    return kind(message, parameter, remedy=remedy)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
