"""Virtual time: an event loop whose clock jumps to the next timer when every task waits."""

import asyncio
from collections.abc import Coroutine
from selectors import SelectorKey, SelectSelector
from typing import Any, TypeVar

T = TypeVar("T")


class _VirtualSelector(SelectSelector):
    """Instead of waiting for the next timer, sets the clock to it."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the simulation stands still: each task waits for another")
        self.now_s += max(0.0, timeout)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _VirtualSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in virtual time, from 0 s; `asyncio.get_running_loop().time()` tells it."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)
