"""Services that are killed in the middle of a generation, or hang while they answer health checks, as with a stuck GPU
kernel: what their absence is to a client."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from semspec.stack import StackConfig
from tests.helpers.processes import Process
from tests.helpers.stack import Json, Running, answer_of, is_text, served, up_to

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
LONG: Json = {"seed": 4, "max_tokens": 600}
"""Seconds of work, of which a test sees the first segment."""
SHORT: Json = {"seed": 4, "max_tokens": 60}

every_loss = pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "hung"])


@dataclass(frozen=True, slots=True)
class Loss:
    """One service that goes and comes back."""

    running: Running
    role: str
    mark: Path
    is_killed: bool
    process: Process

    async def begin(self) -> None:
        if self.is_killed:
            await self.process.kill()
        else:
            self.mark.touch()

    async def end(self) -> None:
        self.mark.unlink(missing_ok=True)
        if not self.process.child.is_alive:
            await self.process.start()
        await self.running.until_ready()

    async def num_hung(self) -> float:
        return await self.running.metric(
            f'semspec_gateway_service_hung_replicas{{service="{self.role}"}}'
        )


def hanging(config: StackConfig, folder: Path, step_s: float = 0.0) -> StackConfig:
    """Each service hangs while a file of its name is in the folder; each step of the target takes `step_s` longer."""
    commands = dict(config.commands)
    for role in config.roles:
        longer_s = step_s if role == "target" else 0.0
        program = SERVICE.format(
            role=role, mark=str(folder / role), step_s=longer_s, stall_s=STALL_S
        )
        commands[role] = (sys.executable, "-c", program)
    return replace(config, commands=commands)


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def fragile(
    stack_config: StackConfig, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Running, Path]]:
    folder = tmp_path_factory.mktemp("marks")
    async with served(hanging(stack_config, folder)) as running:
        yield running, folder


@pytest_asyncio.fixture(loop_scope="package")
async def loss(fragile: tuple[Running, Path], role: str, is_killed: bool) -> AsyncIterator[Loss]:
    """To begin and to end by the test."""
    running, folder = fragile
    loss = Loss(running, role, folder / role, is_killed, Process.of(running.stack, role))
    yield loss
    await loss.end()


@every_loss
@pytest.mark.parametrize("role", ["draft", "verifier"])
async def test_target_goes_on_alone_without(loss: Loss) -> None:
    running = loss.running
    async with running.streaming(**LONG, stream_options={"include_usage": True}) as stream:
        chunks = await up_to(is_text, stream)
        await loss.begin()
        chunks += [chunk async for chunk in stream]
    assert chunks[-1]["usage"]["completion_tokens"] == LONG["max_tokens"]
    assert chunks[-1]["semspec"]["fallback"].startswith(f"the {loss.role} ")
    assert chunks[-1]["semspec"]["degraded"] is False
    (
        _,
        line,
    ) = await running.readiness()  # at once, however long the handshake takes that is under way
    assert line.startswith("ready, with the target alone: ")

    following = await running.answer(**SHORT)
    assert following["usage"]["completion_tokens"] == SHORT["max_tokens"]
    assert following["semspec"]["fallback"].startswith(f"the {loss.role} ")
    assert following["semspec"]["target_ratio"] == 1
    line = await running.until_ready(
        200, f"ready, with the target alone: .* the {loss.role} service.*"
    )
    assert ("hang" in line, await loss.num_hung()) == (not loss.is_killed, not loss.is_killed)

    await loss.end()
    assert (await running.answer(**SHORT))["semspec"]["fallback"] is None


@every_loss
@pytest.mark.parametrize("role", ["target"])
async def test_stream_ends_with_an_error_and_requests_are_refused_without(loss: Loss) -> None:
    running = loss.running
    whole = await running.answer(**SHORT)
    async with running.streaming(**LONG) as stream:
        await up_to(is_text, stream)
        await loss.begin()
        chunks = await up_to(lambda chunk: "error" in chunk, stream)
    assert chunks[-1]["error"]["code"] == "service_unavailable"
    line = await running.until_ready(503, "no handshake with the target service: .*")
    refused = await running.chat(**SHORT)
    error = refused.json()["error"]
    assert refused.status_code == 503 and "retry-after" in refused.headers
    assert set(error) == {
        "message",
        "type",
        "param",
        "code",
    }  # OpenAI's shape of an error that a retry may cure
    assert (error["type"], error["code"]) == ("server_error", "service_unavailable")
    address = running.stack.addresses["target"]
    assert ("hang" if not loss.is_killed else "no replica of the target answers") in line
    assert address not in line and "SEMSPEC" not in line
    assert (
        f"SEMSPEC_GATEWAY_TARGET_ADDRESS={address}"
        in running.stack.processes["gateway"].log.read_text()
    )

    await loss.end()
    assert await loss.num_hung() == 0
    assert answer_of(await running.answer(**SHORT)) == answer_of(whole)


async def test_busy_service_is_not_taken_for_a_hung_one(
    stack_config: StackConfig, tmp_path: Path
) -> None:
    """Each step takes a tenth of the limit, and calls wait much longer than the limit for their result."""
    async with served(hanging(stack_config, tmp_path, STALL_S / 10)) as running:
        bodies: list[Json] = [{"seed": seed, "max_tokens": 30} for seed in range(4)]
        answers = await asyncio.gather(*(running.answer(**body) for body in bodies))
        assert await running.metric("semspec_gateway_resumptions_total") == 0
    assert [answer["semspec"]["fallback"] for answer in answers] == [None] * 4
