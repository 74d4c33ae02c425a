"""Odd HTTP: request lines, headers, framing and JSON that no client library sends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.attacks.case import Broken, Case, Draw, Family, Verdict, edited, odd_json, shown
from tests.attacks.fixtures import Victim
from tests.stack.support import QUESTION

SILENT_S = 1.5
"""How long a request that may be incomplete is given to be answered."""
TURN = {"role": "user", "content": QUESTION}
SAMPLING: dict[str, Any] = {"seed": 1, "temperature": 0.7, "top_p": 0.9, "stop": ["x"]}
SEMSPEC: dict[str, Any] = {
    "strategy": "semantic", "gamma": 2, "segmentation": "paragraph", "session": "s", "trace": True,
    "acceptance": {"rule": "threshold", "threshold": 0.5},
}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "semspec-demo", "messages": [{"role": "system", "content": "Be brief."}, TURN], "max_tokens": 20,
        "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2, "n": 2,
        **SAMPLING, "semspec": SEMSPEC,
    },
    "/v1/chat/completions?strategy=target": {
        "model": "semspec-demo:target", "messages": [TURN], "max_tokens": 20, "stream": False, "tool_choice": "auto",
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
            "type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 3, "$defs": {"a": {"enum": [1, "x"]}}}}},
    },
    "/v1/completions": {
        "model": "semspec-demo", "prompt": [QUESTION], "max_tokens": 20, "logprobs": 1, "echo": False, **SAMPLING,
    },
    "/v1/responses": {
        "model": "semspec-demo", "input": [{"role": "user", "content": QUESTION}], "max_output_tokens": 20,
        "instructions": "Be brief.", "text": {"format": {"type": "text"}}, "stream": False,
    },
    "/generate": {
        "inputs": QUESTION, "parameters": {"max_new_tokens": 20, "details": True, "seed": 1, "stop": ["x"], "top_k": 3},
    },
    "/generate_stream": {"inputs": QUESTION, "parameters": {"max_new_tokens": 20, "temperature": 0.5}},
    "/tokenize": {"inputs": QUESTION},
}  # fmt: skip
"""A sound body of each route."""
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "PRI", "get", "X" * 300, "")
VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/3.0", "HTTP/1", "http/1.1", "ICY", "")
PATHS = (*BODIES, "/", "/health", "/ready", "/metrics", "/v1/models", "/v1/services", "/openapi.json", "/info", "*")
ODD_HEADERS = (
    b"content-length: -1", b"content-length: 1e3", b"content-length: 5, 5", b"content-length: " + b"9" * 400,
    b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked", b"transfer-encoding: xchunked",
    b"transfer-encoding:\tchunked", b"content-encoding: gzip", b"expect: 100-continue", b"expect: x",
    b"upgrade: websocket\r\nconnection: upgrade", b"upgrade: h2c\r\nconnection: upgrade, http2-settings",
    b"host: a\r\nhost: b", b"host:", b"host : x", b"x: \x00", b"x: \xff\xfe", b"x" * 9000 + b": 1",
    b"x: " + b"y" * 15000,
    b"a\r\n folded", b"x:y\nz: 1", b"range: bytes=0-1,2-3", b"if-none-match: *", b"content-type: text/plain",
    b"content-type: application/json; charset=utf-16", b"content-type: multipart/form-data", b"accept: application/xml",
    b"x-request-id: \r", b"idempotency-key: \xff\x00", b"last-event-id: -1", b"traceparent: 00-0-0-0",
    b"forwarded: for=x", b"x-forwarded-proto: https", b"connection: close, keep-alive, x", b": novalue", b"nocolon",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shot:
    """The bytes to send, in pieces."""

    pieces: tuple[bytes, ...]
    may_be_silent: bool
    """The request may be incomplete, and the server then waits for the rest."""


def head_of(victim: Victim, line: str, num_bytes: int, *headers: bytes) -> bytes:
    own = [line.encode("utf-8", "surrogateescape"), b"host: x", b"content-type: application/json"]
    own += [f"authorization: Bearer {victim.stack.api_key}".encode(), b"content-length: %d" % num_bytes]
    return b"\r\n".join((*own, b"connection: close", *headers, b"", b""))


def _line(victim: Victim, chance: Random) -> Shot:
    path = chance.choice(PATHS)
    if chance.random() < 0.6:
        path = edited(path.encode(), chance).replace(b"\n", b"%0a").decode("utf-8", "surrogateescape")
    path = chance.choice((path, path, f"http://x{path}", path + "?" + "a=b&" * chance.choice((1, 3000)), path * 2))
    line = f"{chance.choice(METHODS)} {path} {chance.choice(VERSIONS)}"
    return Shot((head_of(victim, line, 0),), may_be_silent=True)


def _headers(victim: Victim, chance: Random) -> Shot:
    path, body = chance.choice(list(BODIES.items()))
    data = json.dumps({**body, "stream": False} if "stream" in body else body).encode()
    odd = chance.sample(ODD_HEADERS, chance.randint(1, 4)) * chance.choice((1, 1, 1, 60))
    return Shot((head_of(victim, f"POST {path} HTTP/1.1", len(data), *odd) + data,), may_be_silent=True)


def _bytes(victim: Victim, chance: Random) -> Shot:
    path, body = chance.choice(list(BODIES.items()))
    data = json.dumps(body).encode()
    return Shot((edited(head_of(victim, f"POST {path} HTTP/1.1", len(data)) + data, chance),), may_be_silent=True)


def _framing(victim: Victim, chance: Random) -> Shot:
    path, body = chance.choice(list(BODIES.items()))
    data = json.dumps(body).encode()
    head = head_of(victim, f"POST {path} HTTP/1.1", len(data))
    match chance.choice(("cut", "drip", "chunks", "twice", "early")):
        case "cut":
            return Shot((head, data[: chance.randrange(len(data))]), may_be_silent=True)
        case "drip":
            whole, step = head + data, chance.randint(20, 200)
            return Shot(tuple(whole[i : i + step] for i in range(0, len(whole), step)), may_be_silent=False)
        case "chunks":
            head = head.replace(b"content-length: %d" % len(data), b"transfer-encoding: chunked")
            sizes = chance.choice((b"%x", b"%X;ext=1", b"0%x", b"-%x", b"%xg", b" %x ", b"1%x"))
            return Shot((head, sizes % len(data) + b"\r\n" + data + b"\r\n0\r\n\r\n"), may_be_silent=True)
        case "twice":
            head = head.replace(b"connection: close\r\n", b"")
            return Shot((head + data, head_of(victim, "GET /health HTTP/1.1", 0)), may_be_silent=True)
        case _:
            return Shot((data, head), may_be_silent=True)


def _json(victim: Victim, chance: Random) -> Shot:
    path, body = chance.choice(list(BODIES.items()))
    value: Any = body
    for _ in range(chance.randint(1, 3)):
        value = odd_json(value, chance)
    data = json.dumps(value).encode("utf-8", "surrogatepass")
    match chance.choice(("as it is",) * 6 + ("deep", "again", "cut", "coded")):
        case "deep":
            data = data.replace(b"20", b"[" * 900 + b"]" * 900, 1)
        case "again":
            data = data[:-1] + b"," + data[1:]
        case "cut":
            data = data[: chance.randrange(len(data) + 1)]
        case "coded":
            data = chance.choice((b"\xef\xbb\xbf" + data, data.decode().encode("utf-16"), data + b"\0", data * 2))
    return Shot((head_of(victim, f"POST {path} HTTP/1.1", len(data)), data), may_be_silent=False)


KINDS = {"request line": _line, "headers": _headers, "bytes": _bytes, "framing": _framing, "JSON": _json}


async def answered(victim: Victim, shot: Shot) -> bytes:
    """All that the server says, until it closes the connection or is silent."""
    reader, writer = await asyncio.open_connection(*victim.address)
    received = b""
    try:
        for piece in shot.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        while True:
            timeout_s = SILENT_S if shot.may_be_silent and not received else 60
            data = await asyncio.wait_for(reader.read(1 << 16), timeout_s)
            if not data:
                return received
            received += data
    except TimeoutError:
        if received or not shot.may_be_silent:
            raise Broken(Verdict.LOST, f"no end of the response after {received[:200]!r}") from None
        return b""
    except ConnectionError:
        return received
    finally:
        writer.close()


def check(answer: bytes, may_be_silent: bool) -> None:
    """Raises: Broken when it is no response of the API's shape, or blames the server for the request."""
    if not answer:
        if not may_be_silent:
            raise Broken(Verdict.LOST, "closed without an answer")
        return
    while answer.startswith(b"HTTP/1.1 1"):  # an interim response
        answer = answer.partition(b"\r\n\r\n")[2]
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split()[1])
    headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    if length := headers.get("content-length"):  # the answer to another request may follow
        check(body[int(length) :], may_be_silent=True)
        body = body[: int(length)]
    if status >= 500 and status != 505:
        raise Broken(Verdict.MEDIUM, f"{first}: {body[:300]!r}")
    if status >= 400 and headers.get("content-type") == "application/json" and body and "error" not in json.loads(body):
        raise Broken(Verdict.MEDIUM, f"an error of another shape: {body[:300]!r}")
    if headers.get("content-type", "").startswith("text/event-stream") and status == 200:
        _check_stream(body)


def _check_stream(body: bytes) -> None:
    if b'"internal_error"' in body or b'"service_unavailable"' in body:
        raise Broken(Verdict.MEDIUM, f"the stream ended with {body[-300:]!r}")
    is_tgi = b"generated_text" in body
    if b"data: [DONE]" not in body and not is_tgi and b"response.completed" not in body and b'"error"' not in body:
        raise Broken(Verdict.LOST, f"the stream ended with {body[-300:]!r}")


@asynccontextmanager
async def opened(victim: Victim, _: Path) -> AsyncIterator[Draw]:

    def draw(chance: Random) -> Case:
        kind = chance.choice((*KINDS, "JSON"))
        shot = KINDS[kind](victim, chance)

        async def run() -> None:
            async with victim.watched():
                check(await answered(victim, shot), shot.may_be_silent)

        said = b"".join(shot.pieces).replace(victim.stack.api_key.encode(), b"KEY")
        return Case(kind, shown(said[-160:] if kind in ("JSON", "framing") else said), run)

    yield draw


FAMILY = Family("odd HTTP", 130, opened)
