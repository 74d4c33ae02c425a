"""The gRPC services called directly: spoilt messages, changed bytes, wrong methods and tokens, calls broken off."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import grpc
from grpc import aio

from tests.attacks.case import Broken, Case, Draw, Family, Verdict, edited, shown
from tests.attacks.fixtures import Fixtures
from tests.checkpoints import save_checkpoints
from tests.security.support import METHODS, engines_served, path_of, sound_messages, spoil, status

NEVER = {
    grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip
"""What no request may be answered with."""
METADATA = (
    ("x-request-id", "a;b,\"c"), ("x-request-id", "x" * 4000), ("traceparent", "00-zz-zz-00"), ("x-forwarded-for", "x"),
    ("authorization", "Bearer "), ("grpc-timeout", "x"), ("grpc-encoding", "gzip"), ("te", "x"), ("x-odd", "\x7e"),
)  # fmt: skip
CALL_S = 300.0


class Defects(logging.Handler):
    """Records with a traceback, or of a level from ERROR on."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.lines.append(record.getMessage())


async def _broken_off(address: str, path: str, message: bytes, after_s: float) -> None:
    """A stream that the caller leaves."""
    async with aio.insecure_channel(address) as channel:
        method: Any = channel.unary_stream(path)
        call = method(message)
        with suppress(TimeoutError, aio.AioRpcError):
            async with asyncio.timeout(after_s):
                await anext(aiter(call), None)
        call.cancel()


async def _garbage(address: str, data: bytes) -> None:
    """Bytes that are no HTTP/2."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with suppress(ConnectionError, TimeoutError):
        writer.write(data)
        await asyncio.wait_for(reader.read(1 << 16), 2)
    writer.close()


@asynccontextmanager
async def opened(fixtures: Fixtures) -> AsyncIterator[Draw]:
    folder = fixtures.folder / "wire"
    checkpoints = save_checkpoints(folder / "checkpoints")
    defects = Defects()
    logging.getLogger().addHandler(defects)
    async with engines_served(checkpoints, folder / "probes") as addresses:
        sound = await sound_messages(addresses["Target"])

        async def called(method: Any, message: bytes) -> grpc.StatusCode:
            return await status(addresses[method.containing_service.name], method, message, timeout_s=CALL_S)

        expected = {method.full_name: await called(method, _bytes_of(sound, method)) for method in METHODS}
        defects.lines.clear()

        def draw(chance: Random) -> Case:
            method = chance.choice(METHODS)
            address, path = addresses[method.containing_service.name], path_of(method)
            message = type(sound[method.input_type.full_name])()
            message.CopyFrom(sound[method.input_type.full_name])
            kind, what = (
                chance.choice(("field", "field", "bytes", "bytes", "broken off", "garbage", "method", "metadata")),
                "",
            )
            data = message.SerializeToString()
            if kind == "field":
                for _ in range(chance.randint(1, 4)):
                    spoil(message, chance)
                data = message.SerializeToString()
            elif kind == "bytes":
                data = edited(data, chance)
            elif kind == "garbage":
                data = chance.choice((b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) + chance.randbytes(
                    chance.randint(1, 400)
                )
            elif kind == "method":
                path = chance.choice((path + "x", path.lower(), "/", "", path.replace("v1", "v2"), path[:-1])) or "/x"
            odd, after_s = chance.choice(METADATA), chance.uniform(0, 0.05)
            what = f"{path} {odd[0] + '=' + odd[1] if kind == 'metadata' else ascii(data)}"

            async def act() -> None:
                if kind == "garbage":
                    await _garbage(address, data)
                elif kind == "broken off":
                    await _broken_off(address, path, data, after_s)
                elif kind in ("method", "metadata"):
                    is_stream = method.server_streaming and kind == "metadata"
                    answer = await _call(address, path, data, (odd,) if kind == "metadata" else (), is_stream)
                    if kind == "method" and answer is not grpc.StatusCode.UNIMPLEMENTED:
                        raise Broken(Verdict.MEDIUM, f"{path} got {answer}")
                elif (answer := await called(method, data)) in NEVER:
                    raise Broken(Verdict.MEDIUM, f"{answer}")

            async def run() -> None:
                defects.lines.clear()
                await act()
                if (after := await called(method, _bytes_of(sound, method))) is not expected[method.full_name]:
                    raise Broken(
                        Verdict.LOST, f"a sound call got {after} afterwards, {expected[method.full_name]} before"
                    )
                if defects.lines:
                    raise Broken(Verdict.MEDIUM, f"logged: {defects.lines[0][:300]}")

            return Case(kind, shown(what), run)

        try:
            yield draw
        finally:
            logging.getLogger().removeHandler(defects)


def _bytes_of(sound: dict[str, Any], method: Any) -> bytes:
    data: bytes = sound[method.input_type.full_name].SerializeToString()
    return data


async def _call(
    address: str, path: str, data: bytes, metadata: tuple[tuple[str, str], ...], is_stream: bool
) -> grpc.StatusCode | str:
    async with aio.insecure_channel(address) as channel:
        try:
            if is_stream:  # a unary call would wait for its deadline, since it reads one answer
                responses: Any = channel.unary_stream(path)
                async for _ in responses(data, timeout=CALL_S, metadata=metadata):
                    pass
            else:
                method: Any = channel.unary_unary(path)
                await method(data, timeout=CALL_S, metadata=metadata)
        except aio.AioRpcError as error:
            return error.code()
        except ValueError as error:  # the client's own library refuses it
            return str(error)
        return grpc.StatusCode.OK


FAMILY = Family("direct gRPC", 130, opened)
