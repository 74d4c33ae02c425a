"""Ctrl-C and SIGTERM as cancellation, so that `async with Stack(...)` always gets to clean up."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` to its exit status; when a signal ends it, 128 plus the signal's number, as shells have it."""
    return asyncio.run(_run(main))


async def _run(main: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(main)
    received: list[signal.Signals] = []

    def cancel(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(number, cancel, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
