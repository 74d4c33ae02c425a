"""Requests per second of the bundled pair at several numbers of streams, next to vLLM with the target alone, on the
same cores: `python -m studies.streams run FILE --vllm .work/vllm/bin/python`, then `report FILE`.

All systems are started, and one at a time is asked: in each block every number of streams is measured on every system,
in an order that is shuffled anew. No two cells of a block ask the same question. No request has a seed, since requests
with a seed are always drafted. A run that is killed goes on with the block that it was in.
"""

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np

from semspec.reporting.files import complete_lines
from semspec.stack import BUNDLED_PAIR, Stack, StackConfig
from semspec.stack.listening import free_port
from semspec.stack.parent_death import bound_command
from semspec.stack.supervisor import run as run_with_signals
from semspec_demo.problems import SPLITS, make_problem

MODEL = "semspec-demo"
STREAMS = (1, 2, 4, 8, 16, 32, 64)
REQUESTS_PER_STREAM, LEAST_REQUESTS = 5, 20
SAMPLING = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 512}
OURS = ("semantic", "target", "adaptive")
QUIET = ("--no-enable-log-requests", "--disable-uvicorn-access-log")
START_S, STOP_S = 300.0, 20.0


@dataclass(frozen=True, slots=True)
class System:
    """A server, and the model that it is asked for."""

    http: httpx.AsyncClient
    model: str


@asynccontextmanager
async def semspec(is_adaptive: bool, streams: int) -> AsyncIterator[httpx.AsyncClient]:
    """The bundled pair with all services, on this machine's own engine."""
    environment = {
        "SEMSPEC_GATEWAY_LOAD_ADAPTIVE": str(is_adaptive).lower(),
        "SEMSPEC_GATEWAY_MAX_CONCURRENT": str(streams),
    }
    async with (
        Stack(StackConfig(environment=environment)) as stack,
        client(stack.base_url, stack.headers, streams) as http,
    ):
        yield http


@asynccontextmanager
async def vllm(
    python: str, threads: int, dtype: str, streams: int
) -> AsyncIterator[httpx.AsyncClient]:
    """vLLM's own server with the target alone. Raises: SystemExit when it ends, or isn't ready in time."""
    port = free_port("127.0.0.1", 0)
    arguments = {
        "--model": BUNDLED_PAIR / "target",
        "--port": port,
        "--served-model-name": MODEL,
        "--dtype": dtype,
        "--max-model-len": 2048,
        "--max-num-seqs": streams,
        "--generation-config": "vllm",
    }
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [python, "-m", "vllm.entrypoints.openai.api_server", *QUIET]
    command += [str(word) for argument in arguments.items() for word in argument]
    process = await asyncio.create_subprocess_exec(
        *bound_command(command), env=environment, start_new_session=True
    )
    try:
        async with client(f"http://127.0.0.1:{port}", {}, streams) as http:
            await _ready(http, process)
            yield http
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def _ready(http: httpx.AsyncClient, process: asyncio.subprocess.Process) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.returncode is None:
        with suppress(httpx.TransportError):
            if (await http.get("/health", timeout=5)).is_success:
                return
        await asyncio.sleep(1)
    raise SystemExit("vLLM has ended, or was not ready in time")


def client(url: str, headers: dict[str, str], streams: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=streams)
    return httpx.AsyncClient(
        base_url=url, headers=headers, timeout=600, limits=limits, trust_env=False
    )


async def measure(system: System, streams: int, seeds: Sequence[int]) -> dict[str, float]:
    """Ask the problems of `seeds`, `streams` at once. Rates are of the time in which as many were in flight."""
    waiting = iter(seeds)
    ended: list[dict[str, Any]] = []
    full_s, num_full = 0.0, 0
    start = time.perf_counter()

    async def stream() -> None:
        nonlocal full_s, num_full
        for seed in waiting:
            question = {"role": "user", "content": make_problem(seed).question}
            body = SAMPLING | {"model": system.model, "messages": [question]}
            response = await system.http.post("/v1/chat/completions", json=body)
            response.raise_for_status()
            ended.append(response.json())
            if len(ended) <= len(seeds) - streams + 1:
                full_s, num_full = time.perf_counter() - start, len(ended)

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    tokens = sum(answer["usage"]["completion_tokens"] for answer in ended[:num_full])
    undrafted = sum(answer.get("semspec", {}).get("num_undrafted", 0) for answer in ended)
    return {
        "requests_per_s": num_full / full_s,
        "tokens_per_s": tokens / full_s,
        "undrafted": undrafted,
    }


async def run(options: argparse.Namespace) -> int:
    """Append one line for each system, number of streams and block. Return the exit code."""
    settings = {"dtype": options.dtype, "threads": options.threads, "has_vllm": bool(options.vllm)}
    if not options.file.exists():
        options.file.write_text(json.dumps(settings) + "\n")
    first, *rows = rows_in(options.file)
    if first != settings:
        raise SystemExit(f"{options.file} has rows of other settings: {first}")
    done = {(row["block"], row["streams"], row["system"]) for row in rows}
    most = max(options.streams)
    async with AsyncExitStack() as opened:
        plain = await opened.enter_async_context(semspec(is_adaptive=False, streams=most))
        adaptive = await opened.enter_async_context(semspec(is_adaptive=True, streams=most))
        systems = {
            "semantic": System(plain, MODEL),
            "target": System(plain, f"{MODEL}:target"),
            "adaptive": System(adaptive, MODEL),
        }
        if options.vllm:
            server = vllm(options.vllm, options.threads, options.dtype, most)
            systems["vLLM"] = System(await opened.enter_async_context(server), MODEL)
        unused = iter(SPLITS["train"][:1_000_000])
        for streams in options.streams:  # load-adaptive drafting learns rates for each load
            for name in ("adaptive", *systems):
                await measure(systems[name], streams, [next(unused) for _ in range(2 * streams)])
        for block in range(options.blocks):
            problems = iter(SPLITS["report"])
            cells = [(streams, name) for streams in options.streams for name in systems]
            Random(block).shuffle(cells)
            for streams, name in cells:
                count = max(LEAST_REQUESTS, REQUESTS_PER_STREAM * streams)
                seeds = [next(problems) for _ in range(count)]
                if (block, streams, name) in done:
                    continue
                found = await measure(systems[name], streams, seeds)
                row = {"block": block, "streams": streams, "system": name} | found
                with options.file.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(*row.values(), flush=True)
    return 0


def rows_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in complete_lines(file)]


def report(file: Path) -> str:
    """Return the table of medians over blocks, and of the ratios within blocks: their geometric mean and range."""
    rates: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows_in(file)[1:]:
        rates.setdefault((row["system"], row["streams"]), {})[row["block"]] = row["requests_per_s"]
    systems = [*OURS, *({system for system, _ in rates} - {*OURS})]
    pairs = [("semantic", other) for other in systems if other not in ("semantic", "adaptive")]
    lines = [
        f"| streams | {' | '.join(systems)} | {' | '.join(f'{a} / {b}' for a, b in pairs)} | adaptive / the better |",
        "|---" * (len(systems) + len(pairs) + 2) + "|",
    ]
    for streams in sorted({streams for _, streams in rates}):
        at = {system: rates.get((system, streams), {}) for system in systems}
        blocks = sorted(set.intersection(*(set(values) for values in at.values())))
        if not blocks:
            continue
        by_block = {
            system: np.array([values[block] for block in blocks]) for system, values in at.items()
        }
        better = max(("semantic", "target"), key=lambda system: np.median(by_block[system]))
        compared = [*pairs, ("adaptive", better)]
        cells = [f"{np.median(by_block[system]):.2f}" for system in systems]
        cells += [_ratio(by_block[a], by_block[b]) for a, b in compared]
        lines.append(f"| {streams} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(new: np.ndarray, old: np.ndarray) -> str:
    ratios = new / old
    return f"{np.exp(np.log(ratios).mean()):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands. Return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run")
    command.add_argument("file", type=Path, help="JSON lines to append to")
    command.add_argument("--vllm", help="Python with vLLM; unset: without vLLM")
    command.add_argument("--threads", type=int, default=2, help="of vLLM")
    command.add_argument("--dtype", default="float32", help="of vLLM's weights")
    command.add_argument("--blocks", type=int, default=3)
    command.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    command = commands.add_parser("report")
    command.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "run":
        return run_with_signals(run(options))
    print(report(options.file))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
