"""Services that hang in the middle of a generation while they answer health checks, as with a stuck GPU kernel.

`tests/chaos` kills and freezes whole processes.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.stack import StackConfig
from tests.helpers.stack import Json, is_text, served, up_to

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

SERVICE = """
import os, time
from pathlib import Path
from semspec.engine.causal_lm import CausalLM
from semspec.probes.verifier import ProbePair
from semspec_{role}.__main__ import main

forward_step, judge = CausalLM.forward_step, ProbePair.judge

os.environ["SEMSPEC_STALL_S"] = "2"

def wait():
    while Path({mark!r}).exists():
        time.sleep(0.01)

def hanging_step(self, *arguments):
    wait()
    return forward_step(self, *arguments)

def hanging_judge(self, *arguments):
    wait()
    return judge(self, *arguments)

CausalLM.forward_step, ProbePair.judge = hanging_step, hanging_judge
main()
"""
"""A service that hangs while a file exists."""
LONG: Json = {"seed": 4, "max_tokens": 600}
"""Seconds of work, of which a test sees the first segment."""
SHORT: Json = {"seed": 4, "max_tokens": 60}
ALONE = "ready, with the target alone: "


@pytest.mark.parametrize("role", ["draft", "verifier"])
async def test_target_goes_on_alone_without_a_service_that_hangs(
    stack_config: StackConfig, tmp_path: Path, role: str
) -> None:
    mark = tmp_path / "hangs"
    program = SERVICE.format(role=role, mark=str(mark))
    commands = {**stack_config.commands, role: (sys.executable, "-c", program)}
    async with served(replace(stack_config, commands=commands)) as running:
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
