"""Requests per second of the bundled pair at several numbers of streams, next to vLLM with the target alone, on the
same cores: `python -m studies.streams run FILE --vllm .work/vllm/bin/python`, then `report FILE`.

All systems run at once, and one at a time is asked: in each block every number of streams is measured on every system,
in an order that is shuffled anew. A run that is killed goes on with the block that it was in.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
import numpy as np

from semspec.stack import BUNDLED_PAIR, Stack, StackConfig
from semspec.stack.listening import free_port
from semspec_demo.problems import SPLITS, make_problem

MODEL = "semspec-demo"
STREAMS = (1, 2, 4, 8, 16, 32, 64)
REQUESTS_PER_STREAM, LEAST_REQUESTS = 4, 24
NUM_RESAMPLES = 2000
MAX_TOKENS = 512
TEMPERATURE = 0.6


@dataclass(frozen=True, slots=True)
class System:
    """A server, and what it is asked for."""

    http: httpx.AsyncClient
    model: str


@asynccontextmanager
async def semspec(is_adaptive: bool) -> AsyncIterator[httpx.AsyncClient]:
    """The bundled pair with all services, on this machine's own engine."""
    environment = {
        "SEMSPEC_GATEWAY_LOAD_ADAPTIVE": str(is_adaptive).lower(),
        "SEMSPEC_GATEWAY_MAX_CONCURRENT": str(max(STREAMS)),
    }
    async with (
        Stack(StackConfig(environment=environment)) as stack,
        client(stack.base_url, stack.headers) as http,
    ):
        yield http


@asynccontextmanager
async def vllm(python: str, threads: int, dtype: str) -> AsyncIterator[httpx.AsyncClient]:
    """vLLM's own server with the target alone."""
    port = free_port("127.0.0.1", 0)
    arguments = {
        "--port": port,
        "--served-model-name": MODEL,
        "--dtype": dtype,
        "--max-model-len": 2048,
        "--max-num-seqs": max(STREAMS),
        "--generation-config": "vllm",
    }
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    process = await asyncio.create_subprocess_exec(
        python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(BUNDLED_PAIR / "target"),
        *(str(word) for argument in arguments.items() for word in argument),
        "--no-enable-log-requests",
        env=environment,
    )
    try:
        async with client(f"http://127.0.0.1:{port}", {}) as http:
            await ready(http, process)
            yield http
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def client(url: str, headers: dict[str, str]) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=max(STREAMS))
    return httpx.AsyncClient(
        base_url=url, headers=headers, timeout=600, limits=limits, trust_env=False
    )


async def ready(http: httpx.AsyncClient, process: asyncio.subprocess.Process) -> None:
    """Raises: SystemExit when the server ends."""
    while True:
        if process.returncode is not None:
            raise SystemExit(f"vLLM ended with {process.returncode}")
        try:
            if (await http.get("/health")).is_success:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(1)


async def measure(system: System, streams: int, first: int) -> dict[str, float]:
    """Answer questions from number `first` on, `streams` at once."""
    room = asyncio.Semaphore(streams)
    seeds = SPLITS["report"]

    async def ask(number: int) -> int:
        body = {
            "model": system.model,
            "messages": [
                {"role": "user", "content": make_problem(seeds[number % len(seeds)]).question}
            ],
            "temperature": TEMPERATURE,
            "max_tokens": MAX_TOKENS,
            "seed": number,
        }
        async with room:
            response = await system.http.post("/v1/chat/completions", json=body)
        response.raise_for_status()
        return int(response.json()["usage"]["completion_tokens"])

    count = max(LEAST_REQUESTS, REQUESTS_PER_STREAM * streams)
    start = time.perf_counter()
    tokens = await asyncio.gather(*map(ask, range(first, first + count)))
    wall_s = time.perf_counter() - start
    return {"requests_per_s": count / wall_s, "tokens_per_s": sum(tokens) / wall_s}


async def run(options: argparse.Namespace) -> None:
    """Append one line for each system, number of streams and block."""
    done = {(row["block"], row["streams"], row["system"]) for row in rows_in(options.file)}
    async with AsyncExitStack() as opened:
        plain = await opened.enter_async_context(semspec(is_adaptive=False))
        adaptive = await opened.enter_async_context(semspec(is_adaptive=True))
        systems = {
            "semantic": System(plain, MODEL),
            "target": System(plain, f"{MODEL}:target"),
            "adaptive": System(adaptive, MODEL),
        }
        if options.vllm:
            server = vllm(options.vllm, options.threads, options.dtype)
            systems["vLLM"] = System(await opened.enter_async_context(server), MODEL)
        for system in systems.values():
            await measure(system, 8, 0)
        for block in range(options.blocks):
            cells = [(streams, name) for streams in options.streams for name in systems]
            Random(block).shuffle(cells)
            for streams, name in cells:
                if (block, streams, name) in done:
                    continue
                found = await measure(systems[name], streams, 1000 * (block + 1))
                row = {"block": block, "streams": streams, "system": name} | found
                with options.file.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(*row.values(), flush=True)


def rows_in(file: Path) -> list[dict[str, float | str]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def report(file: Path) -> str:
    """Return the table of medians and, in brackets, geometric means of ratios over blocks with 95% intervals."""
    rates: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows_in(file):
        key = str(row["system"]), int(row["streams"])
        rates.setdefault(key, {})[int(row["block"])] = float(row["requests_per_s"])
    systems = list(dict.fromkeys(system for system, _ in rates))
    pairs = [(a, b) for a, b in (("semantic", "vLLM"), ("semantic", "target")) if b in systems]
    lines = [
        f"| streams | {' | '.join(systems)} | {' | '.join(f'{a} / {b}' for a, b in pairs)} | adaptive / the better |",
        "|---" * (len(systems) + len(pairs) + 2) + "|",
    ]
    for streams in sorted({streams for _, streams in rates}):
        at = {system: rates[system, streams] for system in systems}
        blocks = sorted(set.intersection(*(set(values) for values in at.values())))
        by_block = {
            system: np.array([values[block] for block in blocks]) for system, values in at.items()
        }
        better = max(("semantic", "target"), key=lambda system: np.median(by_block[system]))
        compared = [*pairs, ("adaptive", better)]
        cells = [f"{np.median(by_block[system]):.2f}" for system in systems]
        cells += [ratio(by_block[a], by_block[b]) for a, b in compared]
        lines.append(f"| {streams} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ratio(new: np.ndarray, old: np.ndarray) -> str:
    """Return the geometric mean of `new / old` over blocks, with its 95% bootstrap interval."""
    logs = np.log(new / old)
    drawn = np.random.default_rng(0).choice(logs, (NUM_RESAMPLES, len(logs))).mean(1)
    low, high = np.exp(np.quantile(drawn, (0.025, 0.975)))
    return f"{np.exp(logs.mean()):.2f} ({low:.2f} to {high:.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run")
    command.add_argument("file", type=Path, help="JSON lines to append to")
    command.add_argument("--vllm", help="Python with vLLM; unset: without vLLM")
    command.add_argument("--threads", type=int, default=2, help="of vLLM")
    command.add_argument("--dtype", default="auto", help="of vLLM's weights")
    command.add_argument("--blocks", type=int, default=3)
    command.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    command = commands.add_parser("report")
    command.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "run":
        asyncio.run(run(options))
    else:
        print(report(options.file))


if __name__ == "__main__":
    main()
