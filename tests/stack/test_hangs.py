"""Services that answer health checks while their engine makes no step, as with a stuck GPU kernel."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.stack import StackConfig
from tests.stack.support import Json, Running, answer_of, served, until_first_segment

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

STALL_S = 2.0
SERVICE = """
import os, time
from pathlib import Path
from semspec.engine.causal_lm import CausalLM
from semspec.probes.verifier import ProbePair
from semspec.services.{role}.__main__ import main

forward_step, judge = CausalLM.forward_step, ProbePair.judge

os.environ["SEMSPEC_STALL_S"] = "{stall_s}"

def hanging_step(self, *arguments):
    while Path({mark!r}).exists():
        time.sleep(0.01)
    time.sleep({step_s})
    return forward_step(self, *arguments)

def hanging_judge(self, *arguments):
    while Path({mark!r}).exists():
        time.sleep(0.01)
    return judge(self, *arguments)

CausalLM.forward_step, ProbePair.judge = hanging_step, hanging_judge
main()
"""
"""A service that hangs while a file exists, and takes `step_s` longer for each step."""
LONG: Json = {"seed": 4, "max_tokens": 300}
SHORT: Json = {"seed": 4, "max_tokens": 60}


@asynccontextmanager
async def serving(config: StackConfig, role: str, mark: Path, step_s: float = 0.0) -> AsyncIterator[Running]:
    program = SERVICE.format(role=role, mark=str(mark), step_s=step_s, stall_s=STALL_S)
    config = replace(
        config,
        commands={**config.commands, role: (sys.executable, "-c", program)},
    )
    async with served(config) as running:
        yield running


async def num_hung(running: Running, role: str) -> float:
    name = f'semspec_gateway_service_hung_replicas{{service="{role}"}} '
    lines = (await running.http.get("/metrics")).text.splitlines()
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.parametrize("role", ["draft", "verifier"])
async def test_target_goes_on_alone_when_a_service_hangs(stack_config: StackConfig, role: str, tmp_path: Path) -> None:
    mark = tmp_path / "hang"
    async with serving(stack_config, role, mark) as running:
        async with running.streaming(**LONG) as stream:
            await until_first_segment(stream)
            mark.touch()
            chunks = [chunk async for chunk in stream]
        assert chunks[-1]["semspec"]["fallback"] == f"the {role} does not answer"
        assert await num_hung(running, role) == 1
        assert "hang" in await running.until_ready(200, f"ready, with the target alone: .* the {role} service.*")
        assert (await running.answer(**SHORT))["semspec"]["target_ratio"] == 1
        mark.unlink()
        await running.until_ready()
        assert (await running.answer(**SHORT))["semspec"]["fallback"] is None


async def test_hung_target_is_reported_and_serves_again_when_it_goes_on(
    stack_config: StackConfig, tmp_path: Path
) -> None:
    mark = tmp_path / "hang"
    async with serving(stack_config, "target", mark) as running:
        whole = await running.answer(**SHORT)
        async with running.streaming(**LONG) as stream:
            await until_first_segment(stream)
            mark.touch()
            chunks = [chunk async for chunk in stream]
        assert chunks[-1]["error"]["code"] == "service_unavailable"
        assert "hang" in await running.until_ready(503, "no handshake with the target service: .*")
        refused = await running.chat(**SHORT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "service_unavailable")
        assert "retry-after" in refused.headers
        mark.unlink()
        await running.until_ready()
        assert await num_hung(running, "target") == 0
        assert answer_of(await running.answer(**SHORT)) == answer_of(whole)


async def test_busy_service_is_not_taken_for_a_hung_one(stack_config: StackConfig, tmp_path: Path) -> None:
    """Each step takes a tenth of the limit, and calls wait much longer than the limit for their result."""
    async with serving(stack_config, "target", tmp_path / "never", STALL_S / 10) as running:
        bodies: list[Json] = [{"seed": seed, "max_tokens": 30} for seed in range(4)]
        answers = await asyncio.gather(*(running.answer(**body) for body in bodies))
        lines = (await running.http.get("/metrics")).text.splitlines()
    assert [answer["semspec"]["fallback"] for answer in answers] == [None] * 4
    assert "semspec_gateway_resumptions_total 0.0" in lines
