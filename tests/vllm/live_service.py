"""Services over vLLM as the gateway and an operator see them: answers, refusals, and how they end."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from semspec.demo.problems import SPLITS, make_problem
from semspec.engine.vllm.engine import EXIT_ENGINE_ENDED
from semspec.stack import Stack, StackConfig
from tests.test_stack import left_alive
from tests.vllm.support import KV_BYTES, START_TIMEOUT_S, TARGET

pytestmark = pytest.mark.asyncio(loop_scope="session")

SETTINGS = {
    f"SEMSPEC_{role}_{name}": value
    for role in ("DRAFT", "TARGET")
    for name, value in {"ENGINE": "vllm", "KV_BYTES": str(KV_BYTES)}.items()
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncIterator[Stack]:
    """A stack whose draft and target run in vLLM. Its last tests kill both."""
    async with Stack(StackConfig(environment=SETTINGS, start_timeout_s=START_TIMEOUT_S)) as stack:
        yield stack


async def answers(stack: Stack, number: int, **fields: Any) -> list[str]:
    """The texts of answers to as many questions, with reasoning."""
    texts = []
    async with httpx.AsyncClient(base_url=stack.base_url, headers=stack.headers, timeout=300, trust_env=False) as http:
        for index in range(number):
            question = make_problem(SPLITS["report"][index]).question
            body = {"model": "semspec", "messages": [{"role": "user", "content": question}], "seed": index} | fields
            response = await http.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            texts.append(_text(response.json()))
    return texts


def _text(answer: Any) -> str:
    message = answer["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


async def test_gateway_answers_with_the_same_text_over_either_engine(served: Stack) -> None:
    """A differing text is allowed where a draw is within 1e-5 of a boundary, which `live_parity` checks: rare enough
    that at most one of these answers may differ."""
    number = 6
    strategies: list[dict[str, Any]] = [{"semspec": {"strategy": one}} for one in ("target", "semantic")]
    async with Stack(StackConfig(start_timeout_s=START_TIMEOUT_S)) as ours:
        for fields in (*strategies, {"temperature": 0}):
            mine, expected = await answers(served, number, **fields), await answers(ours, number, **fields)
            assert all(expected)
            assert sum(a != b for a, b in zip(mine, expected, strict=True)) <= 1


async def test_core_that_is_killed_ends_its_service_with_the_reason(served: Stack) -> None:
    service = psutil.Process(served.processes["draft"].pid)
    [core] = [one for one in service.children(recursive=True) if "EngineCore" in one.name() or "VLLM" in one.name()]
    log = served.processes["draft"].log
    core.kill()
    assert left_alive([service.pid, core.pid]) == []
    assert "cannot serve any longer: vLLM ended" in Path(log).read_text()


async def test_service_that_is_killed_takes_its_core_with_it(served: Stack) -> None:
    service = psutil.Process(served.processes["target"].pid)
    family = [one.pid for one in service.children(recursive=True)]
    assert family
    service.send_signal(signal.SIGKILL)
    assert left_alive([service.pid, *family]) == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"VLLM_OPTIONS": '{"tensor_parallel": 2}'},
            r"vLLM has no option tensor_parallel; did you mean tensor_parallel_",
        ),
        ({"VLLM_OPTIONS": '{"enable_lora": true}'}, r"enable_lora cannot be set, since adapters are not supported"),
        ({"VLLM_QUANTIZATION": "fp1"}, r"fp1.*vllm_quantization"),
        ({"DEVICE": "cuda"}, r"this vLLM is built for a CPU; set the device to auto"),
    ],
)
async def test_settings_that_vllm_cannot_follow_end_the_start_with_one_line(
    settings: dict[str, str], named: str
) -> None:
    code, lines = start(TARGET, settings)
    assert code == EXIT_ENGINE_ENDED
    assert [line for line in lines if "Traceback" in line] == []
    assert re.search(named, lines[-1]), lines[-1]


async def test_memory_that_holds_no_request_ends_the_start_with_one_line() -> None:
    """Found by vLLM itself, in its own process."""
    code, lines = start(TARGET, {"KV_BYTES": "100000"})
    assert (code, [line for line in lines if "Traceback" in line]) == (EXIT_ENGINE_ENDED, [])
    assert "set more kv_bytes" in lines[-1]


async def test_heads_that_the_cpu_build_lacks_are_refused(checkpoints: dict[str, Path]) -> None:
    code, lines = start(checkpoints["qwen2"], {})
    assert code == EXIT_ENGINE_ENDED
    assert "vLLM's CPU build has no attention for heads of" in lines[-1]


def start(model: Path, settings: dict[str, str]) -> tuple[int, list[str]]:
    """Exit code and log of a target service that must not start."""
    own = {"ENGINE": "vllm", "MODEL": str(model), "KV_BYTES": str(KV_BYTES), "PORT": "0"} | settings
    environment = os.environ | {f"SEMSPEC_TARGET_{name}": value for name, value in own.items()}
    command = [sys.executable, "-m", "semspec.services.target"]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
    )
    return ended.returncode, ended.stderr.strip().splitlines()
