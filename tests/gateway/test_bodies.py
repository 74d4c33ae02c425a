"""Limits of one body and of all bodies together, and the order in which large bodies are parsed."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Message

from semspec.errors import InvalidRequest, Overloaded, Unavailable
from semspec_gateway.api.shared.bodies import OWNER_SHARE, SMALL_BYTES, Bodies
from semspec_gateway.api.shared.middleware import BodyGuard, Drain
from semspec_gateway.metrics import Metrics
from semspec_gateway.settings import GatewaySettings
from tests.gateway.costly import CHAT, DETOKENIZE, SOUND, TEXT, costly_bodies
from tests.gateway.processes import gateway_process
from tests.helpers.gateway import (
    GENEROUS_S,
    OURS,
    THEIRS,
    TWO_OWNERS,
    Gateway,
    GatewayFactory,
    assert_error,
    bearer,
    make_settings,
)

JSON = {"content-type": "application/json"}
BODY_BYTES = 1 << 20
PEAK_BYTES = 100 << 20
"""Memory that the process may take for one body after another, in addition to that at its start."""
FEW = {"max_concurrent": 1, "max_queued": 3}
"""Limits of a gateway that holds four of the largest bodies, two of one owner."""
COSTLY = costly_bodies(BODY_BYTES)
REFUSED = [
    name
    for name in COSTLY
    if name.endswith("of objects") or name.startswith(("members of /v1", "JSON"))
]


def fields_of(answer: httpx.Response) -> str:
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.fixture(scope="module")
def process() -> Iterator[tuple[int, str]]:
    """Yield the id and the address of a gateway without services."""
    with gateway_process() as (gateway, port):
        yield gateway.pid, f"http://127.0.0.1:{port}"


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has taken since `forget_peak` (Linux)."""
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory by /proc")
def test_refused_bodies_take_little_memory(process: tuple[int, str]) -> None:
    """A megabyte of wrong items took 640 MB of errors."""
    pid, address = process
    forget_peak(pid)
    before = peak_bytes(pid)
    with httpx.Client(base_url=address, timeout=GENEROUS_S, headers=JSON) as http:
        for name in REFUSED:
            response = http.post(COSTLY[name].path, content=COSTLY[name].body)
            assert response.status_code in (400, 422), (name, response.text[:300])
    assert peak_bytes(pid) - before < PEAK_BYTES


@pytest.mark.parametrize("name", [name for name in COSTLY if name.endswith(" of numbers")])
async def test_too_many_items_are_refused_by_field(gateway: Gateway, name: str) -> None:
    costly = COSTLY[name]
    response = await gateway.http.post(costly.path, content=costly.body, headers=JSON)
    field = {
        "content": "messages",
        "tool_calls": "messages",
        "input's content": "input",
        "tokenize messages": "messages",
    }
    place = name.removesuffix(" of numbers")
    expected = field.get(
        place, "response_format.json_schema.schema.enum" if place == "schema" else place
    )
    assert fields_of(response).startswith(f"{expected}: the body holds 524")
    assert "values, and the limit is 149796; send fewer" in response.text


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LIMITS: list[tuple[str, Any, str, str]] = [
    
    (CHAT, {"messages": [{"role": "user", "content": "x"}] * 2049}, "messages", "at most 2048 items"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 2049}]}, "messages.0.content",
     "at most 2048 items"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [CALL] * 129}]}, "messages.0.tool_calls",
     "at most 128 items"),
    (CHAT, {"messages": [dict.fromkeys(map(str, range(200)), 1)]}, "messages.0", "at most 128 fields, not 200"),
    (CHAT, {"semspec": dict.fromkeys(map(str, range(200)), 1)}, "semspec", "at most 128 fields, not 200"),
    
    (CHAT, {"logit_bias": {f"x{number}": 1 for number in range(301)}}, "logit_bias", "at most 300 members, not 301"),
    (CHAT, {"chat_template_kwargs": {f"{number}": 1 for number in range(33)}}, "chat_template_kwargs",
     "at most 32 members, not 33"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [
     {**CALL, "function": {"name": "f", "arguments": json.dumps({"a": [1] * 50_001})}}]}]},
     "messages.0.tool_calls.0.function.arguments", "more than 50000 values"),
    
    (TEXT, {"prompt": [[1]] * 2049}, "prompt", "at most 2048 items"),
    ("/v1/responses", {"input": [{"role": "user", "content": "x"}] * 2049}, "input", "at most 2048 items"),
    
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "field", "words"), LIMITS)
async def test_collection_has_a_limit_of_its_own(
    gateway: Gateway, path: str, fields: Any, field: str, words: str
) -> None:
    response = await gateway.http.post(path, json={**SOUND[path], **fields})
    assert words in assert_error(response, 400, param=field)["message"]


async def test_largest_sound_bodies_are_read(gateway: Gateway) -> None:
    """The bodies are answered, or refused by the model's window or vocabulary."""
    ids = [123456] * 131_072
    for path, body in (
        (TEXT, {"prompt": ids}),
        (TEXT, {"prompt": "word, " * 174_000}),
        (DETOKENIZE, {"tokens": ids}),
    ):
        content = json.dumps(body, separators=(",", ":"))
        assert len(content) > 0.87 * BODY_BYTES
        response = await gateway.http.post(path, content=content, headers=JSON)
        assert response.status_code == 200 or "token" in fields_of(response), response.text[:300]


async def test_every_route_with_a_body_bounds_what_the_body_holds(gateway: Gateway) -> None:
    described = gateway.app.openapi()["paths"].items()
    paths = [path for path, methods in described if "requestBody" in methods.get("post", {})]
    assert len(paths) >= 8
    for path in paths:
        response = await gateway.http.post(path, content=b"[" * 20_000, headers=JSON)
        assert "the body holds 20000 containers, and the limit is 16384" in response.text, path


ODD = {
    b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}": "nested too deep",
    b'{"seed": ' + b"1" * 5000 + b"}": "the body is not valid",
    b'{"messages": \xff}': "the body is not valid JSON: it is not utf-8 at byte 13",
    b'{"messages": ]}': "the body is not valid JSON: Expecting value at character 13",
    b"{" + b" " * SMALL_BYTES: "the body is not valid JSON: Expecting property name",
    b'"' + b"\\" * SMALL_BYTES: "the body is not valid JSON: Unterminated string",
}


@pytest.mark.parametrize(("body", "words"), ODD.items(), ids=lambda one: str(one[:12]))
async def test_body_that_is_not_json_is_refused_in_one_line(
    gateway: Gateway, body: bytes, words: str
) -> None:
    message = assert_error(await gateway.http.post(CHAT, content=body, headers=JSON), 400)[
        "message"
    ]
    assert words in message


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-le"])
@pytest.mark.parametrize("text", ["x", "x" * SMALL_BYTES])
async def test_every_encoding_of_json_is_read(gateway: Gateway, encoding: str, text: str) -> None:
    body = json.dumps({"inputs": text}).encode(encoding)
    assert (await gateway.http.post("/tokenize", content=body, headers=JSON)).status_code == 200


@contextmanager
def arriving(gateway: Gateway, key: str, num_bytes: int) -> Iterator[socket.socket]:
    """Send only these bytes of a request."""
    url = httpx.URL(gateway.base_url)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    head = f"{head}content-length: {BODY_BYTES}\r\n\r\n"
    with socket.create_connection((url.host, url.port), GENEROUS_S) as connection:
        with suppress(ConnectionError):  # of a request that is refused
            connection.sendall(head.encode() + b" " * num_bytes)
        yield connection


async def arrived(stack: ExitStack, gateway: Gateway, key: str, num_bytes: int) -> socket.socket:
    """Send only these bytes of a request, and wait until the stack ends."""
    return await asyncio.to_thread(lambda: stack.enter_context(arriving(gateway, key, num_bytes)))


async def refusal(connection: socket.socket) -> bytes:
    """Return the answer to a request, most of which has arrived."""

    def receive() -> bytes:
        received = b""
        while b"}}" not in received and (data := connection.recv(1 << 16)):
            received += data
        return received

    return await asyncio.to_thread(receive)


async def test_bytes_that_arrive_are_bounded_by_owner_and_in_all(
    start_gateway: GatewayFactory,
) -> None:
    """450 connections with a megabyte each took 450 MB."""
    gateway = await start_gateway(api_keys=TWO_OWNERS, **FEW)
    http = gateway.http
    tokenize: Any = {"url": "/tokenize", "json": {"inputs": "x" * 1000}}
    with ExitStack() as stack:
        for _ in range(2):  # and what a request takes itself are too much
            last = await arrived(stack, gateway, OURS, BODY_BYTES - 9)
            await asyncio.sleep(0.5)  # until the gateway has read it
        refused = await refusal(last)
        assert refused.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 1" in refused
        assert b"connection: close" in refused
        assert b"for one API key is 2097152 bytes" in refused
        assert (await http.post(**tokenize, headers=bearer(OURS))).status_code == 200
        assert (await http.post(**tokenize, headers=bearer(THEIRS))).status_code == 200


async def test_bytes_of_all_owners_are_bounded(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(api_keys=TWO_OWNERS, **{**FEW, "max_queued": 0})
    with ExitStack() as stack:
        await arrived(stack, gateway, OURS, BODY_BYTES - 9)
        await asyncio.sleep(0.5)  # until the gateway has read it
        refused = await refusal(await arrived(stack, gateway, THEIRS, BODY_BYTES - 9))
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"for all clients is 1048576 bytes" in refused
        assert (await gateway.http.get("/health")).status_code == 200
        assert (await gateway.http.get("/ready")).status_code == 200


async def test_request_counts_until_it_has_ended(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(api_keys=TWO_OWNERS, **FEW)
    large = {"messages": [{"role": "user", "content": "x" * 900}] * 1000, "seed": 7}
    headers = bearer(OURS)
    async with gateway.held(1, headers=headers):  # which takes the only slot
        waiting = [
            asyncio.create_task(gateway.http.post(CHAT, json=large, headers=headers))
            for _ in range(3)
        ]
        done, _ = await asyncio.wait(
            waiting, timeout=GENEROUS_S, return_when=asyncio.FIRST_COMPLETED
        )
        assert {task.result().status_code for task in done} == {429}
    for task in waiting:
        await task
    for _ in range(8):  # one after another, so none is refused for the bytes of those before
        response = await gateway.http.post(CHAT, json=large, headers=headers)
        assert_error(response, 400, code="context_length_exceeded")


async def test_number_of_requests_of_an_owner_is_bounded(
    start_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 16
    monkeypatch.setattr("semspec_gateway.connections.MAX_CONNECTIONS", most * OWNER_SHARE)
    gateway = await start_gateway(api_keys=TWO_OWNERS)
    with ExitStack() as stack:
        for _ in range(most):
            await arrived(stack, gateway, OURS, 0)
        await asyncio.sleep(0.2)
        response = await gateway.http.get("/v1/models", headers=bearer(OURS))
        assert_error(response, 429, code="overloaded")
        assert (await gateway.http.get("/health")).status_code == 200
        assert (await gateway.http.get("/v1/models", headers=bearer(THEIRS))).status_code == 200


async def test_large_bodies_of_one_owner_leave_time_for_others() -> None:
    """Every owner's next large body is parsed before the one after it of an owner with many."""
    bodies, order = Bodies(make_settings()), list[str]()

    def parse(owner: str) -> Any:
        async def work() -> None:
            await asyncio.sleep(0.01)
            order.append(owner)

        return asyncio.create_task(bodies.take_turn(owner, work))

    tasks = [parse("greedy") for _ in range(5)]
    await asyncio.sleep(0)
    tasks += [parse("modest")]
    await asyncio.gather(*tasks)
    assert order[:2] == ["greedy", "modest"]


async def test_body_is_free_again_when_its_turn_fails() -> None:
    bodies = Bodies(GatewaySettings(auth="none"))
    with pytest.raises(InvalidRequest), bodies.hold("us") as body:
        await body.parse(b"[" * (SMALL_BYTES + 1), lambda value: value)
    assert bodies.num_bytes.total() == 0
    with bodies.hold("us") as body:
        body.add(bodies.max_bytes)  # the only one is not refused
        with pytest.raises(Overloaded), bodies.hold("us"):
            pass
        with pytest.raises(Unavailable), bodies.hold("them"):
            pass
    assert bodies.num_bytes.total() == 0


async def test_answer_counts_until_it_is_read() -> None:
    """Hundreds of large answers that no client reads would fill the gateway's memory."""
    bodies, is_read = Bodies(GatewaySettings(auth="none")), asyncio.Event()
    answer = Response(b"x" * bodies.max_bytes_per_owner)
    guard = BodyGuard(answer, bodies, GENEROUS_S, Drain(), Metrics())

    async def receive() -> Message:
        return {"type": "http.request"}

    async def ask(wait: asyncio.Event) -> tuple[int, bytes]:
        """Return the status and the body of an answer, all but its first piece once `wait` is set."""
        received = list[Message]()

        async def send(message: Message) -> None:
            if len(received) > 1:
                await wait.wait()
            received.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/models",
            "headers": [],
            "state": {"owner": "us"},
        }
        await guard(scope, receive, send)
        return received[0]["status"], b"".join(message.get("body", b"") for message in received)

    unread = asyncio.create_task(ask(is_read))
    await asyncio.sleep(0.1)
    assert bodies.num_bytes["us"] == bodies.max_bytes_per_owner
    status, refusal = await ask(is_read)
    assert status == 429 and b"too many or too large requests at once" in refusal
    is_read.set()
    assert await unread == (200, answer.body)
    assert await ask(is_read) == (200, answer.body) and bodies.num_bytes.total() == 0
