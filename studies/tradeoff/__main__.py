"""pass@1 against latency: each rule over its thresholds, target and draft over temperatures.

    python -m studies.tradeoff RUN ... --output OUTPUT        OUTPUT.md, OUTPUT.png, OUTPUT-NAME.jsonl.gz for each run

The runs are of one machine and one set of questions; each has `target` as its baseline.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from semspec.bench.record import write_answers
from semspec.bench.report.tables import percent
from semspec.bench.summary import Row, Run, load_run
from semspec.errors import InvalidRequest
from semspec.training.files import replacing
from semspec.training.report.document import Table, write_text
from semspec.training.report.drawing import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, panels, png, styled
from semspec.training.report.numbers import decimal, measured_decimal

STYLES = {"target": (BLACK, "s"), "draft": (GREY, "D"), "semantic": (BLUE, "o"), "likelihood": (GREEN, "^")}
OTHERS = ((ORANGE, "v"), (PURPLE, "P"))
Points = Mapping[str, Sequence[tuple[float, Row]]]
"""By curve: (threshold or temperature, its row), in ascending order."""


def points_of(runs: Sequence[Run]) -> Points:
    """The curves. Raises: InvalidRequest when the runs have not the same questions or a point comes twice."""
    curves: dict[str, dict[float, Row]] = {}
    if len({run.rows[0].num_questions for run in runs}) > 1 or len({run.settings["seed"] for run in runs}) > 1:
        raise InvalidRequest("the runs have different numbers of questions or seeds; make them alike", "run")
    for run in runs:
        for row in run.rows:
            knobs = dict(row.configuration.knobs)
            at = float(knobs.pop("threshold", run.settings["temperature"]))
            curve = curves.setdefault(row.configuration.variant, {})
            if knobs or at in curve:
                raise InvalidRequest(f"{run.folder} has a point that is in no curve or comes twice: {row.label}", "run")
            curve[at] = row
    return {name: sorted(curve.items()) for name, curve in curves.items()}


def picture(points: Points) -> Figure:
    """A curve a rule; bars are 95% intervals of pass@1."""
    figure, (axes,) = panels(1, (8.0, 5.0))
    others = iter(OTHERS)
    for name, curve in points.items():
        colour, marker = STYLES.get(name) or next(others)
        shares, latencies = [row.pass_at_1.value for _, row in curve], [row.latency_s.value for _, row in curve]
        intervals = [row.pass_at_1_95 for _, row in curve]
        bars = np.abs(np.array([[one.low for one in intervals], [one.high for one in intervals]]) - shares)
        knob = "temperature" if name in ("target", "draft") else "threshold"
        axes.errorbar(
            latencies, shares, bars, label=f"{name}, by {knob}", fmt=f"{marker}-", color=colour, linewidth=0.9,
            elinewidth=0.6, markersize=5,
        )  # fmt: skip
        for (at, _), x, y in zip(curve, latencies, shares, strict=True):
            axes.annotate(f"{at:g}", (x, y), (5, 4), textcoords="offset points", fontsize=7.5, color=colour)
    axes.set(xlabel="mean latency of an answer, seconds", ylabel="pass@1")
    axes.legend(loc="lower right")
    return figure


def table(points: Points) -> Table:
    rows = [
        (name, f"{at:g}", percent(row.pass_at_1.value, row.pass_at_1_95), measured_decimal(row.latency_s),
         decimal(row.target_ratio))
        for name, curve in points.items()
        for at, row in curve
    ]  # fmt: skip
    return Table(("rule", "threshold or temperature", "pass@1 in % (95%)", "latency s", "target ratio"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m studies.tradeoff", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of `semspec bench run`")
    parser.add_argument("--output", type=Path, required=True, help="where to write, without suffix")
    options = parser.parse_args(arguments)
    try:
        runs = [load_run(folder) for folder in options.runs]
        points = points_of(runs)
    except InvalidRequest as error:
        parser.error(error.message)
    write_text(options.output.with_suffix(".md"), table(points).as_markdown())
    with replacing(options.output.with_suffix(".png")) as partial, styled():
        partial.write_bytes(png(picture(points)))
    for run in runs:
        write_answers(options.output.with_name(f"{options.output.name}-{run.name}.jsonl.gz"), run.records)


if __name__ == "__main__":
    main()
