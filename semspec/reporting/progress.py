"""Progress of a long run: a bar with rate and remaining time on a terminal, periodic lines in a log."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
        """With `is_passing`, bars disappear when they are full."""
        self._console = Console(file=sys.stderr, highlight=False, quiet=quiet, soft_wrap=True)
        self._is_passing = is_passing

    def passing(self) -> "Reporter":
        """Return a reporter whose bars disappear when they are full."""
        return Reporter(self._console.quiet, is_passing=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    @contextmanager
    def busy(self, title: str) -> Iterator[None]:
        """Report the start of work without a bar, and every `LOG_EVERY_S` that it is still running."""
        self.say(title)
        with self._signs_of_life(lambda: f"still {title}"):
            yield

    @contextmanager
    def _signs_of_life(self, text: Callable[[], str]) -> Iterator[Callable[[], None]]:
        """Report `text()` with the elapsed time whenever nothing was reported for `LOG_EVERY_S`. Yield a function that
        notes a report from elsewhere."""
        begin = said_at = time.monotonic()
        is_over = threading.Event()

        def note() -> None:
            nonlocal said_at
            said_at = time.monotonic()

        def watch() -> None:
            while not is_over.wait(max(0.01, said_at + LOG_EVERY_S - time.monotonic())):
                if time.monotonic() - said_at >= LOG_EVERY_S:
                    note()
                    self.say(f"{text()}, {duration(time.monotonic() - begin)} so far")

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield note
        finally:
            is_over.set()
            thread.join()

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
        number = progress.add_task(title, total=total, completed=done, rate="")
        [task] = progress.tasks
        is_log = not self._console.is_terminal  # a terminal shows the elapsed time

        def text() -> str:
            return f"{title}: {task.completed:.0f}/{total} {unit}"

        with progress, self._signs_of_life(text) if is_log else nullcontext(_nothing) as note:
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
                note()
                left = (
                    "unknown time" if task.time_remaining is None else duration(task.time_remaining)
                )
                self.say(f"{text()}, {rate}, {left} left")

            yield advance


def _nothing() -> None:
    """Do nothing, where no reports need to be noted."""


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return the result of `work` and the seconds it took, including work on a GPU."""
    start = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def duration(seconds: float) -> str:
    """Format a duration as `3 h 20 min`, `12 min` or `45 s`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
