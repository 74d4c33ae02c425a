"""Two targets behind one gateway: one of them is lost in the middle of an answer, and nobody can tell."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import httpx
import pytest
import pytest_asyncio

from semspec.rpc.pool.choice import weight
from semspec.stack import Stack, StackConfig
from semspec.stack.child import Child
from tests.stack.support import GENEROUS_S, Running, Victim, answer_of, text_of, until_first_segment

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAYS = " ".join(f"Day {day}: Tom {('buys 4 pens', 'naps', 'loses 7 pens', 'reads')[day % 4]}." for day in range(1, 13))
QUESTION = f"Tom has pens: 31. {DAYS} How many pens does Tom have now?"
"""Answered in some ten segments."""
ENVIRONMENT = {
    "SEMSPEC_GATEWAY_RECHECK_S": "0.2",
    "SEMSPEC_GATEWAY_HEALTH_INTERVAL_S": "0.2",
    "SEMSPEC_GATEWAY_HEALTH_TIMEOUT_S": "3",
}


@dataclass(frozen=True, slots=True)
class Twins:
    """A stack with a second target, and a gateway that knows both."""

    running: Running
    victims: dict[str, Victim]
    """By address."""

    def first_for(self, session: str) -> tuple[str, int]:
        """Role and process of the target that has the calls of a session, as long as it can have them."""
        victim = self.victims[max(self.victims, key=lambda address: weight(session, address))]
        return victim.role, self.running.pid(victim.role)

    async def gauge(self, name: str) -> float:
        """A metric of the gateway."""
        lines = (await self.running.http.get("/metrics")).text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"semspec_gateway_{name}"))

    async def until_whole(self) -> None:
        """Wait until both targets can be called."""
        async with asyncio.timeout(GENEROUS_S):
            while await self.gauge('service_replicas{service="target"}') < 2:
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def twins() -> AsyncIterator[Twins]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDIS_URL", raising=False)
        async with Stack(StackConfig(environment=ENVIRONMENT, start_timeout_s=GENEROUS_S)) as stack:
            targets = [Victim.of(stack, "target"), elsewhere(Victim.of(stack, "target"))]
            victims = {f"127.0.0.1:{target.environment['SEMSPEC_TARGET_PORT']}": target for target in targets}
            gateway = elsewhere(Victim.of(stack, "gateway"), SEMSPEC_GATEWAY_TARGET_ADDRESS=",".join(victims))
            for second in (targets[1], gateway):
                await start(stack, second)
            url = f"http://127.0.0.1:{gateway.environment['SEMSPEC_GATEWAY_PORT']}"
            async with httpx.AsyncClient(base_url=url, headers=stack.headers, timeout=GENEROUS_S) as http:
                running = Running(stack, http)
                await running.until_ready()
                yield Twins(running, victims)


def elsewhere(first: Victim, **changes: str) -> Victim:
    """Another such process on another port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = {f"SEMSPEC_{first.role.upper()}_PORT": str(free.getsockname()[1])}
    return replace(first, role=f"second {first.role}", environment={**first.environment, **port, **changes})


async def start(stack: Stack, victim: Victim) -> None:
    """The stack stops it with the others."""
    log = stack.processes["gateway"].log.with_name(f"{victim.role}.log")
    stack.processes[victim.role] = await Child.start(victim.role, victim.command, victim.environment, log)


@pytest.mark.parametrize(
    ("strategy", "fate"),
    [
        ("target", "SIGKILL"),
        ("target", "SIGSTOP"),
        ("token-level", "SIGSTOP"),
    ],
)
async def test_answer_is_the_same_when_its_target_is_lost(twins: Twins, strategy: str, fate: str) -> None:
    running, fields = twins.running, {"seed": 11, "semspec": {"strategy": strategy}}
    await twins.until_whole()
    whole = await running.answer(QUESTION, **fields)
    async with running.streaming(QUESTION, **fields, stream_options={"include_usage": True}) as stream:
        chunks = await until_first_segment(stream)
        role, pid = twins.first_for(chunks[0]["id"])
        os.kill(pid, signal.Signals[fate])
        try:
            chunks += [chunk async for chunk in stream]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert text_of(chunks) == answer_of(whole)
    assert chunks[-1]["usage"] == whole["usage"]
    assert chunks[-1]["semspec"]["fallback"] is None and chunks[-1]["semspec"]["degraded"] is False
    assert await twins.gauge("resumptions_total") == 0, "another replica went on; nobody had to wait for the lost one"
    if fate == "SIGKILL":
        await running.stack.processes[role].process.wait()
        await victim_of(twins, role).revive(running.stack)


def victim_of(twins: Twins, role: str) -> Victim:
    return next(victim for victim in twins.victims.values() if victim.role == role)


async def test_requests_go_on_while_each_target_is_restarted_in_turn(twins: Twins) -> None:
    running, fields = twins.running, {"seed": 12, "max_tokens": 60}
    await twins.until_whole()
    whole = answer_of(await running.answer(QUESTION, **fields))
    stopping, answers = asyncio.Event(), list[str]()

    async def ask() -> None:
        while not stopping.is_set():
            answers.append(answer_of(await running.answer(QUESTION, **fields)))

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(ask())
        for victim in twins.victims.values():
            child = running.stack.processes[victim.role]
            os.kill(child.pid, signal.SIGTERM)
            assert await child.process.wait() == 0
            await victim.revive(running.stack)
            await twins.until_whole()
        stopping.set()
    assert len(answers) > 2 and set(answers) == {whole}
    assert await twins.gauge("resumptions_total") == 0
