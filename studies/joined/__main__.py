"""Runs of one configuration each, such as of pairs with other probes, beside the baseline of a committed result.

    python -m studies.joined bench/results/quality/sampled OUTPUT NAME=RUN ...
                                                              OUTPUT.md, OUTPUT.png, OUTPUT.jsonl.gz

Answers are compared where the question, the sample and the seed are those of the baseline. `NAME=RUN:KIND`: only
answers to questions of this kind of the demo language, `ledger` or `boxes`. A NAME that comes several times means
several trainings: OUTPUT-trainings.md has their mean, with an interval that includes the variance of training.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from semspec.bench.intervals import Z_95, Interval
from semspec.bench.record import Record, read_answers, write_answers
from semspec.bench.report.figures import quality
from semspec.bench.report.tables import QUALITY, percent, quality_row
from semspec.bench.summary import Row, by_question, read_run, summarise
from semspec.demo.problems import make_problem
from semspec.errors import InvalidRequest
from semspec.training.files import replacing
from semspec.training.report.document import Table, write_text
from semspec.training.report.drawing import png, styled
from semspec.training.report.numbers import decimal

ALIKE = ("task", "temperature", "top_p", "max_tokens", "seed")
"""Settings of a run that must be the baseline's."""


def baseline_of(result: Path, label: str = "target") -> tuple[Mapping[str, Any], list[Record]]:
    """Settings and answers of `label` in a result of `semspec bench report`, its name without suffix.

    Raises: InvalidRequest when there are none.
    """
    try:
        settings = json.loads((result.parent / "summary.json").read_text())[result.name]["settings"]
        answers = read_answers(result.with_name(f"{result.name}.jsonl.gz"))
    except (OSError, KeyError, ValueError) as error:
        raise InvalidRequest(f"{result} is no result of `semspec bench report`: {error}", "baseline") from None
    records = [record for record in answers if record.label == label]
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
    if not records:
        refused = facts["not_applicable"].get(facts["labels"][0], "let it go on")
        raise InvalidRequest(f"{run} has no answers: {refused}", "run")
    seeds = {(record.question, record.sample): record.seed for record in baseline}
    if any(seeds.get((one.question, one.sample), one.seed) != one.seed for one in records):
        raise InvalidRequest(f"{run}: its seeds are not the baseline's", "run")
    labels = "target", "semantic"  # to tell them apart, whatever they are
    pairs = zip(labels, (baseline, records), strict=True)
    row = summarise([replace(one, label=label) for label, own in pairs for one in own], labels)[1]
    return replace(row, label=name), [replace(record, label=name) for record in records]


@dataclass(frozen=True, slots=True)
class Trainings:
    """The mean of several trainings of the same probes, each served on the same questions."""

    differences: Sequence[float]
    """pass@1 minus the baseline's, of each training."""
    mean: float
    interval: Interval
    """95%, of questions and of training."""


def pooled(baseline: Sequence[Record], trainings: Sequence[Sequence[Record]]) -> Trainings:
    """On the answers that all have. The interval adds the variance of the questions to that of the trainings, which has
    Student's distribution."""
    right = [{(one.question, one.sample): one.is_right for one in records} for records in (baseline, *trainings)]
    keys = sorted(set.intersection(*map(set, right)))
    questions = np.unique([question for question, _ in keys], return_inverse=True)[1]
    base, *own = (by_question(np.array([each[key] for key in keys], dtype=float), questions) for each in right)
    differences = np.array(own) - base
    of_training = differences.mean(axis=1)
    of_questions = differences.mean(axis=0).std(ddof=1) / np.sqrt(differences.shape[1])
    num = len(trainings)
    student = float(t.ppf(0.975, num - 1)) * of_training.std(ddof=1) / np.sqrt(num)
    half, middle = float(np.hypot(Z_95 * of_questions, student)), float(of_training.mean())
    return Trainings(of_training.tolist(), middle, Interval(middle - half, middle + half))


def trainings_table(pools: Mapping[str, Trainings], against: str) -> Table:
    header = ("configuration", "trainings", f"minus {against}, points, each", "mean (95%)")
    return Table(
        header,
        [
            (
                name, str(len(one.differences)), ", ".join(f"{100 * each:.1f}" for each in one.differences),
                percent(one.mean, one.interval),
            )
            for name, one in pools.items()
        ],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m studies.joined", description=__doc__)
    parser.add_argument("baseline", type=Path, help="a result with answers to the same questions, without suffix")
    parser.add_argument("output", type=Path, help="where to write, without suffix")
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN[:KIND]")
    parser.add_argument("--against", default="target", metavar="LABEL", help="the baseline's configuration")
    options = parser.parse_args(arguments)
    names = Counter(named.rpartition("=")[0] for named in options.runs)
    found: dict[str, list[tuple[Row, list[Record]]]] = {name: [] for name in names}
    try:
        settings, baseline = baseline_of(options.baseline, options.against)
        for named in options.runs:
            name, _, place = named.rpartition("=")
            run, _, kind = place.partition(":")
            label = name if names[name] == 1 else f"{name}, training {len(found[name]) + 1}"
            found[name].append(joined(settings, baseline, label, Path(run), kind))
    except InvalidRequest as error:
        parser.error(error.message)
    rows = [row for own in found.values() for row, _ in own]
    table = Table(
        (*(column.replace("target", options.against) for column in QUALITY), "accepted segments"),
        [(*quality_row(row), decimal(row.acceptance_rate)) for row in rows],
    )
    write_text(options.output.with_suffix(".md"), table.as_markdown())
    print(table.as_markdown(), end="")
    pools = {name: pooled(baseline, [records for _, records in own]) for name, own in found.items() if len(own) > 1}
    if pools:
        means = trainings_table(pools, options.against).as_markdown()
        write_text(options.output.with_name(f"{options.output.name}-trainings.md"), means)
        print(f"\n{means}", end="")
    with replacing(options.output.with_suffix(".png")) as partial, styled():
        partial.write_bytes(png(quality(rows, options.against)))
    write_answers(
        options.output.with_suffix(".jsonl.gz"),
        (record for own in found.values() for _, records in own for record in records),
    )


if __name__ == "__main__":
    main()
