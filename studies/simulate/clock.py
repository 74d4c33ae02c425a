"""Virtual time: an event loop whose clock jumps to the next timer when every task waits."""

import asyncio
from collections.abc import Coroutine
from selectors import SelectorKey, SelectSelector
from typing import Any, TypeVar

T = TypeVar("T")


class _VirtualSelector(SelectSelector):
    """Sets the clock to the next timer instead of waiting for it."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the simulation is deadlocked: every task waits for another")
        self.now_s += max(0.0, timeout)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _VirtualSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in virtual time from 0 s, which `asyncio.get_running_loop().time()` returns."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)
