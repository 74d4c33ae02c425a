"""The processes of ranks 1 and up, as rank 0 sees them: started, given orders, never outlived and never waited for."""

import contextlib
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, NoReturn

import torch

from semspec.engine.decoder import Sum
from semspec.engine.tensor_parallel import group
from semspec.engine.tensor_parallel.orders import Forget, Order, encoded
from semspec.engine.tensor_parallel.share import Share
from semspec.errors import Mismatch

EXIT_CAME_APART = 1
"""Exit code of rank 0's process when another rank is lost; its supervisor may start it again."""
LAST_WORDS_S = 1.0
LEAVING_S = 10.0
"""How long a worker may take to end of itself."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker must know to do its share."""

    folder: str
    """The checkpoint."""
    rendezvous: str
    """A file that is not there yet, in a folder where all ranks may write."""
    rank: int
    num_ranks: int
    device: str
    dtype: str
    window: int
    """See `Layout.window`."""
    num_threads: int


class Workers:
    """They do with their shares of the model what rank 0 does with its own. One thread at a time gives orders."""

    def __init__(self, folder: Path, devices: Sequence[str], dtype: str, window: int) -> None:
        """Start a process for each but the first of `devices`."""
        self.num_ranks = len(devices)
        self._meeting_place = tempfile.mkdtemp(prefix="semspec-ranks-")
        self.rendezvous = Path(self._meeting_place) / "rendezvous"
        self._forgotten: deque[int] = deque()
        self._sequences = itertools.count()
        self._have_met = False
        self._is_closed = threading.Event()
        threads = torch.get_num_threads()
        self._processes = [
            _started(
                Assignment(
                    str(folder), str(self.rendezvous), rank, self.num_ranks, devices[rank], dtype, window, threads
                )
            )
            for rank in range(1, self.num_ranks)
        ]

    def join(self, device: str) -> Sum:
        """Wait until all have loaded, and meet them. Raises: Mismatch when one could not."""
        for rank, process in enumerate(self._processes, 1):
            answer = _pipe(process.stdout).readline().decode().strip()
            if answer != "ready":
                raise Mismatch(answer or f"rank {rank} of {self.num_ranks} ended before it was ready: see its log")
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._watch, args=(rank, process), name=f"rank-{rank}", daemon=True).start()
        self._have_met = True
        return group.join(self.rendezvous, Share(0, self.num_ranks), torch.device(device))

    def new_sequence(self) -> int:
        return next(self._sequences)

    def forget(self, sequence: int) -> None:
        """Free a sequence's keys and values with the next order. From any thread: finalizers run where they like."""
        self._forgotten.append(sequence)

    def give(self, params: Order) -> None:
        """Have `params` carried out by all, after those before it."""
        orders: list[Order] = []
        while self._forgotten:
            orders.append(Forget(self._forgotten.popleft()))
        message = b"".join(map(encoded, [*orders, params]))
        for process in self._processes:
            stream = _pipe(process.stdin)
            stream.write(message)
            stream.flush()

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        """A stretch that all ranks go through or none: an error in it ends this process, for the others may be waiting
        in a sum."""
        try:
            yield
        except Exception as error:
            time.sleep(LAST_WORDS_S)  # the thread that watches the lost rank reports the reason
            self._come_apart(f"rank 0 could not go on: {error}")

    def close(self) -> None:
        """Let all end, and see to it; at once those that are still loading."""
        self._is_closed.set()
        for process in self._processes:
            if not self._have_met:
                process.kill()
            with contextlib.suppress(BrokenPipeError):
                _pipe(process.stdin).close()
        group.leave()
        for process in self._processes:
            _end(process)
        shutil.rmtree(self._meeting_place, ignore_errors=True)

    def _watch(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        status = process.wait()
        if not self._is_closed.is_set():
            how = f"status {status}" if status >= 0 else signal.Signals(-status).name
            self._come_apart(f"rank {rank} of {self.num_ranks}, process {process.pid}, ended with {how}")

    def _come_apart(self, reason: str) -> NoReturn:
        logger.critical("the ranks of the model have come apart, ending: %s", reason)
        shutil.rmtree(self._meeting_place, ignore_errors=True)
        os._exit(EXIT_CAME_APART)  # no other way is sure: the engine's thread may wait in a sum for good


def _started(assignment: Assignment) -> "subprocess.Popen[bytes]":
    """A worker that ends with its input: the kernel closes that pipe however this process ends. (The parent-death
    signal is bound to the thread that starts a process, and a loader's thread need not last.)"""
    return subprocess.Popen(
        [sys.executable, "-m", "semspec.engine.tensor_parallel.worker", json.dumps(asdict(assignment))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches rank 0 alone, which lets running calls end
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(LEAVING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _pipe(process.stdout).close()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise TypeError("workers are started with pipes")
    return stream
