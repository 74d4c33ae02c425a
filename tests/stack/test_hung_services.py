"""Services that hang in the middle of a generation while they answer health checks, as with a stuck GPU kernel.

`tests/chaos` kills and freezes whole processes.
"""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.stack import StackConfig
from tests.helpers.stack import Json, answer_of, is_text, served, up_to

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

STALL_S = 2.0
SERVICE = """
import os, time
from pathlib import Path
from semspec.engine.causal_lm import CausalLM
from semspec.probes.verifier import ProbePair
from semspec_{role}.__main__ import main

forward_step, judge = CausalLM.forward_step, ProbePair.judge

os.environ["SEMSPEC_STALL_S"] = "{stall_s}"

def wait():
    while Path({mark!r}).exists():
        time.sleep(0.01)

def hanging_step(self, *arguments):
    wait()
    time.sleep({step_s})
    return forward_step(self, *arguments)

def hanging_judge(self, *arguments):
    wait()
    return judge(self, *arguments)

CausalLM.forward_step, ProbePair.judge = hanging_step, hanging_judge
main()
"""
"""A service that hangs while a file exists, and takes `step_s` longer for each step."""
LONG: Json = {"seed": 4, "max_tokens": 600}
"""Seconds of work, of which a test sees the first segment."""
SHORT: Json = {"seed": 4, "max_tokens": 60}
ALONE = "ready, with the target alone: "


def hanging(config: StackConfig, role: str, mark: Path, step_s: float = 0.0) -> StackConfig:
    """Let the service of `role` hang while the file `mark` exists."""
    program = SERVICE.format(role=role, mark=str(mark), step_s=step_s, stall_s=STALL_S)
    return replace(config, commands={**config.commands, role: (sys.executable, "-c", program)})


@pytest.mark.parametrize("role", ["draft", "verifier"])
async def test_target_goes_on_alone_without_a_service_that_hangs(
    stack_config: StackConfig, tmp_path: Path, role: str
) -> None:
    mark = tmp_path / "hangs"
    async with served(hanging(stack_config, role, mark)) as running:
        async with running.streaming(**LONG, stream_options={"include_usage": True}) as stream:
            await up_to(is_text, stream)
            mark.touch()
            *_, last = [chunk async for chunk in stream]
        assert last["usage"]["completion_tokens"] == LONG["max_tokens"]
        assert last["semspec"]["fallback"].startswith(f"the {role} ")
        assert last["semspec"]["degraded"] is False
        _, line = await running.readiness()
        assert line.startswith(ALONE), "at once, however long a handshake takes"

        following = await running.answer(**SHORT)
        assert following["usage"]["completion_tokens"] == SHORT["max_tokens"]
        assert following["semspec"]["fallback"].startswith(f"the {role} ")
        assert following["semspec"]["target_ratio"] == 1
        assert "hang" in await running.until_ready(200, f"{ALONE}.* the {role} service.*")
        hung = f'semspec_gateway_service_hung_replicas{{service="{role}"}}'
        assert await running.metric(hung) == 1

        mark.unlink()
        await running.until_ready()
        assert (await running.answer(**SHORT))["semspec"]["fallback"] is None


async def test_requests_are_refused_while_the_target_hangs(
    stack_config: StackConfig, tmp_path: Path
) -> None:
    mark = tmp_path / "hangs"
    async with served(hanging(stack_config, "target", mark)) as running:
        whole = await running.answer(**SHORT)
        async with running.streaming(**LONG) as stream:
            await up_to(is_text, stream)
            mark.touch()
            chunks = await up_to(lambda chunk: "error" in chunk, stream)
        assert chunks[-1]["error"]["code"] == "service_unavailable"
        assert "hang" in await running.until_ready(503, "no handshake with the target service: .*")
        refused = await running.chat(**SHORT)
        assert refused.status_code == 503 and "retry-after" in refused.headers
        assert refused.json()["error"]["code"] == "service_unavailable"

        mark.unlink()
        await running.until_ready()
        assert answer_of(await running.answer(**SHORT)) == answer_of(whole)


async def test_busy_service_is_not_taken_for_a_hung_one(
    stack_config: StackConfig, tmp_path: Path
) -> None:
    """Each step takes a tenth of the limit, and calls wait much longer than the limit for their result."""
    busy = hanging(stack_config, "target", tmp_path / "hangs", STALL_S / 10)
    async with served(busy) as running:
        requests = [running.answer(seed=seed, max_tokens=30) for seed in range(4)]
        answers = await asyncio.gather(*requests)
        assert await running.metric("semspec_gateway_resumptions_total") == 0
    assert [answer["semspec"]["fallback"] for answer in answers] == [None] * 4
