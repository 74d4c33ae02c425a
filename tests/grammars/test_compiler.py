"""Grammars compile in processes that are killed rather than waited for."""

import asyncio
from collections.abc import Iterator

import psutil
import pytest

from semspec.grammars.compiler import TOO_COSTLY, Compiler, Flaw
from tests.grammars.schemas import COSTLY, HARMLESS, grammar_of

SOUND = 'start: %json {"type": "integer"}'


def processes() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if any("worker.py" in word for word in one.cmdline())]


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    compiler = Compiler(num_processes=1)
    yield compiler
    compiler.close()
    assert processes() == []


async def test_first_flaw_is_named_with_its_reason(compiler: Compiler) -> None:
    assert await compiler.flaw([SOUND]) is None
    wrong = await compiler.flaw([SOUND, grammar_of({"type": "objekt"}), "start: /(a/"])
    assert wrong and wrong.index == 1 and "Invalid type: objekt" in wrong.reason and not wrong.is_empty
    empty = await compiler.flaw([grammar_of({"$ref": "#"})])
    assert empty and empty.is_empty


@pytest.mark.parametrize("name", HARMLESS)
async def test_harmless_schema_compiles(compiler: Compiler, name: str) -> None:
    assert await compiler.flaw([grammar_of(HARMLESS[name])]) is None


async def test_grammar_without_an_end_to_compiling_is_a_flaw_and_the_next_one_compiles(compiler: Compiler) -> None:
    assert await compiler.flaw([SOUND, grammar_of(COSTLY["patterns"])]) == Flaw(None, TOO_COSTLY)
    assert await compiler.flaw([grammar_of(COSTLY["multiples"])]) is None
    assert await compiler.flaw([SOUND, grammar_of(COSTLY["patterns"])]) == Flaw(None, TOO_COSTLY)  # not compiled again
    assert len(processes()) == 1


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


async def test_callers_of_one_process_wait_in_turn(compiler: Compiler) -> None:
    schemas = [grammar_of({"const": number}) for number in range(20)]
    assert await asyncio.gather(*(compiler.flaw([one]) for one in schemas)) == [None] * 20
    assert len(processes()) == 1
