"""Progress of a long run: a bar with rate and remaining time on a terminal, a line a minute in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from tqdm import tqdm

T = TypeVar("T")
LOG_EVERY_S = 60.0


class Reporter:
    """Reports progress on stderr."""

    def __init__(self, quiet: bool = False, is_passing: bool = False) -> None:
        """`is_passing`: nothing of a bar stays once it is full."""
        self._is_quiet, self._is_passing = quiet, is_passing

    def passing(self) -> "Reporter":
        """One whose bars leave nothing."""
        return Reporter(self._is_quiet, is_passing=True)

    def say(self, text: str) -> None:
        if not self._is_quiet:
            tqdm.write(text, file=sys.stderr)

    @contextmanager
    def bar(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Callable[[float], None]]:
        """A bar of `total` units, `done` of which are finished already; yields a function that advances it."""
        every_s, begin, end = (0.1, "{l_bar}{bar}| ", "") if sys.stderr.isatty() else (LOG_EVERY_S, "{desc}: ", "\n")
        with tqdm(
            total=total,
            initial=done,
            desc=title,
            unit=f" {unit}",
            file=sys.stderr,
            disable=self._is_quiet,
            leave=not self._is_passing,
            smoothing=0,
            mininterval=every_s,
            maxinterval=max(every_s, 10),
            bar_format=begin + "{n:.0f}/{total_fmt}{unit}, {rate_fmt}, {elapsed}, {remaining} left" + end,
        ) as progress:
            yield progress.update


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of `work`, and how many seconds it took, on a GPU too."""
    start = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def duration(seconds: float) -> str:
    """`3 h 20 min`, `12 min`, `45 s`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
