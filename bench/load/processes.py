"""What the stack's processes hold, looked at from outside while they work."""

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
    """By one process."""

    rss_bytes: int
    uss_bytes: int
    """Its own alone, what it shares with others left out."""
    num_fds: int
    num_threads: int
    num_connections: int
    """TCP."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at everything."""

    at_s: float
    num_requests: int
    """Ended by then."""
    held: Mapping[str, Held]
    redis_bytes: int
    """As Redis counts its memory."""
    num_redis_keys: int
    cache_bytes: Mapping[str, float]
    """Keys and values held by draft and target, as the gateway last heard."""


class Watch:
    """Samples every few seconds, until told to stop."""

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
        """One sample, added to the others."""
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
    """One number of one process, sample by sample."""
    return [float(getattr(sample.held[process], field)) for sample in samples]


def _held(process: psutil.Process) -> Held:
    with process.oneshot():
        memory = process.memory_full_info()
        connections = 0
        with suppress(psutil.AccessDenied):
            connections = len(process.net_connections(kind="tcp"))
        return Held(memory.rss, memory.uss, process.num_fds(), process.num_threads(), connections)
