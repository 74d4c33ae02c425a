"""One thread that runs the forwards of all calls in turn, so that the event loop never waits for one."""

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Generator
from typing import Generic, TypeVar

import torch

from semspec.engine.kv_cache import PrefixCache
from semspec.errors import Overloaded, Unavailable

T = TypeVar("T")

Steps = Generator[T | None, None, None]
"""A call as a generator: it yields a result, or None after each forward to let other calls have their turn."""


class _Job(Generic[T]):
    """A call under way, and its way back to the event loop that waits for it."""

    def __init__(self, steps: Steps[T]) -> None:
        self.steps = steps
        self.is_cancelled = False
        self.results: asyncio.Queue[T | BaseException | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def send(self, result: T | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self.results.put_nowait, result)
        except RuntimeError:  # the loop is closed: no caller is left
            self.is_cancelled = True


class Scheduler:
    """Round-robin over calls, one forward each: a short call never waits for the end of a long one."""

    def __init__(self, name: str, max_jobs: int = 256) -> None:
        self._arrivals: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._max_jobs, self._num_jobs = max_jobs, 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def stream(self, steps: Steps[T]) -> AsyncGenerator[T, None]:
        """Run `steps` on the engine's thread, yielding its results. Closing this generator closes `steps` there,
        after the forward that is running."""
        if self._is_closed:
            raise Unavailable("the engine is shut down; retry on another replica")
        if self._num_jobs >= self._max_jobs:
            raise Overloaded(f"{self._max_jobs} calls are under way; retry later")
        job = _Job(steps)
        self._num_jobs += 1
        self._arrivals.put(job)  # type: ignore[arg-type]
        try:
            while (result := await job.results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            job.is_cancelled = True
            self._num_jobs -= 1

    async def close(self) -> None:
        """Cancel all calls and end the thread."""
        self._is_closed = True
        self._arrivals.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        jobs: deque[_Job[object]] = deque()
        while self._admit(jobs):
            job = jobs.popleft()
            if self._advance(job):
                jobs.append(job)
        for job in jobs:
            job.steps.close()
            job.send(Unavailable("the engine is shut down; retry on another replica"))

    def _admit(self, jobs: deque["_Job[object]"]) -> bool:
        """Take in new calls, waiting for one if there is nothing to do; False when closed."""
        while not jobs or not self._arrivals.empty():
            job = self._arrivals.get()
            if job is None:
                return False
            jobs.append(job)
        return True

    @staticmethod
    def _advance(job: "_Job[object]") -> bool:
        """One turn of one call; False when it is over."""
        try:
            if job.is_cancelled:
                job.steps.close()
                return False
            result = next(job.steps)
        except StopIteration:
            job.send(None)
            return False
        except Exception as error:
            job.send(error)
            return False
        if result is not None:
            job.send(result)
        return True


_log = logging.getLogger(__name__)


def within_memory(steps: Steps[T], cache: PrefixCache) -> Steps[T]:
    """The steps of a call. Raises: Overloaded when there is not enough memory for it, and what the steps raise.

    `cache` bounds what is kept between calls; the keys and values of those under way come on top.
    """
    try:
        yield from steps
        return
    except torch.OutOfMemoryError as error:
        _log.error("out of memory, with %d bytes in the cache: %s", cache.num_bytes, error)
    # Only here is the error forgotten, and with it the frames that hold the tensors of the call.
    cache.clear()
    torch.cuda.empty_cache()
    raise Overloaded("the engine has no memory left for this call; retry later, or on another replica")
