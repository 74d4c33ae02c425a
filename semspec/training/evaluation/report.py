"""Reports of probes and of a calibration of `likelihood`: the numbers as JSON, and a page that shows them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from semspec.reporting.document import Table, write_page
from semspec.reporting.drawing import Panel, draw
from semspec.reporting.files import plain, write_json
from semspec.reporting.numbers import Measured, decimal
from semspec.training.data.labels import Labels
from semspec.training.evaluation.acceptance import acceptance_of
from semspec.training.evaluation.evaluate import CRITERION_NAMES, Report
from semspec.training.evaluation.likelihood import LikelihoodReport
from semspec.training.evaluation.verification import Predicted, rightness

Json = Mapping[str, Any]

NUM_EXAMPLES = 2
QUESTION = "Do the probes tell right from wrong segments well enough to serve?"
PILOT_QUESTION = "How much does a rule without probes accept, and how much of that is wrong?"


def examples_table(
    labels: Labels, served: Predicted, report: Report, texts: Callable[[int, int], tuple[str, str]]
) -> Table:
    """Return draft-written segments of test questions, drawn at random: at most `NUM_EXAMPLES` of each kind, one a
    context.

    `texts`: the end of the text before the segment of a shard's row, and the segment.
    """
    test = np.flatnonzero(labels.by_draft & (labels.split == "test"))
    order = np.random.default_rng(0).permutation(test)
    accepted = acceptance_of(served.ratio[order], report.recommendation.shown.threshold) >= 0.5
    right, rows = rightness(labels, report.criterion)[order], []
    for is_accepted, is_right in product((True, False), (True, False)):
        chosen = order[(accepted == is_accepted) & (right == is_right)]
        kind = f"{'accepted' if is_accepted else 'rejected'}, {'right' if is_right else 'wrong'}"
        _, first = np.unique(labels.context[chosen], return_index=True)
        for index in chosen[np.sort(first)[:NUM_EXAMPLES]].tolist():
            p, q = served.target_probability[index], served.draft_probability[index]
            said = labels.target_probability[index]
            before, segment = texts(int(labels.shard[index]), int(labels.row[index]))
            numbers = (decimal(float(number)) for number in (p, q, said))
            rows.append((kind, *numbers, f"… {before.strip()}", segment.strip()))
    header = ("kind", "p", "q", "share of samples that mean it", "end of the context", "segment")
    return Table(header, rows)


def write_report(report: Report, folder: Path, examples: Table) -> None:
    """Write `report.json`, and `report.html`, which shows it; each file atomically."""
    write_json(folder / "report.json", found := report.as_json() | {"examples": asdict(examples)})
    write_page(
        folder / "report.html",
        f"Probes for {report.name}",
        QUESTION,
        **about_probes(found),
        criteria=CRITERION_NAMES,
    )


def write_likelihood(name: str, report: LikelihoodReport, folder: Path) -> None:
    """Write `report.json`, and `report.html`, which shows it; each file atomically."""
    write_json(folder / "report.json", found := plain(asdict(report), 5))
    write_page(folder / "report.html", f"{name} without probes", PILOT_QUESTION, pilot=found)


def about_probes(found: Json) -> dict[str, Any]:
    """Return what a page shows of the probes' `report.json`: the numbers, and their charts."""
    points = found["learning_curve"]
    measures = {"auroc": "AUROC", "wrong_accepted": "wrong accepted at 95% of right"}
    learning = [_learning(points, name, label) for name, label in measures.items()]
    charts = {"curves": draw(*_curves(found)), "learning": draw(*learning)}
    return {"probes": found, **charts}


def _curves(found: Json) -> list[Panel]:
    """Return wrong segments accepted against right ones, of all variants, and against speed-up, of the rules."""
    criterion, recommended = found["criterion"], found["recommendation"]
    variants = {
        variant["name"]: variant["verifications"][criterion]["thresholds"]
        for variant in found["variants"]
    }
    rules = [rule for rule in recommended["curve"] if rule["threshold"] is not None]
    right, speed = ("right_accepted", "right segments accepted"), ("speed_up", "estimated speed-up")
    panels = []
    for outcomes, (part, label), limits in (
        (variants, right, {}),
        (variants, right, {"xlim": (0.8, 1.003), "ylim": (-0.004, 0.2)}),
        ({"thresholds of the served": rules}, speed, {}),
    ):
        points = {name: _points(curve, part) for name, curve in outcomes.items()}
        if expected := recommended["expected"]:
            star = {"marker": "*", "color": "black", "markersize": 12}
            points["recommended rule"] = _points([expected], part) | star
        percent = "y" if part == "speed_up" else "xy"
        panels.append(Panel(label, "wrong segments accepted", points, limits, percent))
    return panels


def _points(outcomes: Sequence[Json], part: str) -> dict[str, Any]:
    x, y = ([outcome[name] for outcome in outcomes] for name in (part, "wrong_accepted"))
    return {"x": x, "y": y, "marker": ""}


def _learning(curve: Sequence[Json], part: str, label: str) -> Panel:
    measured = [Measured.of(point[part]) for point in curve]
    y, errors = [number.value for number in measured], [number.error for number in measured]
    points = {"x": [point["num_contexts"] for point in curve], "y": y, "yerr": errors}
    percent = "y" if part == "wrong_accepted" else ""
    return Panel("contexts learned from", label, {"served probes": points}, percent=percent)
