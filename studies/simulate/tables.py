"""Tables from simulations: what layouts of GPUs serve, and how the gain depends on segments and acceptance."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from semspec.bench.pace.table import Pace, load_pace
from semspec.bench.report.paper import RESULTS, TASKS, speedup_of
from semspec.training.report.document import Table
from semspec.types import Writer
from studies.simulate.engines import Host
from studies.simulate.simulator import Result, Setup, simulate
from studies.simulate.workload import Workload

PACE, TP2, TWO_TARGETS = "h200-1.5b-32b", "h200-1.5b-32b-tp2", "h200-1.5b-32b-2-targets"
SESSIONS = (1, 8, 32, 128)
SEGMENT_TOKENS = (10, 20, 40, 80)
ACCEPTANCES = (0.6, 0.7, 0.8, 0.9, 0.95)
MANY = 32
"""Sessions of the second surface."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Layout:
    """Engines of one unit; units share no session."""

    name: str
    setup: Setup


def layouts(host: Host) -> list[Layout]:
    """The layouts that are compared, the target on one GPU first."""
    one = load_pace(PACE)

    def semantic(num_drafts: int, pace: Pace) -> Setup:
        return Setup(pace, "semantic", num_drafts=num_drafts, host=host)

    return [
        Layout("target alone", Setup(one, "target", host=host)),
        Layout("target alone, tensor parallel 2", Setup(load_pace(TP2), "target", host=host)),
        Layout("target alone, 2 replicas", Setup(load_pace(TWO_TARGETS), "target", host=host)),
        Layout("semantic: 1 draft, 1 target", semantic(1, one)),
        Layout("semantic: 1 draft, target of tensor parallel 2", semantic(1, load_pace(TP2))),
        Layout("semantic: 1 draft, 2 targets", semantic(1, replace(one, num_targets=2))),
        Layout("semantic: 1 draft, 4 targets", semantic(1, replace(one, num_targets=4))),
        Layout("semantic: 2 drafts, 4 targets", semantic(2, replace(one, num_targets=4))),
    ]


@dataclass(frozen=True, slots=True)
class Capacity:
    """One layout under one load."""

    layout: Layout
    result: Result
    alone: Result
    """The target alone on one GPU under the same load."""

    def row(self, gpu_hour: float) -> tuple[str, ...]:
        result, used = self.result, self.result.utilisation
        return (
            self.layout.name,
            str(result.setup.num_gpus),
            str(result.setup.num_sessions),
            f"{result.tokens_per_s:,.0f}",
            f"{result.tokens_per_s / self.alone.tokens_per_s:.2f}",
            f"{result.tokens_per_s / result.setup.num_gpus:,.0f}",
            f"{result.percentile_s(50):.1f} / {result.percentile_s(95):.1f}",
            f"{used[Writer.DRAFT]:.0%} / {used[Writer.TARGET]:.0%}",
            f"{result.cost_per_million(gpu_hour):.2f}",
        )


CAPACITY = (
    "paced layout (h200-1.5b-32b, simulated)", "GPUs", "sessions", "tokens/s", "of target alone", "tokens/s a GPU",
    "latency s, p50 / p95", "busy: draft / target", "$ a million tokens",
)  # fmt: skip


def capacities(workload: Workload, host: Host, say: Say, sessions: Sequence[int] = SESSIONS) -> Iterator[Capacity]:
    """Each layout under each load."""
    alone: dict[int, Result] = {}
    for layout in layouts(host):
        for num_sessions in sessions:
            answers = workload.answers(max(8, 2 * num_sessions))
            result = simulate(replace(layout.setup, num_sessions=num_sessions), answers)
            alone.setdefault(num_sessions, result)
            say(f"{layout.name}, {num_sessions} sessions: {result.tokens_per_s:,.0f} tokens/s")
            yield Capacity(layout, result, alone[num_sessions])


def capacity_table(found: Sequence[Capacity], gpu_hour: float) -> Table:
    return Table(CAPACITY, tuple(one.row(gpu_hour) for one in found))


@dataclass(frozen=True, slots=True)
class Surface:
    """Tokens/s of semantic speculation, as a multiple of the target alone on one GPU, by acceptance and length."""

    num_sessions: int
    gains: Mapping[tuple[float, int], float]

    def table(self) -> Table:
        label = f"paced h200-1.5b-32b (simulated), {self.num_sessions} session{'s' if self.num_sessions > 1 else ''}"
        lengths = sorted({length for _, length in self.gains})
        rows = [
            (f"acceptance {acceptance:g}", *(f"{self.gains[acceptance, length]:.2f}" for length in lengths))
            for acceptance in sorted({acceptance for acceptance, _ in self.gains})
        ]
        return Table((label, *(f"{length} tokens" for length in lengths)), tuple(rows))


def surface(
    num_sessions: int, workload: Workload, host: Host, say: Say, acceptances: Sequence[float] = ACCEPTANCES
) -> Surface:
    """Simulate all lengths and acceptances with the same random numbers."""
    pace, num_answers = load_pace(PACE), max(8, 2 * num_sessions)
    alone = simulate(Setup(pace, "target", num_sessions, host=host), workload.answers(num_answers))
    gains = {}
    for acceptance in acceptances:
        for length in SEGMENT_TOKENS:
            answers = replace(workload, segment_tokens=length, acceptance=acceptance).answers(num_answers)
            result = simulate(Setup(pace, "semantic", num_sessions, host=host), answers)
            gains[acceptance, length] = result.tokens_per_s / alone.tokens_per_s
        say(f"{num_sessions} sessions, acceptance {acceptance:g}")
    return Surface(num_sessions, gains)


def beside_paper(workload: Workload, host: Host, say: Say) -> Table:
    """The paper's rows, and simulations of one session that accept 1 - its target ratio."""
    published = [(row, task) for row in RESULTS if row.label == "semantic" and row.table == 1 for task in TASKS]
    ratios = {row.cells[task].target_ratio or 0.0 for row, task in published}
    simulated = surface(1, workload, host, say, sorted(1 - ratio for ratio in ratios))
    header = (
        "paper's pair, task", "its target ratio", "its speed-up (2 x 80 GB)",
        *(f"paced, simulated: {length} tokens" for length in SEGMENT_TOKENS),
    )  # fmt: skip
    rows = []
    for row, task in published:
        ratio = row.cells[task].target_ratio or 0.0
        gains = (f"{simulated.gains[1 - ratio, length]:.2f}" for length in SEGMENT_TOKENS)
        rows.append((f"{row.pair}, {TASKS[task]}", f"{ratio:.2f}", f"{speedup_of(row, task):.2f}", *gains))
    return Table(header, tuple(rows))
