"""What each part is worth: features of the probes, gamma, segmentation; and which command gives what is missing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from semspec.bench.report.tables import lost, run_command, without
from semspec.bench.summary import Row, Run
from semspec.training.report.document import Table
from semspec.training.report.numbers import decimal, measured_decimal

FEATURES = {
    "semantic": "all layers, with surprisal",
    "last-hidden": "last layer",
    "surprisal": "surprisal alone",
    "random": "nothing: random probabilities",
}
"""Strategy -> what its verifier judges by."""
GAMMAS = (1, 2, 3)
SEGMENTATIONS = ("paragraph", "sentence")
HEADER = ("pass@1", "minus target (McNemar)", "speed-up", "target ratio", "accepted segments")


@dataclass(frozen=True, slots=True)
class Ablation:
    """Rows of one run that differ in one thing."""

    run: Run
    title: str
    """Of what varies."""
    rows: Sequence[tuple[str, Row]]
    """By the value it has."""
    missing: Sequence[str]
    """Labels that would complete it."""

    @property
    def is_comparison(self) -> bool:
        return len(self.rows) > 1

    @property
    def command(self) -> str:
        """What measures the whole of it."""
        return run_command(self.run, [*(row.label for _, row in self.rows), *self.missing])

    def table(self) -> Table:
        return Table((self.title, *HEADER), tuple((value, *_cells(row)) for value, row in self.rows))


def features(run: Run) -> Ablation:
    """Which states the probes see, all else as most of these rows have it."""
    runner = run.rows[0].configuration.runner
    groups: dict[str, dict[str, Row]] = {}
    for row in run.rows:
        method, _, knobs = row.label.rpartition("/")[2].partition(":")
        if row.configuration.runner == runner and method in FEATURES:
            groups.setdefault(knobs, {})[method] = row
    knobs, found = max(groups.items(), key=lambda group: len(group[1]), default=("", {}))
    rows = [(name, found[method]) for method, name in FEATURES.items() if method in found]
    missing = [f"{method}:{knobs}" if knobs else method for method in FEATURES if method not in found]
    return Ablation(run, "probes see", rows, missing)


def gammas(run: Run) -> Ablation:
    """Segments drafted before the target reads them, all else as most rows have it. A label that names none has the
    pair's own, which the run does not know."""
    return _by_knob(run, "gamma", GAMMAS, "gamma", usual=None)


def segmentations(run: Run) -> Ablation:
    """Where segments end; where a label does not say, at paragraphs."""
    return _by_knob(run, "segmentation", SEGMENTATIONS, "segments end at", usual="paragraph")


def remarks(ablation: Ablation) -> Iterator[str]:
    """Plainly, which cheaper probes did at least as well as those with all layers."""
    found = dict(ablation.rows)
    full = found.get(FEATURES["semantic"])
    for method in ("last-hidden", "surprisal", "random"):
        row = found.get(FEATURES[method])
        if full and row and row.pass_at_1.value >= full.pass_at_1.value and row.speedup.value >= full.speedup.value:
            yield (
                f"In `{ablation.run.name}`, `{method}` is at least as right and as fast as `{full.label}`: "
                f"pass@1 {decimal(row.pass_at_1.value)} against {decimal(full.pass_at_1.value)}, "
                f"speed-up {decimal(row.speedup.value, 2)} against {decimal(full.speedup.value, 2)}."
            )


def _by_knob(run: Run, knob: str, values: Sequence[Any], title: str, usual: Any | None) -> Ablation:
    """`usual` is what a label without the knob means; None: such a label is left out."""
    groups: dict[object, dict[Any, Row]] = {}
    for row in run.rows:
        value = row.configuration.knobs.get(knob, usual)
        if row.configuration.method == "semantic" and value is not None:
            others = row.configuration.runner, without(row.configuration.knobs, knob)
            groups.setdefault(others, {})[value] = row
    group = max(groups.values(), key=len, default={})
    rows = [(str(value), group[value]) for value in sorted(group)]
    label = next(iter(group.values())).label if group else "semantic"
    head = ":".join(part for part in label.split(":") if not part.startswith(f"{knob}="))
    labels = {value: head if value == usual else f"{head}:{knob}={value}" for value in values}
    return Ablation(run, title, rows, [labels[value] for value in values if value not in group])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        measured_decimal(row.pass_at_1),
        lost(row),
        measured_decimal(row.speedup, 2),
        decimal(row.target_ratio),
        decimal(row.acceptance_rate),
    )
