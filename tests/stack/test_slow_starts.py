"""Services that are killed under running streams, and take long to serve again after they have started: the self-test
of a large model takes half a minute."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from semspec.stack import StackConfig
from tests.helpers.processes import Process
from tests.helpers.stack import Json, Running, is_text, served, text_of, up_to

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

NUM_STREAMS = 8
LONG: Json = {"max_tokens": 200}
PATIENCE_S = 120
PROGRAM = """
import time
from pathlib import Path
from semspec_{role} import __main__ as service

delay = Path({delay!r})
load = service.load

def is_over(begin):
    return time.monotonic() >= begin + float(delay.read_text())

async def slow_test(engine, settings):
    started.touch()
    begin = time.monotonic()
    while not is_over(begin):
        await asyncio.sleep(0.05)
    return await self_test(engine, settings)

def slow_load(settings):
    begin = time.monotonic()
    while not is_over(begin):
        time.sleep(0.05)
    return load(settings)

if hasattr(service, "self_test"):
    import asyncio
    started, self_test, service.self_test = Path({started!r}), service.self_test, slow_test
else:
    service.load = slow_load
service.main()
"""
"""A service whose self-test takes longer, by the seconds in a file. The verifier has none, so its loading does."""


@dataclass(frozen=True, slots=True)
class SlowStarts:
    """A stack whose services can be made to take long to start."""

    running: Running
    folder: Path

    @asynccontextmanager
    async def killed(self, role: str, delay_s: float) -> AsyncIterator[None]:
        """Kill a service and start it again; it serves at the end of the block, after which nothing delays it."""
        process = Process.of(self.running.stack, role)
        self._delay(role, delay_s)
        (self.folder / f"{role}-started").unlink(missing_ok=True)
        try:
            await process.kill()
            starting = asyncio.create_task(process.start())
            yield
            self._delay(role, 0)
            await starting
        finally:
            self._delay(role, 0)

    def _delay(self, role: str, delay_s: float) -> None:
        partial = self.folder / f"{role}-partial"
        partial.write_text(str(delay_s))
        partial.replace(self.folder / role)

    async def until_started(self, role: str) -> None:
        """Wait until the model is loaded and its self-test runs."""
        while not (self.folder / f"{role}-started").exists():
            await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def slow_starts(
    stack_config: StackConfig, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SlowStarts]:
    folder, commands = tmp_path_factory.mktemp("delays"), dict(stack_config.commands)
    for role in stack_config.roles:
        (folder / role).write_text("0")
        program = PROGRAM.format(
            role=role, delay=str(folder / role), started=str(folder / f"{role}-started")
        )
        commands[role] = (sys.executable, "-c", program)
    environment = {**stack_config.environment, "SEMSPEC_GATEWAY_TARGET_PATIENCE_S": str(PATIENCE_S)}
    async with served(replace(stack_config, commands=commands, environment=environment)) as running:
        yield SlowStarts(running, folder)


async def stream(running: Running, seed: int, has_begun: asyncio.Event | None = None) -> list[Json]:
    """Return all chunks of a stream; `has_begun` is set at its first text."""
    async with running.streaming(
        **LONG, seed=seed, stream_options={"include_usage": True}
    ) as chunks:
        received = await up_to(is_text, chunks)
        if has_begun:
            has_begun.set()
        return received + [chunk async for chunk in chunks]


async def streams_through_a_restart(
    slow_starts: SlowStarts, role: str, delay_s: float
) -> list[list[Json]]:
    """Return the chunks of streams whose service is killed after their first texts, and started again."""
    running, begun = slow_starts.running, [asyncio.Event() for _ in range(NUM_STREAMS)]
    streaming = [
        asyncio.create_task(stream(running, seed, event)) for seed, event in enumerate(begun)
    ]
    await asyncio.gather(*(event.wait() for event in begun))
    assert not any(task.done() for task in streaming)
    async with slow_starts.killed(role, delay_s):
        received = await asyncio.gather(*streaming)
    await running.until_ready()
    return received


def errors_in(streams: Sequence[list[Json]]) -> list[Json]:
    return [chunk["error"] for chunks in streams for chunk in chunks if "error" in chunk]


@pytest.mark.parametrize("delay_s", [12.0, 30.0])
async def test_streams_go_on_unchanged_after_a_target_with_a_long_self_test(
    slow_starts: SlowStarts, delay_s: float
) -> None:
    undisturbed = [await stream(slow_starts.running, seed) for seed in range(NUM_STREAMS)]
    disturbed = await streams_through_a_restart(slow_starts, "target", delay_s)
    assert errors_in(disturbed) == []
    assert list(map(text_of, disturbed)) == list(map(text_of, undisturbed))
