"""What a segment costs each model, one at a time as when served: for the report's expected speed-up."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch

from semspec.engine.batch import ContextBatch
from semspec.types import SamplingParams, Segmentation, Writer
from training.data.contexts import ProbeContext
from training.data.pair import Pair
from training.evaluation.evaluate import Cost

T = TypeVar("T")


def measure(pair: Pair, contexts: Sequence[ProbeContext], segmentation: Segmentation, max_tokens: int) -> Cost:
    """Medians over `contexts` of writing and reading one next segment, its context already known."""
    written: dict[Writer, list[float]] = {Writer.DRAFT: [], Writer.TARGET: []}
    reads: list[float] = []
    for context in contexts:
        for writer, desk in pair.desks.items():
            batch = ContextBatch(desk.lm, desk.lm.tokenizer.context_ids(context.context))
            [segment], seconds = _timed(partial(batch.sample, SamplingParams(), [0], segmentation, max_tokens))
            written[writer].append(1e3 * seconds / len(segment.token_ids))
            if writer is Writer.TARGET:
                reads.append(1e3 * _timed(partial(batch.read, [segment.token_ids]))[1])
    return Cost(
        draft_ms_per_token=round(median(written[Writer.DRAFT]), 3),
        target_ms_per_token=round(median(written[Writer.TARGET]), 3),
        read_ms=round(median(reads), 3),
        judge_ms=0.0,
    )


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    _synchronize()
    start = perf_counter()
    result = work()
    _synchronize()
    return result, perf_counter() - start


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
