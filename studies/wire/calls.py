"""What a call costs on either side of a socket: a unary call, or one on a stream that carries call after call.

python -m studies.wire.calls    two minutes; results/calls.json
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from grpc import aio, method_handlers_generic_handler, stream_stream_rpc_method_handler, unary_unary_rpc_method_handler

from semspec.bench.environment import environment
from semspec.stack import BUNDLED_PAIR
from semspec.training.files import write_json

RESULTS = Path(__file__).parent / "results"
MESSAGE = os.urandom(1200)
NUM_CALLS, ROUNDS, LEVELS = 2000, 5, (1, 4, 24)


async def serve() -> None:
    """Answer every message with itself."""

    async def echo(request: bytes, _: object) -> bytes:
        return request

    async def echo_all(_: object, context: Any) -> None:
        while (request := await context.read()) is not aio.EOF:
            await context.write(request)

    handlers: Any = {
        "Unary": unary_unary_rpc_method_handler(echo),
        "Stream": stream_stream_rpc_method_handler(echo_all),
    }
    server = aio.server()
    server.add_generic_rpc_handlers((method_handlers_generic_handler("Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


async def cost(call: Callable[[], Awaitable[object]], level: int, server: psutil.Process) -> dict[str, float]:
    """Microseconds a call, at so many calls in flight."""
    processes = {"client": psutil.Process(), "server": server}
    numbers = iter(range(NUM_CALLS))

    async def work() -> None:
        for _ in numbers:
            await call()

    before = {name: sum(one.cpu_times()[:2]) for name, one in processes.items()}
    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(level)))
    wall = time.perf_counter() - started
    spent = {name: sum(one.cpu_times()[:2]) - before[name] for name, one in processes.items()}
    return {name: 1e6 * part / NUM_CALLS for name, part in (spent | {"wall": wall}).items()}


async def measure(port: int, server: psutil.Process) -> dict[str, dict[str, float]]:
    """Medians by level and kind of call; rounds alternate between the kinds."""
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        unary: Any = channel.unary_unary("/Echo/Unary")
        open_stream: Any = channel.stream_stream("/Echo/Stream")
        idle = [open_stream() for _ in range(max(LEVELS))]

        async def ask() -> None:
            await unary(MESSAGE)

        async def ask_on_stream() -> None:
            stream = idle.pop()
            await stream.write(MESSAGE)
            await stream.read()
            idle.append(stream)

        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(ROUNDS):
            for level in LEVELS:
                for name, call in (("unary", ask), ("stream", ask_on_stream)):
                    found.setdefault(f"{name}, {level} in flight", []).append(await cost(call, level, server))
        return {name: {key: median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().serve:
        asyncio.run(serve())
        return
    with subprocess.Popen([sys.executable, "-m", __spec__.name, "--serve"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            found = asyncio.run(measure(int(process.stdout.readline()), psutil.Process(process.pid)))
        finally:
            process.terminate()
    write_json(RESULTS / "calls.json", {"microseconds": found, "environment": environment(BUNDLED_PAIR)})
    for name, one in found.items():
        sys.stdout.write(f"{name}: " + ", ".join(f"{key} {value:.0f} us" for key, value in one.items()) + "\n")


if __name__ == "__main__":
    main()
