"""Handles a target that fails: waits for it to come back, and keeps its internal errors from clients."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from semspec.decoding import Target
from semspec.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Mismatch,
    Overloaded,
    SemspecError,
    Unavailable,
)
from semspec.types import GRAMMAR

FIRST_PAUSE_S, LONGEST_PAUSE_S, LEAST_PATIENCE_S = 0.05, 1.0, 300.0
ANSWER_S = 2.0
"""Timeout of one health check of the target, in seconds."""
MAX_RETRIES_WITHOUT_PROGRESS = 8
"""Retries before the next segment after which the generation fails: its own request may crash the target."""

_log = logging.getLogger(__name__)


@contextmanager
def broken_target(*errors: type[SemspecError]) -> Iterator[None]:
    """Raise Unavailable instead of `errors` of the target.

    Errors about a grammar, or about a strategy that this target cannot serve, pass through.
    """
    try:
        yield
    except errors as error:
        if error.parameter in (GRAMMAR, "strategy"):
            raise
        _log.error("the target is broken: %s", error)
        raise Unavailable(
            "the target is broken", remedy="this gateway's log has the details"
        ) from error


class TargetRetry:
    """Retry policy of one generation while the target is unavailable; each segment resets it."""

    def __init__(self, target: Target, fingerprint: str, timeout_s: float) -> None:
        """`fingerprint` is that of the model that the generation began with."""
        self._target = target
        self._fingerprint = fingerprint
        self._timeout_s = timeout_s
        self._num_segments = -1
        self._until = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._num_failures = 0

    async def wait_for_target(self, failure: SemspecError, num_segments: int) -> None:
        """Wait until the target answers again, with exponential backoff.

        Raises: `failure` when it does not in time; Mismatch when it serves another model by then.
        """
        if num_segments > self._num_segments:
            self._num_segments, self._num_failures = num_segments, 0
            self._until, self._pause_s = monotonic() + self._timeout_s, FIRST_PAUSE_S
            _log.warning("waiting up to %g s for the target: %s", self._timeout_s, failure)
        self._num_failures += isinstance(failure, Unavailable)
        if self._num_failures > MAX_RETRIES_WITHOUT_PROGRESS:
            raise failure
        while (left := self._until - monotonic()) > 0:
            await asyncio.sleep(min(self._pause_s, left))
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            if await self._answers():
                return
        raise failure

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                info = await self._target.info()
        except (
            Unavailable,
            Overloaded,
            DeadlineExceeded,
            InvalidRequest,
            InternalError,
            TimeoutError,
        ):
            return False
        if info.fingerprint != self._fingerprint:
            raise Mismatch(
                "the target that came back serves another model", remedy="start a new generation"
            )
        return True
