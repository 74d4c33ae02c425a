"""Owners share slots in turn."""

import asyncio

from semspec.grammars.fair_slots import FairSlots


class Work:
    """Work of several owners that ends when the test says so."""

    def __init__(self, num_slots: int = 2) -> None:
        self.turns = FairSlots(num_slots)
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, name: str) -> None:
        """Queue work; the part of its name before the dash is its owner."""
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._run(name))
        await settled()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await settled()

    async def _run(self, name: str) -> None:
        async with self.turns.hold(name.partition("-")[0]):
            self.begun.append(name)
            await self.ends[name].wait()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_newcomer_begins_next_to_one_busy_owner() -> None:
    work = Work()
    for number in range(5):
        await work.add(f"a-{number}")
    await work.add("b-0")
    assert work.begun == ["a-0", "b-0"]


async def test_owners_take_turns() -> None:
    work = Work()
    for name in ("a-0", "b-0", "a-1", "a-2", "a-3", "c-0", "b-1"):
        await work.add(name)
    for name in ("a-0", "b-0", "a-1", "c-0"):
        await work.end(name)
    assert work.begun == ["a-0", "b-0", "a-1", "c-0", "b-1", "a-2"]


async def test_cancelled_work_gives_its_slot_and_its_place_back() -> None:
    work = Work()
    for name in ("a-0", "a-1", "b-0", "c-0", "a-2"):
        await work.add(name)
    for name in ("c-0", "a-1", "a-0"):  # two wait, one runs
        work.tasks[name].cancel()
        await settled()
    assert work.begun == ["a-0", "b-0", "a-2"]
    await work.end("a-2")
    await work.end("b-0")
    await work.add("d-0")
    assert work.begun[-1] == "d-0"


async def test_work_cancelled_as_it_gets_its_slot_gives_it_back() -> None:
    work = Work()
    for name in ("a-0", "a-1"):
        await work.add(name)
    work.ends["a-0"].set()
    while not work.tasks["a-0"].done():
        await asyncio.sleep(0)
    work.tasks["a-1"].cancel()
    await settled()
    for name in ("a-2", "b-0"):
        await work.add(name)
    assert {"a-2", "b-0"} <= set(work.begun)
