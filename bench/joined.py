"""Runs of one configuration each, such as of pairs with other probes, beside the baseline of a committed result.

    python -m semspec.bench.joined bench/results/quality/sampled OUTPUT NAME=RUN ...    OUTPUT.md, OUTPUT.jsonl.gz

Answers are compared where the question, the sample and the seed are those of the baseline. `NAME=RUN:KIND`: only
answers to questions of this kind of the demo language, `ledger` or `boxes`.
"""

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from semspec.bench.record import Record, as_line
from semspec.bench.report.tables import QUALITY, quality_row
from semspec.bench.summary import Row, read_run, summarise
from semspec.demo.problems import make_problem
from semspec.errors import InvalidRequest
from semspec.training.files import replacing
from semspec.training.report.document import Table, write_text

ALIKE = ("task", "temperature", "top_p", "max_tokens", "seed")
"""Settings of a run that must be the baseline's."""


def baseline_of(result: Path, label: str = "target") -> tuple[Mapping[str, Any], list[Record]]:
    """Settings and answers of `label` in a result of `semspec bench report`, its name without suffix.

    Raises: InvalidRequest when there are none.
    """
    try:
        settings = json.loads((result.parent / "summary.json").read_text())[result.name]["settings"]
        lines = gzip.decompress(result.with_name(f"{result.name}.jsonl.gz").read_bytes()).splitlines()
    except (OSError, KeyError, ValueError) as error:
        raise InvalidRequest(f"{result} is no result of `semspec bench report`: {error}", "baseline") from None
    records = [record for record in (Record(**json.loads(line)) for line in lines) if record.label == label]
    if not records:
        raise InvalidRequest(f"{result} has no answers of {label}", "baseline")
    return settings, records


def joined(
    settings: Mapping[str, Any], baseline: Sequence[Record], name: str, run: Path, kind: str = ""
) -> tuple[Row, list[Record]]:
    """The row `name` of a run against the baseline, and its answers. Raises: InvalidRequest when they do not match."""
    facts, records = read_run(run)
    if len(facts["labels"]) != 1:
        raise InvalidRequest(f"{run} has several configurations: {', '.join(facts['labels'])}; run one alone", "run")
    for setting in ALIKE:
        if facts["settings"][setting] != settings[setting]:
            own, other = facts["settings"][setting], settings[setting]
            raise InvalidRequest(f"{run}: its {setting} is {own!r}, the baseline's {other!r}", "run")
    if kind:
        records = [record for record in records if make_problem(int(record.question)).domain == kind]
    seeds = {(record.question, record.sample): record.seed for record in baseline}
    if any(seeds.get((one.question, one.sample), one.seed) != one.seed for one in records):
        raise InvalidRequest(f"{run}: its seeds are not the baseline's", "run")
    row = summarise([*baseline, *records], [baseline[0].label, facts["labels"][0]])[1]
    return replace(row, label=name), [replace(record, label=name) for record in records]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m semspec.bench.joined", description=__doc__)
    parser.add_argument("baseline", type=Path, help="a result with answers of the target, without suffix")
    parser.add_argument("output", type=Path, help="where to write, without suffix")
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN[:KIND]")
    options = parser.parse_args(arguments)
    rows, answers = list[Row](), list[Record]()
    try:
        settings, baseline = baseline_of(options.baseline)
        for named in options.runs:
            name, _, place = named.rpartition("=")
            run, _, kind = place.partition(":")
            row, records = joined(settings, baseline, name, Path(run), kind)
            rows.append(row)
            answers += records
    except InvalidRequest as error:
        parser.error(error.message)
    table = Table(
        (*QUALITY, "accepted segments"),
        [(*quality_row(row), "-" if row.acceptance_rate is None else f"{row.acceptance_rate:.3f}") for row in rows],
    )
    write_text(options.output.with_suffix(".md"), table.as_markdown())
    with replacing(options.output.with_suffix(".jsonl.gz")) as partial:
        lines = "".join(as_line(replace(record, trace=())) for record in answers)
        partial.write_bytes(gzip.compress(lines.encode(), mtime=0))
    print(table.as_markdown(), end="")


if __name__ == "__main__":
    main()
