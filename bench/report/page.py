"""Writes the report of one or several runs: Markdown, HTML, pictures, tables for other pages, and all numbers."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from semspec.bench.record import ANSWERS, write_answers
from semspec.bench.report import sections
from semspec.bench.report.exhibits import exhibits
from semspec.bench.report.probes import ProbesReport, read_probes
from semspec.bench.report.tables import main_table, paced_label, quality_table
from semspec.bench.summary import Run
from semspec.errors import InvalidRequest
from semspec.training.files import plain, write_json
from semspec.training.report.document import (
    Section,
    as_html,
    as_markdown,
    write_pictures,
    write_text,
)

TITLE = "Bench: speed and quality, side by side"
_QUOTED = re.compile(r"(?<=<!-- )(\S+\.md) -->\n(?:\|[^\n]*(?:\n|\Z))*")
"""A marker line and the table directly after it, if there is one."""
_DATED = re.compile(r"bench/results/\d{4}-\d\d-\d\d(?=/)")


def write_report(runs: Sequence[Run], output: Path, probes: Path | None = None) -> None:
    """Write `report.md`, the self-contained `report.html`, the pictures and `summary.json`; for each run its table,
    `NAME.md`, and its records, `NAME.jsonl.gz`.

    `probes` is the `report.json` of the probes; without it the page states what is missing. Each file is replaced
    atomically. Raises: InvalidRequest.
    """
    _check(runs)
    contents = [
        *_contents(runs, read_probes(probes) if probes else None),
        *sections.caveats(runs, probes),
    ]
    write_pictures(output, contents)
    for run in runs:
        table = main_table(run) if run.is_timed else quality_table(run)
        write_text(output / f"{run.name}.md", table.as_markdown())
        write_answers(output / f"{run.name}{ANSWERS}", run.records, with_traces=run.is_timed)
    write_text(output / "report.md", as_markdown(TITLE, contents))
    write_text(output / "report.html", as_html(TITLE, contents))
    write_json(output / "summary.json", {run.name: _summary(run) for run in runs})


def _contents(runs: Sequence[Run], probes: ProbesReport | None) -> Iterator[Section]:
    yield sections.headline(runs)
    yield from map(sections.measured, runs)
    timed = [run for run in runs if run.is_timed]
    if timed:
        yield from sections.paper_layout(timed)
        yield from sections.parts(timed, probes)
        yield from exhibits(timed, probes)


def _check(runs: Sequence[Run]) -> None:
    if not runs:
        raise InvalidRequest("no run to report on; name the folder of one", "run")
    names = [run.name for run in runs]
    if twice := sorted(
        {name for name in names if names.count(name) > 1} | ({"report"} & set(names))
    ):
        raise InvalidRequest(
            f"no two files can be called {twice[0]}.md; rename a run's folder", "run"
        )
    for run in runs:
        _check_run(run)


def _check_run(run: Run) -> None:
    if not run.rows or not run.records:
        raise InvalidRequest(
            f"{run.folder} has no answers; make some with `semspec bench run`", "run"
        )
    first = run.rows[0]
    if first.configuration.method != "target":
        raise InvalidRequest(
            f"{run.folder} has no baseline: its first configuration is {first.label}, not the target alone; "
            "run again with `target` first",
            "run",
        )
    if not first.num_questions:
        raise InvalidRequest(
            f"{run.folder} has no question that all configurations answered; let the run go on",
            "run",
        )


def readme_tables(readme: str, folder: Path, latest: Path | None = None) -> str:
    """`readme` with the table after each line `<!-- PATH.md -->` replaced by that file of `folder`; paths of earlier
    dated results become `latest`.

    Raises: InvalidRequest when a marker names a file that is not there.
    """
    if latest is not None:
        readme = _DATED.sub(latest.as_posix(), readme)
    return _QUOTED.sub(lambda match: f"{match[1]} -->\n{_table(folder / match[1])}\n", readme)


def _table(path: Path) -> str:
    if not path.is_file():
        raise InvalidRequest(
            f"the page quotes {path}, which is not there; make the run or change the marker",
            "readme",
        )
    return path.read_text().strip()


def _plain_steps(run: Run) -> dict[str, Any]:
    return {
        label: {role: asdict(counts) for role, counts in roles.items()}
        for label, roles in run.steps.items()
    }


def _summary(run: Run) -> dict[str, Any]:
    facts = {"paced": paced_label(run), "steps": _plain_steps(run)} if run.steps else {}
    facts |= {
        "settings": run.settings,
        "environment": run.environment,
        "not_applicable": run.not_applicable,
    }
    summary: dict[str, Any] = plain(facts | {"rows": [row.as_json() for row in run.rows]})
    return summary
