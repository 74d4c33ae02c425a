"""Requests that want more than an answer: other people's files, hosts, keys in Redis, lines in the log."""

import hmac
import logging
import re
import socket
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pytest
from redis.asyncio import Redis

from semspec.keys import Keys, entry, new_key
from semspec.observability import JsonFormatter, KeyValueFormatter
from semspec_gateway.api.openai import requests as schemas
from tests.helpers.gateway import (
    API_KEY,
    MESSAGES,
    NO_REDIS,
    Gateway,
    GatewayFactory,
    assert_error,
    exchange,
)

BODY = {"model": "semspec-demo", "messages": MESSAGES}
TRAVERSALS = [
    "../settings.py", "..%2fsettings.py", "..%2f..%2f..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/settings.py",
    "%2fetc%2fpasswd", "..%5csettings.py", "....//settings.py", "%252e%252e%252fsettings.py",
    "index.html%00.js",
]  # fmt: skip
ODD_NAMES = [
    "a b",
    "a:b",
    "{a}",
    "a\r\nDEL x",
    "*",
    "a\0b",
    "../a",
    "\u202ea",
    "x" * 500,
    "a'\"return 1--",
]


async def test_path_that_leaves_the_static_folder_is_not_found(gateway: Gateway) -> None:
    assert (await gateway.send("GET /static/index.html")).status_code == 200
    for path in TRAVERSALS:
        response = await gateway.send(f"GET /static/{path}")
        assert response.status_code in (400, 404), path
        assert "root:" not in response.text and "GatewaySettings" not in response.text


def texts(url: str) -> list[tuple[str, dict[str, Any]]]:
    """Requests with an address wherever one fits, and some that other servers would fetch."""
    parts = [{"type": "text", "text": url}, {"type": "image_url", "image_url": {"url": url}}]
    chat = "/v1/chat/completions"
    return [
        (
            chat,
            {
                **BODY,
                "messages": [{"role": "user", "content": f"Read {url} ![]({url}) <img src={url}>"}],
            },
        ),
        (chat, {**BODY, "messages": [{"role": "user", "content": parts}]}),
        (
            chat,
            {
                **BODY,
                "messages": [
                    {"role": "user", "content": [{"type": "file", "file": {"file_url": url}}]}
                ],
            },
        ),
        (chat, {**BODY, "model": url}),
        (chat, {**BODY, "user": url, "stop": [url], "metadata": {"callback": url}}),
        (chat, {**BODY, "tools": [{"type": "mcp", "server_url": url}]}),
        (chat, {**BODY, "semspec": {"session": url, "writer_url": url}}),
        ("/v1/completions", {"model": "semspec-demo", "prompt": url}),
        ("/generate", {"inputs": f"![]({url})", "parameters": {"adapter_id": url}}),
        ("/tokenize", {"inputs": url}),
    ]


async def test_no_address_in_a_request_is_called(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # which no request may reach
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/secret"
        headers = {
            "referer": url,
            "origin": url,
            "forwarded": f"host={url}",
            "x-forwarded-host": url,
            "host": "x",
        }
        for path, body in texts(url):
            response = await gateway.http.post(path, json=body, headers=headers)
            assert response.status_code < 500
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_name_of_a_session_is_no_way_into_redis(gateway: Gateway, redis: Redis) -> None:
    before = await redis.dbsize()
    for name in ODD_NAMES:
        assert_error(await gateway.chat(semspec={"session": name}), 400, param="semspec.session")
    assert await redis.dbsize() == before


@pytest.mark.parametrize(
    "route", ["GET /v1/generations/{}", "GET /v1/generations/{}/trace", "GET /v1/sessions/{}"]
)
async def test_odd_id_is_refused_before_redis_is_asked(
    route: str, start_gateway: GatewayFactory
) -> None:
    gateway = await start_gateway(redis_url=NO_REDIS)  # asked, it would be a 503
    assert (await gateway.send(route.format("a"))).status_code == 503
    for name in ODD_NAMES:
        escaped = "".join(f"%{byte:02x}" for byte in name.encode())
        assert (await gateway.send(route.format(escaped))).status_code in (400, 404), name


async def test_request_id_cannot_write_into_the_log(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    kept = await gateway.http.get("/health", headers={"x-request-id": "abc-1"})
    assert kept.headers["x-request-id"] == "abc-1"
    for value in (
        "a\tlevel=CRITICAL",
        "a level=INFO",
        'a"b',
        "\u00fc",
        "x" * 129,
        "${jndi:ldap://a}",
    ):
        response = await gateway.http.get(
            "/health", headers=[(b"x-request-id", value.encode("latin-1"))]
        )
        assert re.fullmatch(r"[0-9a-f]{16}", response.headers["x-request-id"])
        assert value not in caplog.text


@pytest.mark.parametrize("formatter", [KeyValueFormatter(), JsonFormatter()])
def test_record_is_one_line_whatever_it_quotes(formatter: logging.Formatter) -> None:
    hostile = 'a\n2026-01-01 level=INFO message="all is well"\r\n\x1b[2J\u2028\u2029'
    record = logging.LogRecord(
        "name", logging.INFO, __file__, 1, "asked for %r and %s", (hostile, hostile), None
    )
    record.__dict__["route"] = hostile
    line = formatter.format(record)
    assert len(line.splitlines()) == 1 and "\x1b" not in line


async def test_ids_are_128_random_bits(gateway: Gateway) -> None:
    answers = [(await gateway.chat()).json()["id"] for _ in range(2)]
    assert all(re.fullmatch(r"chatcmpl-[0-9a-f]{32}", answer) for answer in answers)
    assert answers[0] != answers[1]


def test_keys_are_compared_in_constant_time_and_every_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmac, "compare_digest", compare := Mock(wraps=hmac.compare_digest))
    names = ("first", "second", "third")
    held = {name: new_key() for name in names}
    keys = Keys(" ".join(entry(name, key) for name, key in held.items()), None)
    for name in names:
        compare.reset_mock()
        assert keys.owner(held[name].encode()) == name
        assert compare.call_count == len(names)


async def test_patterns_of_the_api_are_matched_in_linear_time() -> None:
    """By an automaton: no model selects Python's backtracking engine, which would not end here."""
    for model in vars(schemas).values():
        assert "regex_engine" not in getattr(model, "model_config", {})


def test_no_text_of_a_model_stalls_the_search_for_the_end_of_a_sentence() -> None:
    finishes(
        "from semspec.types import Segmentation\n"
        "from semspec.engine.segmentation import RULES\n"
        "for run in ('x', '\\n', '1', ' '):\n"
        "    RULES[Segmentation.SENTENCE].ends_before('\\n' + run * 200_000 + ' b a.', ' ')\n"
    )


def finishes(program: str) -> None:
    """It takes far less than a second, or else hours."""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


async def test_every_route_bounds_what_it_reads(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(max_body_bytes=1024)
    described = gateway.app.openapi()["paths"].items()
    paths = [path for path, methods in described if "requestBody" in methods.get("post", {})]
    assert len(paths) >= 5
    for path in paths:
        assert (await gateway.http.post(path, json={"x": "x" * 2000})).status_code == 413, path


async def test_body_of_two_lengths_is_bounded(start_gateway: GatewayFactory) -> None:
    """Chunks go before a length that was announced: it must not be what is believed."""
    gateway = await start_gateway(max_body_bytes=1024)

    headers = [
        "host: x",
        f"authorization: Bearer {API_KEY}",
        "content-length: 2",
        "transfer-encoding: chunked",
    ]
    chunks = "".join(f"3e8\r\n{'[' * 1000}\r\n" for _ in range(8)) + "0\r\n\r\n"
    request = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", *headers, "", chunks])
    answer = await exchange(gateway.base_url, request.encode())
    assert answer.startswith(b"HTTP/1.1 413")


async def test_connection_is_closed_after_a_request_of_two_lengths(gateway: Gateway) -> None:
    """What follows may be the body to one reader and the next request to another (RFC 9112, 11.2)."""
    lengths = "content-length: 5\r\ntransfer-encoding: chunked"
    first = f"GET /health HTTP/1.1\r\nhost: x\r\n{lengths}\r\n\r\n0\r\n\r\n"
    answer = await exchange(
        gateway.base_url, f"{first}GET /health HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    )
    assert answer.count(b"HTTP/1.1 200") == 1 and b"connection: close" in answer.lower()


@pytest.mark.parametrize("version", ["0.9", "2.0", "3.0"])
async def test_other_versions_of_http_are_refused(gateway: Gateway, version: str) -> None:
    answer = await exchange(
        gateway.base_url, f"GET /health HTTP/{version}\r\nhost: x\r\n\r\n".encode()
    )
    assert answer.startswith(b"HTTP/1.1 505") and b'"error"' in answer
