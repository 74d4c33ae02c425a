"""Odd HTTP: request lines, headers, framing, pipelines and bodies that no client library sends."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from tests.attacks.case import HIGH, LOW, MEDIUM, Case, Draw, Family, Found, Run
from tests.attacks.victim import ATTACKER, Victim
from tests.security.support import edited, odd_json
from tests.test_openapi.support import BODIES

SILENT_S, WHOLE_S, SLOW_S = 1.5, 90.0, 3.0  # the first for a request that may be incomplete
METHODS = (
    *"GET POST PUT DELETE PATCH OPTIONS HEAD TRACE CONNECT PRI get".split(),
    "X" * 300,
    "",
)
VERSIONS = [f"HTTP/{number}" for number in ("1.1", "1.0", "0.9", "1.2", "2.0", "3.0", "1")]
VERSIONS += ["http/1.1", "ICY", ""]
PATHS = (
    *BODIES,
    *"/ /health /ready /metrics /v1/models /v1/services /openapi.json /info *".split(),
)
FRAMES = (
    b"content-length: -1", b"content-length: 1e3", b"content-length: 5, 5", b"content-length: " + b"9" * 400,
    b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked", b"transfer-encoding: xchunked",
    b"transfer-encoding:\tchunked", b"transfer-encoding: identity", b"transfer-encoding: chunked, chunked",
)  # fmt: skip
ODD_HEADERS = (
    *FRAMES, b"content-encoding: gzip", b"expect: 100-continue", b"expect: x", b"x: " + b"y" * 15000, b"x: \x00",
    b"upgrade: websocket\r\nconnection: upgrade", b"upgrade: h2c\r\nconnection: upgrade, http2-settings",
    b"host: a\r\nhost: b", b"host:", b"host : x", b"x: \xff\xfe", b"x" * 9000 + b": 1", b"if-none-match: *",
    b"a\r\n folded", b"x:y\nz: 1", b"range: bytes=0-1,2-3", b"content-type: text/plain", b": novalue", b"nocolon",
    b"content-type: application/json; charset=utf-16", b"content-type: multipart/form-data", b"accept: application/xml",
    b"x-request-id: \r", b"idempotency-key: \xff\x00", b"last-event-id: -1", b"traceparent: 00-0-0-0",
    b"forwarded: for=x", b"x-forwarded-proto: https", b"connection: close, keep-alive, x",
)  # fmt: skip
KINDS = "line headers bytes JSON JSON cut drip chunks pipeline early smuggled two-lengths slow-readers".split()


def head_of(
    line: str, num_bytes: int, *headers: bytes, last: bytes = b"connection: close"
) -> bytes:
    own = [line.encode("utf-8", "surrogateescape"), b"host: x", b"content-type: application/json"]
    own += [f"authorization: Bearer {ATTACKER}".encode(), b"content-length: %d" % num_bytes]
    return b"\r\n".join((*own, last, *headers, b"", b""))


def shot(kind: str, chance: Random) -> Case:
    """The bytes to send, in pieces, and what may be answered."""
    path, body = chance.choice(list(BODIES.items()))
    data, line, most = json.dumps(body).encode(), f"POST {path} HTTP/1.1", None
    head = head_of(line, len(data))
    pieces = [head + data]
    match kind:
        case "line":
            pieces = [
                head_of(
                    f"{chance.choice(METHODS)} {_odd_path(chance)} {chance.choice(VERSIONS)}", 0
                )
            ]
        case "headers":
            odd = chance.sample(ODD_HEADERS, chance.randint(1, 4)) * chance.choice((1, 1, 1, 60))
            pieces = [head_of(line, len(data), *odd) + data]
        case "bytes":
            pieces = [edited(head + data, chance)]
        case "JSON":
            data = _odd_body(body, chance)
            pieces = [head_of(line, len(data)), data]
        case "cut":
            pieces = [head, data[: chance.randrange(len(data))]]
        case "drip":
            step = chance.randint(5, 200)
            pieces = [pieces[0][i : i + step] for i in range(0, len(pieces[0]), step)]
        case "chunks":
            size = chance.choice(
                (b"%x", b"%X;ext=1", b"0%x", b"-%x", b"%xg", b" %x ", b"1%x", b"0x%x")
            )
            head = head.replace(b"content-length: %d" % len(data), b"transfer-encoding: chunked")
            pieces = [head, size % len(data) + b"\r\n" + data + b"\r\n0\r\n\r\n"]
        case "pipeline":
            most = chance.choice((2, 60, 1250))  # short requests, 10,000 at once
            pieces = [head_of("GET /health HTTP/1.1", 0, last=b"x: y") * (most - 1) + head + data]
        case "slow-readers":
            path = "/v1/chat/completions"
            data = json.dumps({**BODIES[path], "stream": True, "max_tokens": 400}).encode()
            pieces = [head_of(f"POST {path} HTTP/1.1", len(data)) + data]
        case "early":
            pieces = [data, head]
        case "smuggled":
            inner, most = head_of("GET /smuggled HTTP/1.1", 0), 1
            extra = chance.choice(FRAMES)
            pieces = [
                head_of("POST /tokenize HTTP/1.1", 5 + len(inner), extra, last=b"x: y")
                + b"0\r\n\r\n"
                + inner
            ]
        case _:
            inner, most = b"0\r\n\r\n" + head_of("GET /smuggled HTTP/1.1", 0), 1
            size = chance.choice((b"%x\n", b"%x\r", b"0%x;\n", b'%x;a="\r\n', b"+%x\r\n")) % len(
                inner
            )
            pieces = [
                head_of("POST /tokenize HTTP/1.1", 4, b"transfer-encoding: chunked", last=b"x: y")
                + size
                + inner
            ]
    is_whole = kind in ("drip", "JSON", "pipeline")
    return {
        "kind": kind,
        "pieces": [piece.decode("latin-1") for piece in pieces],
        "is_whole": is_whole,
        "most": most,
    }


def line(line: str, status: int) -> Case:
    """A request without a body, and what is answered."""
    return {
        "kind": line,
        "pieces": [head_of(line, 0).decode()],
        "is_whole": True,
        "most": 1,
        "statuses": [status],
    }


def _odd_path(chance: Random) -> str:
    path = chance.choice(PATHS)
    if chance.random() < 0.6:
        path = (
            edited(path.encode(), chance).replace(b"\n", b"%0a").decode("utf-8", "surrogateescape")
        )
    return chance.choice(
        (path, path, f"http://x{path}", f"{path}?{'a=b&' * chance.choice((1, 3000))}", path * 2)
    )


def _odd_body(body: object, chance: Random) -> bytes:
    for _ in range(chance.randint(1, 3)):
        body = odd_json(body, chance)
    data = json.dumps(body).encode()
    deep = data.replace(b"8", b"[" * 900 + b"]" * 900, 1)
    cut = data[: chance.randrange(len(data) + 1)]
    odd = (
        deep,
        data[:-1] + b"," + data[1:],
        cut,
        b"\xef\xbb\xbf" + data,
        data.decode().encode("utf-16"),
        data * 2,
    )
    return chance.choice((data,) * 6 + odd + (data + b"\0",))


async def read_slowly(victim: Victim, case: Case) -> None:
    reader, writer = await asyncio.open_connection(*victim.address)
    writer.write(case["pieces"][0].encode("latin-1"))
    for _ in range(100):
        await asyncio.sleep(SLOW_S / 100)
        await reader.read(1)
    writer.close()


async def answered(victim: Victim, case: Case) -> bytes:
    """All that the server says, until it closes the connection or is silent."""
    if case["kind"] == "slow-readers":  # 200 at once
        await asyncio.gather(*(read_slowly(victim, case) for _ in range(25)))
        return b""
    reader, writer = await asyncio.open_connection(*victim.address)
    received = b""
    try:
        for piece in case["pieces"]:
            writer.write(piece.encode("latin-1"))
            await writer.drain()
            await asyncio.sleep(0)
        while data := await asyncio.wait_for(
            reader.read(1 << 16), WHOLE_S if case["is_whole"] else SILENT_S
        ):
            received += data
    except TimeoutError:
        if case["is_whole"]:
            raise Found(
                HIGH, f"no end of the response after {received[:200]!r}", is_of_load=True
            ) from None
    except ConnectionError:
        pass
    finally:
        writer.close()
    return received


def check(answer: bytes, case: Case) -> None:
    """Raises: Found when it is no answer, is too many, has another shape, or blames the server for the request."""
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 ([2-5]\d\d) ", answer)]
    if not statuses and case["is_whole"]:
        raise Found(HIGH, f"no response: {answer[:300]!r}")
    is_defect = b'"internal_error"' in answer or b'"service_unavailable"' in answer
    if is_defect or any(status >= 500 and status != 505 for status in statuses):
        raise Found(MEDIUM, f"{statuses}: {answer[-300:]!r}", is_of_load=503 in statuses)
    if statuses != case.get("statuses", statuses) or (
        405 in statuses and b"\r\nallow: " not in answer.lower()
    ):
        raise Found(
            LOW, f"not {case.get('statuses')}, or 405 without the methods: {answer[:300]!r}"
        )
    if case["most"] is not None and len(statuses) > case["most"]:
        raise Found(HIGH, f"{len(statuses)} responses to {case['most']} requests")
    head, _, body = answer.partition(b"\r\n\r\n")
    is_refused = len(statuses) == 1 and statuses[0] >= 400 and b"application/json" in head
    if is_refused and body and b'"error"' not in body:
        raise Found(MEDIUM, f"an error of another shape: {body[:300]!r}")


@asynccontextmanager
async def opened(victim: Victim, _: Path) -> AsyncIterator[tuple[Draw, Run]]:
    async def run(case: Case) -> None:
        check(await answered(victim, case), case)

    def draw(seed: str, number: int) -> list[Case]:
        return [shot(KINDS[i % len(KINDS)], Random(f"{seed}/{i}")) for i in range(number)]

    yield draw, run


FAMILY = Family("odd HTTP", 200, opened, at_once=8)
