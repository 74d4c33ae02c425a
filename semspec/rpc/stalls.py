"""Detects a backend that hangs, as with a stuck GPU kernel: it is at work and its step counter stands still.

Calls that wait in a queue are no sign of it: as long as any call makes a step, the counter moves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from semspec.engine.protocol import StepCounter

NUM_LOOKS = 10
"""Number of looks within the limit. All must find the same counter, so time during which this process was suspended
does not count."""


class CallCounter:
    """A counter for backends without one: a step is a call that has ended. Cancelled calls are none."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._num_running = 0

    @property
    def is_busy(self) -> bool:
        return self._num_running > 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the body as a call."""
        self._num_running += 1
        try:
            yield
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.num_steps += 1
            raise
        else:
            self.num_steps += 1
        finally:
            self._num_running -= 1


class StallWatch:
    """Whether a backend hangs: no step for `stall_s` while busy. It then hangs until its next step, busy or not."""

    def __init__(self, steps: StepCounter, stall_s: float) -> None:
        self.is_stalled = False
        self._steps, self._stall_s = steps, stall_s

    async def run(self, report: Callable[[bool], Awaitable[None]]) -> None:
        """Call `report` with each change, until cancelled."""
        num_steps, num_looks = self._steps.num_steps, 0
        while True:
            await asyncio.sleep(self._stall_s / NUM_LOOKS)
            before, num_steps = num_steps, self._steps.num_steps
            stands_still = num_steps == before and (self._steps.is_busy or self.is_stalled)
            num_looks = num_looks + 1 if stands_still else 0
            if self.is_stalled != (num_looks >= NUM_LOOKS):
                self.is_stalled = not self.is_stalled
                await report(self.is_stalled)
