"""Numbers, rows and runs as they stand in tables and sentences."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from bench.configuration import PEER_METHODS
from bench.summary import Estimate, Row, Run
from semspec.stack import BUNDLED_PAIR
from training.evaluation.wording import decimal

NONE = "-"


def number(value: float | None, num_digits: int = 3) -> str:
    return NONE if value is None else decimal(value, num_digits)


def estimate(measured: Estimate, num_digits: int = 3) -> str:
    error = "" if isnan(measured.error) else f" ± {measured.error:.{num_digits}f}"
    return decimal(measured.value, num_digits) + error


def signed(measured: Estimate) -> str:
    return ("" if measured.value < 0 else "+") + estimate(measured)


def p_value(value: float | None) -> str:
    """In brackets; nothing where the test does not apply."""
    if value is None:
        return ""
    return " (p < 0.001)" if value < 0.001 else f" (p = {value:.2g})"


def lost(row: Row) -> str:
    """pass@1 against the baseline's."""
    return signed(row.difference) + p_value(row.mcnemar_p)


def setting(run: Run) -> str:
    """What was asked and how, for headings: `math500, T 0.6`."""
    return f"{run.settings['task']}, T {run.settings['temperature']:g}"


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
    """The semantic strategy as served: through the gateway where there is one, with the fewest knobs turned."""
    rows = [row for row in run.rows if row.configuration.method == "semantic"]
    return min(
        rows, key=lambda row: (row.configuration.runner != "gateway", len(row.configuration.knobs)), default=None
    )


def without(knobs: Mapping[str, Any], *names: str) -> tuple[tuple[str, Any], ...]:
    """What is left of the knobs, to group by."""
    return tuple(sorted((name, value) for name, value in knobs.items() if name not in names))


def run_command(run: Run, labels: Sequence[str]) -> str:
    """What measures these configurations as the run did, its baseline first."""
    settings = run.settings
    options = {
        "--task": settings["task"],
        "--temperature": f"{settings['temperature']:g}",
        "--pair": settings.get("pair") if settings.get("pair") != BUNDLED_PAIR.name else None,
        "--gateway": settings.get("gateway"),
        "--limit": run.rows[0].num_questions,
        "--samples": run.rows[0].num_samples if run.rows[0].num_samples > 1 else None,
        "--strategy": ",".join(dict.fromkeys([run.rows[0].label, *labels])),
    }
    named = " ".join(f"{name} {value}" for name, value in options.items() if value is not None)
    return f"semspec bench run {named}"
