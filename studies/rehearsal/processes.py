"""Samples the memory and file descriptors of the stack's processes while they run."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

import psutil
from redis.asyncio import Redis

from semspec.stack import Stack

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Held:
    """Resources of one process and its children."""

    rss_bytes: int
    vms_bytes: int
    """Address space: grows when memory is allocated, before it is written to."""
    cpu_s: float
    """Since the start of the process."""
    num_fds: int
    num_threads: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of all processes and of Redis."""

    at_s: float
    num_tokens: int
    """Number of tokens that clients have received so far."""
    held: Mapping[str, Held]
    redis_bytes: int
    """Memory use that Redis reports."""
    num_redis_keys: int


class Watch:
    """Takes a sample every few seconds until it is closed."""

    def __init__(self, stack: Stack, num_tokens: Callable[[], int]) -> None:
        self._stack = stack
        self._num_tokens = num_tokens
        self._start = perf_counter()
        self.samples: list[Sample] = []

    async def look(self) -> None:
        """Take and store one sample, without the processes that have ended."""
        num_tokens, at_s, held = self._num_tokens(), perf_counter() - self._start, dict[str, Held]()
        for name, child in self._stack.processes.items():
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                held[name] = await asyncio.to_thread(_held, child.pid)
        async with Redis.from_url(self._stack.addresses["redis"]) as redis:
            info, num_keys = await redis.info("memory"), await redis.dbsize()
        self.samples.append(Sample(at_s, num_tokens, held, int(info["used_memory"]), int(num_keys)))

    async def keep_looking(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self.look()


def series(samples: Sequence[Sample], process: str, field: str) -> list[float]:
    """One field of one process over the samples that have it."""
    return [
        float(getattr(sample.held[process], field)) for sample in samples if process in sample.held
    ]


def _held(pid: int) -> Held:
    first = psutil.Process(pid)
    family = [first, *first.children(recursive=True)]
    memory = [one.memory_info() for one in family]
    return Held(
        sum(one.rss for one in memory),
        sum(one.vms for one in memory),
        sum(times.user + times.system for times in (one.cpu_times() for one in family)),
        sum(one.num_fds() for one in family),
        sum(one.num_threads() for one in family),
    )
