"""How many generations may run at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from semspec.errors import Overloaded


class Admission:
    """Counts running generations. Nothing awaits between the check and the count, so it is atomic on one event loop."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._running = 0

    @asynccontextmanager
    async def admitted(self, owner: str, num_generations: int) -> AsyncIterator[None]:
        """Hold room for a request's generations. Raises: Overloaded."""
        if self._running + num_generations > self._capacity:
            raise Overloaded(f"{self._running} of {self._capacity} generations are running; retry in a moment")
        self._running += num_generations
        try:
            yield
        finally:
            self._running -= num_generations
