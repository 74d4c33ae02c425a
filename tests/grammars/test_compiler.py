"""Grammars compile in processes that are killed rather than waited for."""

import asyncio
from collections.abc import Iterator

import psutil
import pytest

from semspec.grammars.compiler import MAX_KNOWN, TOO_COSTLY, Compiler, Flaw
from semspec.grammars.worker import MAX_REASON
from tests.grammars.schemas import COSTLY, HARMLESS, grammar_of

SOUND = 'start: %json {"type": "integer"}'


def is_worker(process: psutil.Process) -> bool:
    try:
        return any("worker.py" in word for word in process.cmdline())
    except (psutil.ZombieProcess, psutil.NoSuchProcess):  # it has just been killed
        return False


def processes() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if is_worker(one)]


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    compiler = Compiler()
    yield compiler
    compiler.close()
    assert processes() == []


async def test_first_flaw_is_named_with_its_reason(compiler: Compiler) -> None:
    assert await compiler.flaw([SOUND]) is None
    wrong = await compiler.flaw([SOUND, grammar_of({"type": "objekt"}), "start: /(a/"])
    assert (
        wrong and wrong.index == 1 and "Invalid type: objekt" in wrong.reason and not wrong.is_empty
    )
    empty = await compiler.flaw([grammar_of({"$ref": "#"})])
    assert empty and empty.is_empty


@pytest.mark.parametrize("name", HARMLESS)
async def test_harmless_schema_compiles(compiler: Compiler, name: str) -> None:
    assert await compiler.flaw([grammar_of(HARMLESS[name])]) is None


async def test_grammar_that_compiles_too_long_is_a_flaw(compiler: Compiler) -> None:
    assert await compiler.flaw([SOUND, grammar_of(COSTLY["patterns"])]) == Flaw(None, TOO_COSTLY)
    assert await compiler.flaw([grammar_of(COSTLY["multiples"])]) is None
    assert await compiler.flaw([SOUND, grammar_of(COSTLY["patterns"])]) == Flaw(
        None, TOO_COSTLY
    )  # not compiled again
    assert len(processes()) == 1


async def test_results_are_forgotten_beyond_a_number(compiler: Compiler) -> None:
    for number in range(MAX_KNOWN + 20):
        await compiler.flaw([grammar_of({"const": number})])
    assert len(compiler._known) == MAX_KNOWN


@pytest.mark.parametrize("depth", [5_000, 300_000])
async def test_stack_that_overflows_is_a_flaw(compiler: Compiler, depth: int) -> None:
    """No check counts the nesting of a grammar's own syntax: only the process that compiles it ends."""
    nested = f'start: {"(" * depth}"a"{")" * depth}'
    await compiler.flaw([nested])
    assert await compiler.flaw([SOUND]) is None


async def test_process_ends_when_its_caller_leaves(compiler: Compiler) -> None:
    await compiler.flaw([SOUND])
    [before] = processes()
    waiting = asyncio.create_task(compiler.flaw([grammar_of(COSTLY["patterns"])]))
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not before.is_running()
    assert await compiler.flaw([grammar_of({"type": "boolean"})]) is None


async def test_grammars_of_one_owner_compile_one_after_another(compiler: Compiler) -> None:
    schemas = [grammar_of({"const": number}) for number in range(20)]
    assert await asyncio.gather(*(compiler.flaw([schema]) for schema in schemas)) == [None] * 20
    assert len(processes()) == 1


async def test_costly_grammars_of_one_owner_leave_a_process_to_another(compiler: Compiler) -> None:
    costly = [grammar_of({**COSTLY["patterns"], "title": f"{number}"}) for number in range(6)]
    waiting = [asyncio.create_task(compiler.flaw([grammar], "attacker")) for grammar in costly]
    await asyncio.sleep(0.1)
    assert await compiler.flaw([SOUND], "neighbour") is None
    assert not any(task.done() for task in waiting[1:])
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


QUOTED = {
    "description": {"type": "objekt", "description": "d" * 1_000_000},
    "name of a property": {"properties": {"n" * 1_000_000: {"type": "objekt"}}},
    "wrong value": {"type": "objekt" + "v" * 1_000_000},
    "reference": {"$ref": "#/" + "r" * 1_000_000},
    "another alphabet": {"type": "objekt", "title": "\u4e2d" * 300_000},
}
"""Schemas whose errors quote a long text."""


@pytest.mark.parametrize("name", QUOTED)
async def test_refusal_is_short_whatever_the_grammar_quotes(compiler: Compiler, name: str) -> None:
    flaw = await compiler.flaw([grammar_of(QUOTED[name])])
    assert flaw and 0 < len(flaw.reason) <= MAX_REASON and "\n" not in flaw.reason
    if "reference" not in name:
        assert flaw.reason.startswith("Invalid type: objekt")
