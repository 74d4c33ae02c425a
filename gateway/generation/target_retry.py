"""A generation that has lost its target, or finds it overloaded, waits for it and goes on from its last segment."""

import asyncio
import logging
from time import monotonic

from semspec.decoding import Target
from semspec.errors import Conflict, DeadlineExceeded, Overloaded, SemspecError, Unavailable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
ANSWER_S = 2.0
"""Longest wait for one sign of life."""
MAX_FRUITLESS = 8
"""How often a target may be lost, back, and lost again before the next segment: the question may be what kills it."""

_log = logging.getLogger(__name__)


class TargetRetry:
    """How long one generation goes on waiting: anew after each segment."""

    def __init__(self, target: Target, fingerprint: str, patience_s: float) -> None:
        """`fingerprint` is that of the model the generation began with."""
        self._target = target
        self._fingerprint = fingerprint
        self._patience_s = patience_s
        self._num_segments = -1
        self._until = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._num_fruitless = 0

    async def target_is_back(self, lost: SemspecError, num_segments: int) -> None:
        """Return when the target answers again, at the earliest a little later than the last time.

        Raises: `lost` when it does not in time; Conflict when it is another model by then.
        """
        if num_segments > self._num_segments:
            self._num_segments, self._until, self._pause_s = num_segments, monotonic() + self._patience_s, FIRST_PAUSE_S
            self._num_fruitless = 0
            _log.warning("waiting up to %g s for the target: %s", self._patience_s, lost.message)
        self._num_fruitless += isinstance(lost, Unavailable)
        if self._num_fruitless > MAX_FRUITLESS:
            raise lost
        while (left := self._until - monotonic()) > 0:
            await asyncio.sleep(min(self._pause_s, left))
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            if await self._answers():
                return
        raise lost

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                info = await self._target.info()
        except (Unavailable, Overloaded, DeadlineExceeded, TimeoutError):
            return False
        if info.fingerprint != self._fingerprint:
            raise Conflict("the target that came back serves another model; start a new generation", "id")
        return True
