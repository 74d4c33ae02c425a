"""The table of a run, and its names."""

from semspec.reporting.document import Table
from semspec.reporting.numbers import NONE, decimal
from semspec.stack import BUNDLED_PAIR
from semspec_bench.intervals import Interval
from semspec_bench.summary import Row, Run

COMPARED = ("minus target, points (95%)", "only it / only the target right", "speed-up")
"""Columns without a value for the baseline."""


def main_table(run: Run) -> Table:
    """Return one row per configuration; those without a result come last, with the reason."""
    rows = [_cells(run, row) for row in run.rows]
    columns = [column for column in rows[0] if any(row[column] != NONE for row in rows)]
    reasons = {label: f"not applicable: {reason}" for label, reason in run.not_applicable.items()}
    refused = [(label, reason, *(NONE,) * (len(columns) - 2)) for label, reason in reasons.items()]
    return Table(columns, [*(tuple(row[column] for column in columns) for row in rows), *refused])


def _cells(run: Run, row: Row) -> dict[str, str]:
    """Return a row's cells by their column; times only if they are results."""
    p = row.mcnemar_p
    test = "" if p is None else " (p < 0.001)" if p < 0.001 else f" (p = {p:.2g})"
    difference, discordant, speedup = COMPARED
    cells = {
        "configuration": row.label,
        "right": f"{row.num_right:,} of {row.num_answers:,}",
        "pass@1 in % (95%)": _percent(row.pass_at_1.value, row.pass_at_1_95),
        difference: _percent(row.difference.value, row.difference_95),
        discordant: f"{row.num_gained:,} / {row.num_lost:,}{test}",
    }
    if run.is_timed:
        cells[speedup] = decimal(row.speedup, 2)
        cells["latency s"] = decimal(row.latency_s)
        cells["tokens/s"] = decimal(row.tokens_per_s, 0)
    if row is run.rows[0]:
        cells |= {column: NONE for column in COMPARED if column in cells}
    return cells | {
        "target ratio": decimal(row.target_ratio),
        "accepted segments": decimal(row.acceptance_rate),
        "accepted tokens": decimal(row.token_acceptance_rate),
    }


def _percent(value: float, interval: Interval) -> str:
    return f"{100 * value:.1f} ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def setting(run: Run) -> str:
    """Return task and temperature."""
    return f"{run.settings['task']}, T {run.settings['temperature']:g}"


def sample_size(run: Run) -> str:
    num_samples, num_questions = run.rows[0].num_samples, run.rows[0].num_questions
    per_question = f", {num_samples} answers each" if num_samples > 1 else ""
    return f"{num_questions:,} question{'s'[: num_questions != 1]}{per_question}"


def pair_name(run: Run) -> str:
    name = run.settings.get("pair") or run.settings.get("gateway") or "unnamed pair"
    return "bundled pair" if name == BUNDLED_PAIR.name else str(name)
