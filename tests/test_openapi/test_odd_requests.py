"""Requests that no client library sends: each is answered in the API's own shape, never by a server error."""

import json
from typing import Any

import pytest

from tests.gateway.support import MESSAGES, Gateway, assert_error

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

CHAT = json.dumps({"model": "semspec-demo", "messages": MESSAGES})
DEEP = "[" * 900 + "]" * 900
JSON = b"application/json"


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
    headers = {"content-type": JSON, "idempotency-key": f"\xff{hash(more)}".encode("latin-1")}
    answer = await gateway.send("POST /v1/chat/completions", headers=headers, content=f"{CHAT[:-1]}, {more}}}")
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("type", [b"", b";;;\xff", b"multipart/form-data; boundary=x"])
async def test_odd_type_is_refused(gateway: Gateway, type: bytes) -> None:
    headers = {"content-type": type} if type else {}
    assert_error(await gateway.send("POST /v1/chat/completions", headers=headers, content=CHAT), 400)


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
    answer = await gateway.send(line)
    assert_error(answer, status)
    assert ("allow" in answer.headers) is (status == 405)


async def test_head_is_refused_without_a_body(gateway: Gateway) -> None:
    answer = await gateway.send("HEAD /v1/generations/abc/events")
    assert answer.status_code == 405 and answer.headers["allow"] == "GET" and not answer.content


async def test_body_where_none_belongs_is_not_read(gateway: Gateway) -> None:
    fields: Any = {"headers": {"content-type": JSON}, "content": "{"}
    assert (await gateway.send("GET /v1/models", **fields)).status_code == 200
    assert_error(await gateway.send("POST /v1/generations/abc/cancel", **fields), 404)
