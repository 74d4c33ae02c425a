"""Ways to use two H100 for one pair, from 1 to 64 sessions: `python -m studies.simulate`.

Step times are fitted to steps that one H100 was measured to take; those of tensor parallel 2 rest on assumed
all-reduces. The layout `separate, measured steps` has the measured times themselves. The fit takes less for many reads
at once than was measured, so that layout is slower from 8 sessions on.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from pathlib import Path

from semspec.types import Writer
from semspec_bench.gpu.shapes import PAPER
from studies.simulate.engines import Host
from studies.simulate.roofline import H100, PLAIN, drafting, fitted_times
from studies.simulate.simulator import Result, Setup, simulate
from studies.simulate.times import Layout, Points, StepTimes
from studies.simulate.workload import Workload

SESSIONS = (1, 8, 32, 64)
CONTEXTS = (2048, 8192)
"""Tokens of keys and values a session. The range is simulated with the first alone."""
RANGE = tuple(product((0.78, 0.9), (20, 40), (4.1, 5.0)))
"""Acceptance, tokens a segment, ms of a draft's step."""
MIDDLE = (0.84, 30, 4.1)
MEASURED = "separate, measured steps"
LAYOUTS = (
    "target, TP 2",
    "target, 2 replicas",
    "separate",
    MEASURED,
    "colocated",
    "colocated, 1 ms idle",
)
MEASUREMENTS = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu-h100" / "gpu.json"
MEASURED_CONTEXTS = {"decode": 900, "read": 1024}
"""Cached tokens of the measured steps that are taken: the smallest of each kind."""
MEASURED_SESSIONS = 32
"""The most sequences of a measured step."""
FITTING: Mapping[str, int] = {
    "target, TP 2": 328_963,
    "target, 2 replicas": 85_332,
    "separate": 42_666,
    MEASURED: 42_666,
}
"""Tokens of keys and values on two GPUs of 80 GB, by the sums of `semspec plan`."""
FITTING_COLOCATED = 213_189
HEADER = (
    "simulated: 2 x H100", "context", "sessions", "tokens/s", "of TP 2", "range", "tokens/s a GPU",
    "latency s, p50 / p95", "busy: draft / target", "bounded by",
)  # fmt: skip


def setup_of(layout: str, context: int, draft_ms: float) -> Setup:
    """The engines of `layout` with keys and values of `context` tokens a session."""
    is_plain, is_colocated = layout.startswith("target"), layout.startswith("colocated")
    num_gpus = 2 if is_colocated or layout == "target, TP 2" else 1
    if layout == MEASURED:
        draft, target = measured_times("draft"), measured_times("target")
    else:
        draft = fitted_times(PAPER.draft, replace(drafting(draft_ms), context_tokens=context), 1)
        rates = replace(PLAIN if is_plain else H100, context_tokens=context)
        target = fitted_times(PAPER.target, rates, num_gpus)
    engines = Layout(
        layout, draft, target, 2 if layout == "target, 2 replicas" else 1, is_colocated
    )
    num_fitting = FITTING.get(layout, FITTING_COLOCATED) // context
    idle_ms = 1.0 if layout == LAYOUTS[-1] else 0.0
    return Setup(
        engines, "target" if is_plain else "semantic", num_fitting=num_fitting, idle_ms=idle_ms
    )


def measured_times(role: str) -> StepTimes:
    """Median times of a step with states on one H100, as measured; reads at once count as one step.

    A read never takes less than a smaller one of as many sequences: the slower of the two times counts.
    """
    by_sequences: dict[int, dict[int, float]] = {}
    for row in json.loads(MEASUREMENTS.read_text())["stages"][role]["facts"]["rows"]:
        kind = row["what"]
        if (
            kind in MEASURED_CONTEXTS
            and MEASURED_CONTEXTS[kind] == row["context"]
            and row.get("states", True)
        ):
            num_extra = row["streams"] * (row["tokens"] - 1)
            by_sequences.setdefault(row["streams"], {})[num_extra] = row["ms"]["median"]
    rising = {number: _rising(sorted(times.items())) for number, times in by_sequences.items()}
    return StepTimes(1, rising)


def _rising(points: Sequence[tuple[int, float]]) -> Points:
    highest = accumulate((step_ms for _, step_ms in points), max)
    return [(num_extra, step_ms) for (num_extra, _), step_ms in zip(points, highest, strict=True)]


def _layouts(context: int, num_sessions: int) -> Iterator[str]:
    """Yield the layouts whose steps are known with this load."""
    is_measured = context == CONTEXTS[0] and num_sessions <= MEASURED_SESSIONS
    return (layout for layout in LAYOUTS if layout != MEASURED or is_measured)


@dataclass(frozen=True, slots=True)
class Row:
    """One layout at one load, in the middle of the range and as the least and most of it."""

    layout: str
    context: int
    result: Result
    tp2: Result
    gains: Sequence[float]
    """Tokens/s as multiples of TP 2's, over the range."""

    def cells(self) -> tuple[str, ...]:
        result, used = self.result, self.result.utilisation
        return (
            self.layout,
            f"{self.context:,}",
            str(result.setup.num_sessions),
            f"{result.tokens_per_s:,.0f}",
            f"{result.tokens_per_s / self.tp2.tokens_per_s:.2f}",
            f"{min(self.gains):.2f} to {max(self.gains):.2f}" if self.gains else "-",
            f"{result.tokens_per_s / result.setup.num_gpus:,.0f}",
            f"{result.percentile_s(50):.1f} / {result.percentile_s(95):.1f}",
            f"{used[Writer.DRAFT]:.0%} / {used[Writer.TARGET]:.0%}",
            self.bound(),
        )

    def bound(self) -> str:
        setup, used = self.result.setup, self.result.utilisation
        if setup.num_sessions > setup.num_fitting:
            return f"memory: {setup.num_fitting} answers at a time"
        if setup.layout.is_colocated:
            return "GPU 0"
        most = max(used, key=lambda writer: used[writer])
        return str(most) if used[most] > 0.9 else "one step after another"


def rows(workload: Workload, host: Host, say: Callable[[str], None]) -> Iterator[Row]:
    """Each layout at each load; `workload`: all but acceptance and segments."""
    for context, num_sessions in product(CONTEXTS, SESSIONS):

        def run(layout: str, point: tuple[float, int, float]) -> Result:
            acceptance, segment_tokens, draft_ms = point
            setup = replace(
                setup_of(layout, context, draft_ms),  # noqa: B023
                num_sessions=num_sessions,  # noqa: B023
                host=host,
            )
            load = replace(workload, acceptance=acceptance, segment_tokens=segment_tokens)
            return simulate(setup, load.answers(max(16, 2 * num_sessions)))  # noqa: B023

        tp2 = run(LAYOUTS[0], MIDDLE)
        for layout in _layouts(context, num_sessions):
            points = RANGE if context == CONTEXTS[0] and not layout.startswith("target") else ()
            gains = [run(layout, point).tokens_per_s / tp2.tokens_per_s for point in points]
            row = Row(layout, context, run(layout, MIDDLE), tp2, gains)
            say(" | ".join(row.cells()))
            yield row
