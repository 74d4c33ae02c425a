"""A rank other than 0: `python -m semspec.engine.tensor_parallel.worker ASSIGNMENT`, orders on standard input.

It ends when that input does.
"""

import json
import os
import select
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

import torch

from semspec.engine.decoder import Decoder
from semspec.engine.kv_cache import BufferKV
from semspec.engine.tensor_parallel import group
from semspec.engine.tensor_parallel.orders import Copy, Forget, Forward, Order, orders_from
from semspec.engine.tensor_parallel.share import Share, empty_model, fill
from semspec.engine.tensor_parallel.workers import Assignment
from semspec.errors import SemspecError

GRACE_S = 5.0
"""From the end of the input to that of the process, though it wait in a sum for ranks that are gone."""


def main() -> None:
    """Load, say so, and follow."""
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    assignment = Assignment(**json.loads(sys.argv[1]))
    answers = _answers()
    try:
        decoder = _decoder(assignment, answers)
    except SemspecError as error:
        answers.write(f"{error.message}\n")
        sys.exit(error.message)  # on standard error too: after "ready" no process reads standard output
    follow(decoder, orders_from(sys.stdin.buffer))
    group.leave()


@torch.inference_mode()
def follow(decoder: Decoder, orders: Iterable[Order]) -> None:
    """Carry out `orders`."""
    sequences: defaultdict[int, BufferKV] = defaultdict(decoder.new_kv)
    for params in orders:
        match params:
            case Forward(sequence, start, tokens):
                kv = sequences[sequence]
                kv.crop(start)
                decoder.follow(tokens, kv)
            case Copy(sequence, twin, num_tokens):
                sequences[twin] = sequences[sequence].copy(num_tokens)
            case Forget(sequence):
                sequences.pop(sequence, None)


def _decoder(assignment: Assignment, answers: TextIO) -> Decoder:
    """This rank's share of the model, once all ranks have met."""
    torch.set_num_threads(assignment.num_threads)
    share, device = Share(assignment.rank, assignment.num_ranks), torch.device(assignment.device)
    folder = Path(assignment.folder)
    model = empty_model(folder, getattr(torch, assignment.dtype))
    fill(model, folder, share, device)
    answers.write("ready\n")
    return Decoder(model, assignment.window, group.join(Path(assignment.rendezvous), share, device))


def _answers() -> TextIO:
    """The way to rank 0, where nothing gets by accident: what libraries print goes with the errors."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _end_with_rank_0() -> None:
    hangup = select.poll()
    hangup.register(sys.stdin.fileno(), 0)  # told of nothing but the other side's end
    hangup.poll()
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
