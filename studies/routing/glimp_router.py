"""GlimpRouter (Zeng et al. 2026, arXiv:2601.05110): entropy of the draft's first token of a step says who writes it.

draft's distribution of a step's first token -> entropy below the threshold: the draft writes the step, else the target.

The entropy is exact, in nats, of the whole vocabulary at temperature 1. A step is a segment.
"""

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

import numpy as np

from semspec.decoding.generation import Generation, Limits, Progress, Step, Strategy
from semspec.decoding.protocols import Backends
from semspec.decoding.steps import (
    Stopwatch,
    drafted_segment,
    or_backend_unavailable,
    total,
    waited,
    written_by_target,
)
from semspec.types import SamplingParams, SegmentRecord

ENTROPY = Limits("glimp-router", "acceptance.threshold", 1.0, 0, 12)


async def rounds(progress: Progress, backends: Backends, most: float) -> AsyncGenerator[Step, None]:
    whole = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, seed=0)
    while progress.finish_reason is None:
        clock, params = Stopwatch(), progress.params("draft", max_segments=1)
        glimpse = replace(params, sampling=whole)
        proposal = await or_backend_unavailable(
            "draft", backends.drafter.propose(progress.draft_context, (), glimpse, 1)
        )
        likely = np.frombuffer(proposal.distributions[0].probabilities, "<f4")
        entropy = float(-(likely * np.log(likely)).sum())
        times = waited("draft_ms", clock.lap_ms(), proposal.duration_ms)
        if entropy <= most:
            record = await drafted_segment(progress, backends.drafter, params)
        else:
            written = written_by_target(progress, backends, 1)
            [record] = [step async for step in written if isinstance(step, SegmentRecord)]
        record = replace(record, times=total(record.times, times))
        progress = progress.after(record.segment)
        yield record


def strategy(generation: Generation) -> Strategy:
    acceptance = generation.options.acceptance
    most = ENTROPY.of(acceptance.threshold)
    options = replace(generation.options, acceptance=replace(acceptance, threshold=most))
    return Strategy("glimp-router", partial(rounds, most=most), options)
