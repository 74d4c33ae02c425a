"""Progress of a long run: a bar with rate and remaining time on a terminal, periodic lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")
LOG_EVERY_S = 60.0


class Reporter:
    """Reports progress on stderr."""

    def __init__(self, quiet: bool = False, is_passing: bool = False) -> None:
        """`is_passing`: nothing of a bar stays once it is full."""
        self._console = Console(file=sys.stderr, highlight=False, quiet=quiet, soft_wrap=True)
        self._is_passing = is_passing

    def passing(self) -> "Reporter":
        """One whose bars leave nothing."""
        return Reporter(self._console.quiet, is_passing=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    @contextmanager
    def bar(
        self, title: str, total: int, unit: str, done: int = 0
    ) -> Iterator[Callable[[float], None]]:
        """A bar of `total` units, `done` of which are finished already; yields a function that advances it."""
        progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=1e9,
            transient=self._is_passing,
        )
        with progress:
            number = progress.add_task(title, total=total, completed=done, rate="")
            [task] = progress.tasks
            logged_at = time.monotonic()

            def advance(count: float) -> None:
                nonlocal logged_at
                progress.update(number, advance=count)
                rate = f"{task.speed or 0:.2f} {unit}/s"
                progress.update(number, rate=rate)
                is_told = task.finished and not self._is_passing
                if self._console.is_terminal or (
                    time.monotonic() - logged_at < LOG_EVERY_S and not is_told
                ):
                    return
                logged_at = time.monotonic()
                left = (
                    "unknown time" if task.time_remaining is None else duration(task.time_remaining)
                )
                self.say(f"{title}: {task.completed:.0f}/{total} {unit}, {rate}, {left} left")

            yield advance


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
