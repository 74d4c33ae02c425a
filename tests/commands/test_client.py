"""The client over scripted responses: streams that break and are taken up again, errors as they are meant."""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable

import httpx
import pytest

from semspec.client import NUM_REATTACHMENTS, Gateway, gateway_url
from semspec.errors import (
    ContextTooLong,
    InternalError,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    Unavailable,
)

Respond = Callable[[httpx.Request], httpx.Response]


class Broken(httpx.AsyncByteStream):
    """A body whose connection is cut."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._text.encode()
        raise httpx.ReadError("cut")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semspec.client.FIRST_PAUSE_S", 0.0)


def gateway(respond: Respond) -> Gateway:
    return Gateway(
        httpx.AsyncClient(transport=httpx.MockTransport(respond), base_url="http://gateway")
    )


def streamed(content: str | AsyncIterable[bytes]) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)


def events(first: int, last: int, is_numbered: bool = True) -> str:
    data = {
        number: json.dumps({"id": "chatcmpl-1", "number": number})
        for number in range(first, last + 1)
    }
    return "".join(
        f"{f'id: {number}' if is_numbered else ': x'}\ndata: {text}\n\n"
        for number, text in data.items()
    )


async def chunks(respond: Respond, breaks: list[str]) -> list[int]:
    return [
        chunk["number"]
        async for chunk in gateway(respond).chat(
            {"model": "m", "semspec": {"trace": True}}, breaks.append
        )
    ]


def refusal(status: int, code: str) -> httpx.Response:
    return httpx.Response(
        status, json={"error": {"message": "said so", "param": "model", "code": code}}
    )


async def test_broken_stream_goes_on_behind_the_last_event() -> None:
    asked: list[tuple[str, str, str | None]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(
            (request.method, request.url.raw_path.decode(), request.headers.get("last-event-id"))
        )
        match len(asked):
            case 1:
                return streamed(Broken(events(1, 2)))
            case 2:
                return refusal(503, "service_unavailable")  # the gateway is just starting
            case 3:
                return streamed(events(3, 3))  # ends without [DONE]
        return streamed(events(4, 4) + "data: [DONE]\n\n")

    breaks: list[str] = []
    assert await chunks(respond, breaks) == [1, 2, 3, 4]
    path = "/v1/generations/chatcmpl-1/events?trace=true"
    assert asked == [
        ("POST", "/v1/chat/completions", None),
        ("GET", path, "2"),
        ("GET", path, "2"),
        ("GET", path, "3"),
    ]
    assert [line.rpartition("; ")[2] for line in breaks] == [
        f"try {n} of 4 to resume" for n in (1, 2, 1)
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
@pytest.mark.parametrize("num_bytes", [1, 7, 10_000])
async def test_lines_end_only_at_feeds_and_returns(end: str, num_bytes: int) -> None:
    text = "a\x85b\u2028c\u2029d"
    body = f"id: 1{end}data: {json.dumps({'id': 'chatcmpl-1', 'text': text}, ensure_ascii=False)}{end}{end}"
    sent = f"{body}: still there{end}{end}data: [DONE]{end}{end}x".encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(sent), num_bytes):
            yield sent[start : start + num_bytes]

    stream = gateway(lambda _: streamed(pieces())).chat({"model": "m"}, lambda _: None)
    assert [chunk["text"] async for chunk in stream] == [text]


@pytest.mark.parametrize("is_away", [True, False], ids=["gateway-gone", "no-progress"])
async def test_stream_that_stays_broken_is_given_up_with_what_to_do(is_away: bool) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if is_away and request.method == "GET":
            raise httpx.ConnectError("refused", request=request)
        return streamed(Broken(events(1, 1)))

    breaks: list[str] = []
    with pytest.raises(Unavailable, match="GET /v1/generations/chatcmpl-1"):
        await chunks(respond, breaks)
    assert len(breaks) == NUM_REATTACHMENTS


async def test_broken_stream_without_numbers_is_not_told_twice() -> None:
    breaks: list[str] = []
    with pytest.raises(Unavailable, match="broke"):
        await chunks(lambda request: streamed(Broken(events(1, 1, is_numbered=False))), breaks)
    assert breaks == []


def let_go(
    first: int, last: int, message: str, code: str = "service_unavailable"
) -> httpx.Response:
    """A stream that ends with an error."""
    error = {"message": message, "type": "server_error", "param": None, "code": code}
    return streamed(
        events(first, last) + f"id: {last + 1}\ndata: {json.dumps({'error': error})}\n\n"
    )


@pytest.mark.parametrize("code", ["overloaded", "service_unavailable"])
async def test_stream_that_a_gateway_ends_goes_on(code: str) -> None:
    """No slot is free to continue it, or the gateway shuts down."""
    num_asked = 0

    def respond(request: httpx.Request) -> httpx.Response:
        nonlocal num_asked
        num_asked += 1
        if request.url.path == "/v1/generations/chatcmpl-1":
            return httpx.Response(200, json={"status": "interrupted"})
        if request.method == "POST":
            return streamed(Broken(events(1, 2)))
        if num_asked == 2:
            return let_go(3, 2, "not here", code)
        return streamed(events(3, 4) + "data: [DONE]\n\n")

    breaks: list[str] = []
    assert await chunks(respond, breaks) == [1, 2, 3, 4]
    assert breaks[1] == "the gateway ended the stream (not here); try 2 of 4 to resume"


async def test_error_of_a_failed_generation_is_raised_at_once() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return let_go(1, 1, "the target is gone")
        assert request.url.path == "/v1/generations/chatcmpl-1"
        return httpx.Response(200, json={"status": "failed"})

    breaks: list[str] = []
    with pytest.raises(Unavailable, match="the target is gone"):
        await chunks(respond, breaks)
    assert breaks == []


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (refusal(404, "model_not_found"), NotFound),
        (refusal(400, "context_length_exceeded"), ContextTooLong),
        (refusal(418, "teapot"), InternalError),
        (httpx.Response(502, text="<html>said so</html>"), InternalError),
        (httpx.Response(200, text="<html>said so</html>"), InternalError),
        (httpx.Response(400, json={"error": "said so", "error_type": "validation"}), InternalError),
    ],
)
async def test_refusal_becomes_its_error(response: httpx.Response, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="said so") as caught:
        await gateway(lambda request: response).models()
    assert type(caught.value) is kind


async def test_key_is_sent() -> None:
    heard: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        body = json.dumps(
            {"error": {"message": "wrong key", "param": None, "code": "invalid_api_key"}}
        )
        writer.write(f"HTTP/1.1 401 No\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        one = Gateway.at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "hush")
        with pytest.raises(Unauthenticated, match="wrong key; give it with --api-key"):
            await one.models()
        await one.aclose()
    assert b"authorization: bearer hush" in heard[0].lower()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "127.0.0.1:1", "localhost:1", "[::1]:1", "localhost:1/"]
)
async def test_nobody_there_is_told_with_the_remedy(url: str) -> None:
    one = Gateway.at(url)
    with pytest.raises(Unavailable, match="start one with `semspec serve`"):
        await one.models()
    await one.aclose()


@pytest.mark.parametrize(
    "url", ["ftp://localhost", "http://", "://localhost", "http://[::1", "localhost:port", ""]
)
def test_bad_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is not the address of a gateway"):
        Gateway.at(url)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("localhost:8290", "http://localhost:8290"),
        ("127.0.0.1:8290/prefix", "http://127.0.0.1:8290/prefix"),
        ("[::1]:8290", "http://[::1]:8290"),
        ("gateway", "http://gateway"),
        ("https://gateway", "https://gateway"),
        ("HTTPS://gateway:8443/", "https://gateway:8443/"),
    ],
)
def test_address_without_a_scheme_is_one_of_http(url: str, base: str) -> None:
    assert gateway_url(url) == httpx.URL(base)
