"""Requests that no client library sends: each is answered in the API's own shape, never by a server error."""

import json
from dataclasses import dataclass

import pytest

from tests.gateway.support import API_KEY, MESSAGES, Gateway, exchange

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

BODY = {"model": "semspec-demo", "messages": MESSAGES}
DEEP = "[" * 900 + "]" * 900
NESTED = '{"type": ' * 900 + "1" + "}" * 900
JSON = b"content-type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """As it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes


async def sent(gateway: Gateway, line: str, headers: bytes = b"", body: bytes = b"") -> Answer:
    """The answer to exactly these bytes."""
    framing = f"{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    framing += f"authorization: Bearer {API_KEY}\r\n"
    answer = await exchange(gateway.base_url, framing.encode() + headers + b"\r\n" + body)
    head, _, received = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    named = dict(line.lower().split(": ", 1) for line in rest)
    return Answer(int(first.split()[1]), named, received)


def assert_error(answer: Answer, status: int) -> None:
    assert answer.status == status, answer
    assert answer.headers["x-request-id"] and answer.headers["content-type"] == "application/json"
    assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}


def chat(more: str = "") -> bytes:
    return (json.dumps(BODY)[:-1] + (f", {more}" if more else "") + "}").encode()


@pytest.mark.parametrize(
    "more",
    [
        '"user": "\\ud800", "metadata": {"\\udfff": "\\ud800"}',
        '"prompt_cache_key": "\\u0000"',
        f'"metadata": {DEEP}',
        f'"metadata": {"9" * 4000}',
        '"model": "none", "model": "semspec-demo"',
        '"frequency_penalty": 0.0, "tools": [], "response_format": {"type": "text"}',
        '"semspec": {"acceptance": {"threshold": 1e308}}',
    ],
    ids=lambda more: more[:40],
)
async def test_odd_value_that_changes_nothing_is_taken(gateway: Gateway, more: str) -> None:
    key = f"idempotency-key: \xff{hash(more)}\r\n".encode("latin-1")
    answer = await sent(gateway, "POST /v1/chat/completions", JSON + key, chat(more))
    assert answer.status == 200, answer


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ('"\\ud800": 1', 400),
        ('"semspec": {"\\udfff": 1}', 400),
        ('"semspec": {"session": "\\u0000"}', 400),
        ('"stop": "\\ud800"', 400),
        ('"model": "\\ud800"', 404),
        (f'"seed": {"9" * 4000}', 400),
        (f'"seed": {"9" * 5000}', 400),
        (f'"temperature": {"9" * 400}', 400),
        ('"frequency_penalty": NaN', 400),
        (f'"tools": {DEEP}', 400),
        (f'"response_format": {NESTED}', 400),
        (f'"unknown": {"[" * 50_000}', 400),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_odd_value_is_refused(gateway: Gateway, more: str, status: int) -> None:
    assert_error(await sent(gateway, "POST /v1/chat/completions", JSON, chat(more)), status)


@pytest.mark.parametrize(
    "headers",
    [
        b"",
        b"content-type: ;;;\xff\r\n",
        b"content-type: multipart/form-data; boundary=x\r\n",
        JSON + b"idempotency-key: ",
    ],
    ids=["no type", "no type at all", "a form", "a long key"],
)
async def test_odd_header_is_refused(gateway: Gateway, headers: bytes) -> None:
    tail = b"x" * 300 + b"\r\n" if headers.endswith(b": ") else b""
    assert_error(await sent(gateway, "POST /v1/chat/completions", headers + tail, chat()), 400)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /v1/generations/", 404),
        ("GET /v1/generations//trace", 404),
        ("GET /v1/generations/abc/", 404),
        ("GET /v1/generations/abc%2F", 404),
        ("GET /v1/generations/abc%0A", 400),
        ("GET /v1/generations/abc/events?trace=maybe", 400),
        ("GET /v1/generations/abc/events?trace=1&trace=0&other=%ff", 404),
        ("GET /v1/models/%ff%00%ed%a0%80", 404),
        ("GET /v1/models/%", 404),
        ("POST /v1/chat/completions/", 404),
        ("OPTIONS *", 404),
        ("CONNECT example.org:1", 404),
        ("OPTIONS /v1/models", 405),
        ("TRACE /v1/models", 405),
        ("BREW /v1/chat/completions", 405),
    ],
)
async def test_odd_path_or_method_is_refused(gateway: Gateway, line: str, status: int) -> None:
    answer = await sent(gateway, line)
    assert_error(answer, status)
    assert ("allow" in answer.headers) is (status == 405)


async def test_head_is_refused_without_a_body(gateway: Gateway) -> None:
    answer = await sent(gateway, "HEAD /v1/generations/abc/events")
    assert answer.status == 405 and answer.headers["allow"] == "get" and not answer.body


async def test_body_where_none_belongs_is_not_read(gateway: Gateway) -> None:
    assert (await sent(gateway, "GET /v1/models", JSON, b"{")).status == 200
    assert_error(await sent(gateway, "POST /v1/generations/abc/cancel", JSON, b"{"), 404)
