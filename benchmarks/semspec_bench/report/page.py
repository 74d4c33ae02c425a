"""Writes the report of one or several runs: a page, tables for other pages, and all numbers."""

import json
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

from semspec.errors import InvalidRequest
from semspec.files import read_json
from semspec.reporting.document import write_page, write_text
from semspec.reporting.drawing import Panel, draw
from semspec.reporting.files import plain, write_json
from semspec.reporting.numbers import Measured
from semspec.training.evaluation.report import about_probes
from semspec_bench.record import ANSWERS, write_answers
from semspec_bench.report import paper, tables
from semspec_bench.summary import Row, Run

QUESTION = "How right and how fast are the answers of each strategy, next to the target's alone?"

NEAR = 0.12
"""Largest loss of pass@1 that is near the target's."""


def write_report(runs: Sequence[Run], output: Path, probes: Path | None = None) -> None:
    """Write the self-contained `report.html` and `summary.json`; for each run its table, `NAME.md`, and its records,
    `NAME.jsonl.gz`.

    `probes` is the `report.json` of the probes. Each file is replaced atomically. Raises: InvalidRequest.
    """
    _check(runs)
    summaries = {run.name: _summary(run) for run in runs}
    shown = [_shown(run) | summaries[run.name] for run in runs]
    data = {"runs": shown} | (read_probes(probes) if probes else {})
    for run in runs:
        write_text(output / f"{run.name}.md", tables.main_table(run).as_markdown())
        write_answers(output / f"{run.name}{ANSWERS}", run.records, with_traces=run.is_timed)
    title = f"Bench: {', '.join(dict.fromkeys(map(tables.pair_name, runs)))}"
    write_page(output / "report.html", title, QUESTION, **data)
    write_json(output / "summary.json", summaries)


def read_probes(path: Path) -> dict[str, Any]:
    """Return what the page shows of probes. Raises: InvalidRequest when the file is not a report of probes."""
    try:
        return about_probes(read_json(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path} is not a report of probes ({type(error).__name__}: {error})",
            remedy="give the report.json that `semspec train run` writes",
        ) from None


def _check(runs: Sequence[Run]) -> None:
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            text = f"no two files can be called {run.name}.md; rename a run's folder"
            raise InvalidRequest(text)
        if run.rows[0].configuration.method != "target":
            raise InvalidRequest(
                f"{run.folder} has no baseline: its first configuration is {run.rows[0].label}, "
                "not the target alone",
                remedy="run again with `target` first",
            )


def main_row(run: Run) -> Row | None:
    """Return the row of `semantic` as served: through the gateway if possible, with the fewest options."""
    rows = [row for row in run.rows if row.configuration.method == "semantic"]
    return min(
        rows,
        key=lambda row: (row.configuration.runner != "gateway", len(row.configuration.knobs)),
        default=None,
    )


def _shown(run: Run) -> dict[str, Any]:
    """Return what the page shows of a run, next to its summary."""
    task, models = run.settings["task"], json.dumps([run.settings, run.environment], default=str)
    pair = paper.paper_pair_of([models]) or ""
    rows = [row for row in paper.RESULTS if row.pair.startswith(pair) and task in row.cells]
    return {
        "title": f"{run.name}: {tables.setting(run)}, {tables.sample_size(run)}",
        "is_timed": run.is_timed,
        "main": main_row(run),
        "table": tables.main_table(run),
        "chart": draw(*_tradeoff(run)),
        "published": [(row, row.cells[task]) for row in rows],
    }


def _tradeoff(run: Run) -> list[Panel]:
    """Return pass@1 against speed-up, or against the target's share of the tokens if times are not results.

    The second panel leaves out what is not near the target.
    """
    points, near = dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
    for row in run.rows:
        x = row.speedup if run.is_timed else Measured.of(row.target_ratio)
        y, interval = row.pass_at_1.value, row.pass_at_1_95
        errors = [[max(0.0, y - interval.low)], [max(0.0, interval.high - y)]]
        points[row.label] = {"x": [x.value], "xerr": [x.error], "y": [y], "yerr": errors}
        is_near = row.difference.value > -NEAR
        near[row.label] = points[row.label] if is_near else {"x": [nan], "y": [nan]}
    x_label = "speed-up over the target alone" if run.is_timed else "target ratio"
    return [Panel(x_label, "pass@1", shown, percent="y") for shown in (points, near)]


def _summary(run: Run) -> dict[str, Any]:
    facts: dict[str, Any] = plain(
        {
            "settings": run.settings,
            "environment": run.environment,
            "not_applicable": run.not_applicable,
            "rows": [row.as_json() for row in run.rows],
        }
    )
    return facts
