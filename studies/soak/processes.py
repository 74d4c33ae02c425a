"""Samples the memory and file descriptors of the stack's processes while they run."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

import psutil
from redis.asyncio import Redis

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Held:
    """Resources of one process."""

    rss_bytes: int
    uss_bytes: int
    """Memory that it does not share with other processes."""
    num_fds: int
    num_threads: int
    num_connections: int
    """TCP connections."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of all processes and of Redis."""

    at_s: float
    num_requests: int
    """Number of requests ended so far."""
    held: Mapping[str, Held]
    redis_bytes: int
    """Memory use that Redis reports."""
    num_redis_keys: int
    cache_bytes: Mapping[str, float]
    """Cache sizes of draft and target, as last reported to the gateway."""


class Watch:
    """Takes a sample every few seconds until it is closed."""

    def __init__(
        self,
        pids: Mapping[str, int],
        redis_url: str,
        num_requests: Callable[[], int],
        cache_bytes: Callable[[], Awaitable[Mapping[str, float]]],
    ) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._redis_url = redis_url
        self._num_requests = num_requests
        self._cache_bytes = cache_bytes
        self._start = perf_counter()
        self.samples: list[Sample] = []

    async def look(self) -> None:
        """Take and store one sample."""
        num_requests, at_s = self._num_requests(), perf_counter() - self._start
        held = await asyncio.to_thread(lambda: {name: _held(process) for name, process in self._processes.items()})
        num_bytes, num_keys = await self._redis()
        self.samples.append(Sample(at_s, num_requests, held, num_bytes, num_keys, await self._cache_bytes()))

    async def keep_looking(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self.look()

    async def _redis(self) -> tuple[int, int]:
        async with Redis.from_url(self._redis_url) as redis:
            info, num_keys = await redis.info("memory"), await redis.dbsize()
        return int(info["used_memory"]), int(num_keys)


def series(samples: Sequence[Sample], process: str, field: str) -> list[float]:
    """One field of one process over all samples."""
    return [float(getattr(sample.held[process], field)) for sample in samples]


def _held(process: psutil.Process) -> Held:
    with process.oneshot():
        memory = process.memory_full_info()
        connections = 0
        with suppress(psutil.AccessDenied):
            connections = len(process.net_connections(kind="tcp"))
        return Held(memory.rss, memory.uss, process.num_fds(), process.num_threads(), connections)
