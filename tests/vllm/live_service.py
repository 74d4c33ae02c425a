"""Services over vLLM as the gateway and an operator see them: answers, refusals, and how they end."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from semspec.engine.vllm.engine import EXIT_ENGINE_ENDED
from semspec.stack import Stack, StackConfig
from semspec_demo.problems import SPLITS, make_problem
from tests.helpers.processes import left_alive
from tests.vllm.support import START_TIMEOUT_S, TARGET

pytestmark = pytest.mark.asyncio(loop_scope="session")

COMMAND = [sys.executable, "-m", "semspec_target"]
NUM_STREAMS = 8
TEXTS = ("reasoning_content", "content")
STALL_S = 5.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncIterator[Stack]:
    """`SEMSPEC_TARGET_ENGINE=vllm semspec serve`: the CPU build has no attention for the draft's small heads."""
    environment = {"SEMSPEC_TARGET_ENGINE": "vllm", "SEMSPEC_STALL_S": str(STALL_S)}
    async with Stack(
        StackConfig(environment=environment, start_timeout_s=START_TIMEOUT_S)
    ) as stack:
        yield stack


async def answers(stack: Stack, number: int, **fields: Any) -> list[str]:
    """The texts of answers to as many questions, with reasoning."""
    texts = []
    async with client(stack) as http:
        for index in range(number):
            response = await http.post("/v1/chat/completions", json=body(index) | fields)
            assert response.status_code == 200, response.text
            message = response.json()["choices"][0]["message"]
            texts.append((message.get("reasoning_content") or "") + (message.get("content") or ""))
    return texts


def client(stack: Stack) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=stack.base_url, headers=stack.headers, timeout=300, trust_env=False
    )


def body(index: int) -> dict[str, Any]:
    """A request with a question of its own."""
    messages = [{"role": "user", "content": make_problem(SPLITS["report"][index]).question}]
    return {"model": "semspec-demo", "messages": messages, "seed": index}


@asynccontextmanager
async def streaming(stack: Stack) -> AsyncIterator["asyncio.Future[list[str]]"]:
    """The texts of `NUM_STREAMS` streams, all of which have begun."""
    begun = asyncio.Barrier(NUM_STREAMS + 1)
    async with client(stack) as http:
        texts = asyncio.gather(*(_text(http, index, begun) for index in range(NUM_STREAMS)))
        await begun.wait()
        yield texts


async def _text(http: httpx.AsyncClient, index: int, begun: asyncio.Barrier) -> str:
    text, last = "", ""
    async with http.stream(
        "POST", "/v1/chat/completions", json=body(index) | {"stream": True}
    ) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                if not last:
                    await begun.wait()
                last = line.removeprefix("data: ")
                choices = [] if last == "[DONE]" else json.loads(last)["choices"]
                text += "".join(one["delta"].get(name) or "" for one in choices for name in TEXTS)
    assert last == "[DONE]"
    return text


def core_of(stack: Stack) -> psutil.Process:
    """The target's process that runs the model."""
    family = psutil.Process(stack.processes["target"].pid).children(recursive=True)
    [core] = [
        one
        for one in family
        if "EngineCore" in one.name() or "EngineCore" in " ".join(one.cmdline())
    ]
    return core


async def readiness(stack: Stack) -> tuple[int, str]:
    """Status code and text of `/ready`."""
    async with client(stack) as http:
        response = await http.get("/ready")
    told = response.json()
    return response.status_code, told["detail"] if response.status_code == 200 else told["error"][
        "message"
    ]


async def test_gateway_answers_with_the_same_text_over_either_engine(served: Stack) -> None:
    """A differing text is allowed where a draw is within 1e-5 of a boundary, which `live_parity` checks: rare enough
    that at most one of these answers may differ."""
    number = 3
    strategies: list[dict[str, Any]] = [
        {"semspec": {"strategy": one}} for one in ("target", "semantic")
    ]
    async with Stack(StackConfig(start_timeout_s=START_TIMEOUT_S)) as ours:
        for fields in (*strategies, {"temperature": 0}):
            mine = await answers(served, number, **fields)
            expected = await answers(ours, number, **fields)
            assert all(expected)
            assert sum(a != b for a, b in zip(mine, expected, strict=True)) <= 1


async def test_streams_outlast_a_core_that_freezes_and_one_that_is_killed(served: Stack) -> None:
    """By the default of how long a gateway waits: vLLM takes more than 50 s to be back."""
    async with streaming(served) as texts:
        expected = await texts
    core = core_of(served)
    async with streaming(served) as texts:
        core.suspend()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while "hang" not in (await readiness(served))[1]:
                    await asyncio.sleep(0.1)
        finally:
            core.resume()
        assert await texts == expected
    target = served.processes["target"]
    service = psutil.Process(target.pid)
    family = [service.pid, *(one.pid for one in service.children(recursive=True))]
    async with streaming(served) as texts:
        core.kill()
        assert left_alive(family) == []
        assert "cannot serve any longer: vLLM ended: it was killed" in target.log.read_text()
        await served.restart("target")
        assert await texts == expected


@pytest.mark.parametrize("moment", ["its core has begun", "it serves"])
async def test_service_that_is_killed_takes_its_core_with_it(tmp_path: Path, moment: str) -> None:
    port = tmp_path / "port"
    own = environment(TARGET, {}) | {"SEMSPEC_PORT_FILE": str(port)}
    service = subprocess.Popen(
        COMMAND, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    family, is_time, deadline = [], False, time.monotonic() + START_TIMEOUT_S
    while service.poll() is None and not is_time and time.monotonic() < deadline:
        with suppress(psutil.NoSuchProcess):  # vLLM also runs commands that end
            family = psutil.Process(service.pid).children(recursive=True)
            has_core = any("spawn_main" in " ".join(one.cmdline()) for one in family)
            is_time = (
                port.exists() if moment == "it serves" else has_core
            )  # then the core has another name
        time.sleep(0.02)
    assert service.poll() is None and family and is_time
    service.kill()
    service.wait()
    assert left_alive([one.pid for one in family], timeout_s=10) == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"VLLM_OPTIONS": '{"quantization": "fp1"}'}, r"fp1.*quantization in vllm_options"),
        ({"DEVICE": "cuda"}, r"this vLLM is built for a CPU; set the device to auto"),
        ({"KV_BYTES": "100000"}, "set more kv_bytes"),  # found by vLLM itself, in its own process
    ],
)
async def test_bad_settings_end_the_start(settings: dict[str, str], named: str) -> None:
    code, lines = start(TARGET, settings)
    assert (code, [line for line in lines if "Traceback" in line]) == (EXIT_ENGINE_ENDED, [])
    assert re.search(named, lines[-1]), lines[-1]


def environment(model: Path, settings: dict[str, str]) -> dict[str, str]:
    """Of a target service."""
    own = {"ENGINE": "vllm", "MODEL": str(model), "PORT": "0"} | settings
    return os.environ | {f"SEMSPEC_TARGET_{name}": value for name, value in own.items()}


def start(model: Path, settings: dict[str, str]) -> tuple[int, list[str]]:
    """Exit code and log of a target service that must not start."""
    ended = subprocess.run(
        COMMAND,
        env=environment(model, settings),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    return ended.returncode, ended.stderr.strip().splitlines()
