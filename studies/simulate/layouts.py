"""Ways to use two H100 for one pair, from 1 to 64 sessions: `python -m studies.simulate layouts`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from semspec.bench.gpu.shapes import PAPER, Shape
from semspec.bench.pace.roofline import H100, PLAIN, Rates, as_csv, drafting
from semspec.bench.pace.table import Pace, StepTimes, load_times
from semspec.training.report.document import Table
from semspec.types import Writer
from studies.simulate.engines import Host
from studies.simulate.simulator import Result, Setup, simulate
from studies.simulate.workload import Workload

SESSIONS = (1, 8, 32, 64)
CONTEXTS = (2048, 8192)
"""Tokens of keys and values a session. The range is simulated with the first alone."""
RANGE = tuple(product((0.78, 0.9), (20, 40), (4.1, 5.0)))
"""Acceptance, tokens a segment, ms of a draft's step."""
MIDDLE = (0.84, 30, 4.1)
LAYOUTS = ("target, TP 2", "target, 2 replicas", "separate", "colocated", "colocated, 1 ms idle")
FITTING: Mapping[str, int] = {"target, TP 2": 329_623, "target, 2 replicas": 85_992, "separate": 42_996}
"""Tokens of keys and values on two GPUs of 80 GB, by the sums of `semspec plan`."""
FITTING_COLOCATED = 213_937
HEADER = (
    "paced, simulated: 2 x H100", "context", "sessions", "tokens/s", "of TP 2", "range", "tokens/s a GPU",
    "latency s, p50 / p95", "busy: draft / target", "bounded by",
)  # fmt: skip


def setup_of(layout: str, context: int, draft_ms: float) -> Setup:
    """The engines of `layout` with keys and values of `context` tokens a session."""
    is_plain, is_colocated = layout.startswith("target"), layout.startswith("colocated")
    num_gpus = 2 if is_colocated or layout == "target, TP 2" else 1
    draft = _times(PAPER.draft, drafting(draft_ms), 1, context)
    target = _times(PAPER.target, PLAIN if is_plain else H100, num_gpus, context)
    pace = Pace(layout, draft, target, 2 if layout == "target, 2 replicas" else 1, is_colocated)
    num_fitting = FITTING.get(layout, FITTING_COLOCATED) // context
    idle_ms = 1.0 if layout == LAYOUTS[-1] else 0.0
    return Setup(pace, "target" if is_plain else "semantic", num_fitting=num_fitting, idle_ms=idle_ms)


def _times(shape: Shape, rates: Rates, num_gpus: int, context: int) -> StepTimes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "times.csv"
        path.write_text(as_csv(shape, replace(rates, context_tokens=context), num_gpus))
        return load_times(path)


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
        if setup.pace.is_colocated:
            return "GPU 0"
        most = max(used, key=lambda writer: used[writer])
        return str(most) if used[most] > 0.9 else "one step after another"


def rows(workload: Workload, host: Host, say: Callable[[str], None]) -> Iterator[Row]:
    """Each layout at each load; `workload`: all but acceptance and segments."""
    for context, num_sessions in product(CONTEXTS, SESSIONS):

        def run(layout: str, point: tuple[float, int, float]) -> Result:
            acceptance, segment_tokens, draft_ms = point
            setup = replace(setup_of(layout, context, draft_ms), num_sessions=num_sessions, host=host)  # noqa: B023
            own = replace(workload, acceptance=acceptance, segment_tokens=segment_tokens)
            return simulate(setup, own.answers(max(16, 2 * num_sessions)))  # noqa: B023

        tp2 = run(LAYOUTS[0], MIDDLE)
        for layout in LAYOUTS:
            points = RANGE if context == CONTEXTS[0] and not layout.startswith("target") else ()
            gains = [run(layout, point).tokens_per_s / tp2.tokens_per_s for point in points]
            row = Row(layout, context, run(layout, MIDDLE), tp2, gains)
            say(" | ".join(row.cells()))
            yield row


def layout_table(found: Sequence[Row]) -> Table:
    return Table(HEADER, tuple(row.cells() for row in found))
