"""Ablations: the probes' features, gamma, segmentation; and the commands that measure what is missing."""

from collections.abc import Sequence
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
"""Variant -> the features of its probes."""
_LABELS = {probes: f"semantic:probes={probes}" for probes in ("last-hidden", "surprisal")}
GAMMAS = (1, 2, 3)
SEGMENTATIONS = ("paragraph", "sentence")
HEADER = ("pass@1", "minus target (McNemar)", "speed-up", "target ratio", "accepted segments")


@dataclass(frozen=True, slots=True)
class Ablation:
    """Rows of one run that differ in one option."""

    run: Run
    title: str
    """Name of the option."""
    rows: Sequence[tuple[str, Row]]
    """Rows by the option's value."""
    missing: Sequence[str]
    """Labels that would complete it."""

    @property
    def is_comparison(self) -> bool:
        return len(self.rows) > 1

    @property
    def command(self) -> str:
        """The command that measures the whole ablation."""
        return run_command(self.run, [*(row.label for _, row in self.rows), *self.missing])

    def table(self) -> Table:
        return Table(
            (self.title, *HEADER), tuple((value, *_cells(row)) for value, row in self.rows)
        )


def features(run: Run) -> Ablation:
    """The probes' features, with all other options as in most of these rows."""
    runner = run.rows[0].configuration.runner
    groups: dict[str, dict[str, Row]] = {}
    for row in run.rows:
        variant, knobs = row.configuration.variant, row.configuration.knobs
        others = "".join(f":{name}={value}" for name, value in knobs.items() if name != "probes")
        if row.configuration.runner == runner and variant in FEATURES:
            groups.setdefault(others, {})[variant] = row
    others, rows_by_variant = max(groups.items(), key=lambda group: len(group[1]), default=("", {}))
    rows = [
        (name, rows_by_variant[variant])
        for variant, name in FEATURES.items()
        if variant in rows_by_variant
    ]
    missing = [
        f"{_LABELS.get(variant, variant)}{others}"
        for variant in FEATURES
        if variant not in rows_by_variant
    ]
    return Ablation(run, "probes see", rows, missing)


def gammas(run: Run) -> Ablation:
    """Gamma, the segments drafted per round, with all other options as in most rows. A label without gamma has the
    pair's default, which the run does not record."""
    return _by_knob(run, "gamma", GAMMAS, "gamma", usual=None)


def segmentations(run: Run) -> Ablation:
    """The segmentation; a label without one means paragraphs."""
    return _by_knob(run, "segmentation", SEGMENTATIONS, "segments end at", usual="paragraph")


def _by_knob(run: Run, knob: str, values: Sequence[Any], title: str, usual: Any | None) -> Ablation:
    """`usual` is the value of a label without the option; None excludes such labels."""
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
