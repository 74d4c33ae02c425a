"""Tables of runs: the measurements, and the same in the paper's layout."""

from collections.abc import Mapping, Sequence
from typing import Any

from semspec.bench.configuration import PEER_METHODS, parse
from semspec.bench.intervals import Interval
from semspec.bench.record import STAGES
from semspec.bench.report import paper
from semspec.bench.summary import Row, Run
from semspec.stack import BUNDLED_PAIR
from semspec.training.report.document import Table
from semspec.training.report.numbers import NONE, decimal, measured_decimal, signed

MARGIN = 0.03
"""Largest loss of pass@1 that counts as none, fixed before the runs that it judges."""
MAIN = (
    "configuration", "pass@1", "minus target (McNemar)", "latency s", "speed-up", "tokens/s", "target ratio",
    "accepted segments", "accepted tokens",
)  # fmt: skip
TIMES = (*STAGES, "wire_ms", "other_ms")
DETAILS = (
    "configuration", "median latency s", "tokens an answer", "judged segments", *(name[:-3] for name in TIMES),
    "cut short", "same answer",
)  # fmt: skip
QUALITY = (
    "configuration", "right", "pass@1 in % (95%)", "minus target, points (95%)", "only it / only the target right",
    "loses at most, points", f"loses less than {100 * MARGIN:g} points",
)  # fmt: skip
CELL = "pass@1 / tokens per s / latency s / target ratio"


def main_table(run: Run) -> Table:
    """One row per configuration; those that are not applicable come last, with the reason."""
    reasons = {label: f"not applicable: {reason}" for label, reason in run.not_applicable.items()}
    reasons |= {
        label: f"no result, the host was too slow: {reason}" for label, reason in run.late.items()
    }
    refused = [(label, reason, *(NONE,) * (len(MAIN) - 2)) for label, reason in reasons.items()]
    return Table(_headed(run, MAIN), (*(_main_row(run, row) for row in run.rows), *refused))


def _headed(run: Run, header: Sequence[str]) -> tuple[str, ...]:
    """`header` with the label of a paced run, so that no table of it is without."""
    return (f"{header[0]} ({label})" if (label := paced_label(run)) else header[0], *header[1:])


def paced_label(run: Run) -> str:
    """What a paced run emulates, and for how many sessions; empty if it is not paced."""
    paced = run.settings.get("paced")
    if not paced:
        return ""
    num_sessions = run.settings["sessions"]
    sessions = f"{num_sessions} session{'s' if num_sessions > 1 else ''}"
    dilated = f", dilated {paced['dilation']:g}x" if paced["dilation"] != 1 else ""
    return f"paced: {paced['name']}, {sessions}{dilated}"


def _main_row(run: Run, row: Row) -> tuple[str, ...]:
    is_baseline = row is run.rows[0]
    times = (
        measured_decimal(row.latency_s),
        "1" if is_baseline else measured_decimal(row.speedup, 2),
        decimal(row.tokens_per_s, 0),
    )
    return (
        row.label,
        measured_decimal(row.pass_at_1),
        NONE if is_baseline else lost(row),
        *(times if run.is_timed else (NONE,) * len(times)),
        decimal(row.target_ratio),
        decimal(row.acceptance_rate),
        decimal(row.token_acceptance_rate),
    )


def quality_table(run: Run) -> Table:
    """Right answers with 95% intervals, and whether the loss against the baseline is within the margin."""
    base = run.rows[0]
    return Table(_headed(run, QUALITY), tuple(quality_row(row, row is base) for row in run.rows))


def quality_row(row: Row, is_baseline: bool = False) -> tuple[str, ...]:
    """A row of `QUALITY`."""
    right = (
        row.label,
        f"{row.num_right:,} of {row.num_answers:,}",
        percent(row.pass_at_1.value, row.pass_at_1_95),
    )
    if is_baseline:
        return (*right, *(NONE,) * (len(QUALITY) - len(right)))
    loss = -row.difference_95.low
    return (
        *right,
        percent(row.difference.value, row.difference_95),
        f"{row.num_gained:,} / {row.num_lost:,}",
        f"{100 * loss:.1f}",
        "yes" if loss < MARGIN else "not shown",
    )


def percent(value: float, interval: Interval) -> str:
    """In percent, or in points, with the interval."""
    return f"{100 * value:.1f} ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def details_table(run: Run) -> Table:
    """Stage times of a mean answer, and how answers end."""
    return Table(_headed(run, DETAILS), tuple(_details_row(row) for row in run.rows))


def _details_row(row: Row) -> tuple[str, ...]:
    return (
        row.label,
        decimal(row.median_latency_s),
        decimal(row.mean_tokens, 0),
        decimal(row.num_rounds if row.acceptance_rate is not None else None, 1),
        *(decimal(row.stages_ms.get(name), 1) for name in TIMES),
        f"{row.share_cut:.1%}",
        f"{row.share_equal_to_baseline:.1%}",
    )


def by_task(runs: Sequence[Run], published: Sequence[paper.PublishedRow] = ()) -> Table:
    """A row per method, a column per task, as in the paper; its values for the same pair come last. A row whose method
    the pair does not support says so; a published method that was not run has dashes."""
    labels = dict.fromkeys(
        label for run in runs for label in (*(row.label for row in run.rows), *run.not_applicable)
    )
    known = {parse(label).variant for label in labels}
    labels |= dict.fromkeys(one.label for one in published if one.label not in known)
    found = {(run.name, row.label): row for run in runs for row in run.rows}
    ours = [
        (label, *(_ours(found.get((run.name, label)), run, label) for run in runs))
        for label in labels
    ]
    theirs = [
        (
            f"published: {named(one)}",
            *(_theirs(one.cells.get(run.settings["task"])) for run in runs),
        )
        for one in published
    ]
    return Table(("configuration", *columns(runs).values()), (*ours, *theirs))


def columns(runs: Sequence[Run]) -> Mapping[str, str]:
    """Run -> header of its column; it includes the run's name only if task and temperature are ambiguous."""
    settings = [setting(run) for run in runs]
    return {
        run.name: f"{text} ({run.name})" if settings.count(text) > 1 else text
        for run, text in zip(runs, settings, strict=True)
    }


def published_table() -> Table:
    """The paper's values for its pairs."""
    rows = [
        (f"{one.pair}: {named(one)}", *(_with_speed(one, task) for task in paper.TASKS))
        for one in paper.RESULTS
    ]
    return Table(("pair: method", *paper.TASKS.values()), tuple(rows))


def named(row: paper.PublishedRow) -> str:
    return f"{row.method} (table {row.table})"


def _with_speed(row: paper.PublishedRow, task: str) -> str:
    return (
        f"{_theirs(row.cells[task])} ({paper.speedup_of(row, task):.2f}x)"
        if task in row.cells
        else NONE
    )


def claims_table() -> Table:
    rows = tuple((claim.method, claim.speedup, claim.kind) for claim in paper.CLAIMS)
    return Table(("method", "speed-up claimed", "kind"), rows)


def _ours(row: Row | None, run: Run, label: str) -> str:
    if row is None:
        return "not applicable" if label in run.not_applicable else NONE
    return _cell(row.pass_at_1.value, row.tokens_per_s, row.latency_s.value, row.target_ratio)


def _theirs(cell: paper.Published | None) -> str:
    return (
        NONE
        if cell is None
        else _cell(cell.pass_at_1, cell.tokens_per_s, cell.latency_s, cell.target_ratio)
    )


def _cell(
    pass_at_1: float, tokens_per_s: float, latency_s: float, target_ratio: float | None
) -> str:
    return f"{pass_at_1:.3f} / {_three_digits(tokens_per_s)} / {_three_digits(latency_s)} / {decimal(target_ratio, 2)}"


def _three_digits(value: float) -> str:
    """Rounded as in the paper, never in scientific notation."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def lost(row: Row) -> str:
    """pass@1 against the baseline's; in brackets McNemar's p where the test applies."""
    p = row.mcnemar_p
    p_value = "" if p is None else " (p < 0.001)" if p < 0.001 else f" (p = {p:.2g})"
    return signed(measured_decimal(row.difference)) + p_value


def setting(run: Run) -> str:
    """Task and temperature, for headings: `math500, T 0.6`; for a paced run also what it emulates."""
    label = paced_label(run)
    return (
        f"{run.settings['task']}, T {run.settings['temperature']:g}{f', {label}' if label else ''}"
    )


def sample_size(run: Run) -> str:
    row = run.rows[0]
    each = f", {row.num_samples} answers each" if row.num_samples > 1 else ""
    return f"{row.num_questions:,} question{'s' if row.num_questions != 1 else ''}{each}"


def pair_name(run: Run) -> str:
    name = run.settings.get("pair") or run.settings.get("gateway") or "unnamed pair"
    return "bundled pair" if name == BUNDLED_PAIR.name else str(name)


def is_peer(row: Row) -> bool:
    return row.configuration.runner in PEER_METHODS


def main_row(run: Run) -> Row | None:
    """The row of the semantic strategy as served: through the gateway if possible, with the fewest options."""
    rows = [row for row in run.rows if row.configuration.method == "semantic"]
    return min(
        rows,
        key=lambda row: (row.configuration.runner != "gateway", len(row.configuration.knobs)),
        default=None,
    )


def without(knobs: Mapping[str, Any], *names: str) -> tuple[tuple[str, Any], ...]:
    """The other options, as a key to group by."""
    return tuple(sorted((name, value) for name, value in knobs.items() if name not in names))


_PACED_OPTIONS = {"pace": "name", "dilate": "dilation"}


def run_command(run: Run, labels: Sequence[str]) -> str:
    """The command that measures these configurations with the run's settings, its baseline first."""
    settings, paced = run.settings, run.settings.get("paced") or {}
    options = {
        "--task": settings["task"],
        "--temperature": f"{settings['temperature']:g}",
        "--pair": settings.get("pair") if settings.get("pair") != BUNDLED_PAIR.name else None,
        "--gateway": settings.get("gateway"),
        "--limit": run.rows[0].num_questions,
        "--samples": run.rows[0].num_samples if run.rows[0].num_samples > 1 else None,
        **{f"--{option}": paced.get(name) for option, name in _PACED_OPTIONS.items()},
        "--sessions": settings["sessions"] if settings["sessions"] > 1 else None,
        "--strategy": ",".join(dict.fromkeys([run.rows[0].label, *labels])),
    }
    named = " ".join(f"{name} {value}" for name, value in options.items() if value is not None)
    return f"semspec bench run {named}"
