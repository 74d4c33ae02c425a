"""One thread that runs the forward passes of all calls, so that they never block the event loop."""

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
"""A call as a generator: it yields a result, or None after each forward pass to let other calls run."""


class _Job(Generic[T]):
    """A running call, and the queue of its results for the event loop."""

    def __init__(self, steps: Steps[T]) -> None:
        self.steps = steps
        self.is_cancelled = False
        self.results: asyncio.Queue[T | BaseException | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def send(self, result: T | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self.results.put_nowait, result)
        except RuntimeError:  # the loop is closed, so there is no caller
            self.is_cancelled = True


class Scheduler:
    """Round-robin over calls, one forward pass each, so a short call does not wait for a long one to end."""

    def __init__(self, name: str, max_jobs: int = 256) -> None:
        self._arrivals: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._max_jobs, self._num_jobs = max_jobs, 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def stream(self, steps: Steps[T]) -> AsyncGenerator[T, None]:
        """Run `steps` on the engine's thread and yield its results. Closing this generator closes `steps` there, after
        the current forward pass. Raises: Unavailable when closed, Overloaded when there are too many calls."""
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
        """Cancel all calls and stop the thread."""
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
        """Add new calls, waiting for one if there are none; False when closed."""
        while not jobs or not self._arrivals.empty():
            job = self._arrivals.get()
            if job is None:
                return False
            jobs.append(job)
        return True

    @staticmethod
    def _advance(job: "_Job[object]") -> bool:
        """Run one step of a call; False when the call has ended."""
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
    """The steps of a call. Raises: Overloaded when the device is out of memory, and what the steps raise.

    `cache` bounds the memory kept between calls; keys and values of running calls come on top.
    """
    try:
        yield from steps
        return
    except torch.OutOfMemoryError as error:
        _log.error("out of memory, with %d bytes in the cache: %s", cache.num_bytes, error)
    # Outside the except block: the error, and with it the frames that hold the call's tensors, is released.
    cache.clear()
    torch.cuda.empty_cache()
    raise Overloaded("the engine has no memory left for this call; retry later, or on another replica")
