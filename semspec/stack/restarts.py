"""Starts child processes again that end, each after a growing delay.

None is given up: what ended it may be requests, which end, and the others serve without it.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn

from semspec.stack.supervisor import Stack

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0
STEADY_S = 60.0
"""An end after so many seconds is the first of a row."""


async def keep_running(stack: Stack, report: Callable[[str], None]) -> NoReturn:
    """Keep all processes of `stack` running until cancelled; `report` gets the end of the log of each that ended.

    Raises: OSError when a process cannot be started.
    """
    tasks = [asyncio.create_task(_keep(stack, name, report)) for name in stack.processes]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        raise done.pop().exception() or RuntimeError("each task runs until it is cancelled")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep(stack: Stack, name: str, report: Callable[[str], None]) -> None:
    now, num_ends = asyncio.get_running_loop().time, 0
    while True:
        child, started_at = stack.processes[name], now()
        await child.process.wait()
        num_ends = 1 if now() - started_at >= STEADY_S else num_ends + 1
        delay_s = min(FIRST_DELAY_S * 2 ** min(num_ends - 1, 16), MAX_DELAY_S)
        report(f"{child.log_tail()}\nsemspec: {name} ended with {child.status}; it starts again in {delay_s:g} s")
        await asyncio.sleep(delay_s)
        await stack.restart(name)
