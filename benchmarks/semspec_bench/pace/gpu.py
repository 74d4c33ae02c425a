"""A GPU that several engines share: it serves their steps in slices, in turn, so that the times of their steps add."""

import fcntl
import struct
from collections.abc import Iterator
from math import ceil, inf
from pathlib import Path

SLICE_S = 0.002
"""Assumed, of processes that share a GPU by its default time slicing. Switching between them is left out."""


def slices(duration: float, longest: float) -> Iterator[float]:
    """`duration` in equal parts of at most `longest`."""
    number = max(1, ceil(duration / longest))
    yield from (duration / number for _ in range(number))


class Gpu:
    """The time until which a GPU is taken. An engine takes the next slice when the one before has passed."""

    def __init__(self, slice_s: float = inf) -> None:
        self.slice_s = slice_s
        """Without other users a slice may be a whole step."""
        self._taken_until = 0.0

    def take(self, begin: float, duration: float) -> float:
        """Take the GPU for `duration` seconds, not before `begin` nor before it is free. Returns the end."""
        self._taken_until = max(begin, self._taken_until) + duration
        return self._taken_until


class GpuFile(Gpu):
    """A GPU that processes share by a file. Times are of `time.perf_counter`, one clock for all of a machine."""

    def __init__(self, path: Path, slice_s: float) -> None:
        super().__init__(slice_s)
        self._path = path

    def take(self, begin: float, duration: float) -> float:
        with self._path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if stored := file.read():
                (self._taken_until,) = struct.unpack("<d", stored)
            end = super().take(begin, duration)
            file.truncate(0)
            file.write(struct.pack("<d", end))
        return end
