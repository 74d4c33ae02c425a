"""The tables and figures of the paper by their contents, and where the report has the same for these runs."""

from collections.abc import Iterator, Sequence

from semspec.bench.configuration import parse
from semspec.bench.report import ablations, paper
from semspec.bench.report.probes import ProbesReport
from semspec.bench.summary import Run
from semspec.training.report.document import Section, Table, Text

TITLE = "The paper's tables and figures, one by one"
_LEGEND = (
    f"What {paper.SOURCE} shows, and the section of this report that has the same for these runs. The paper's own "
    "values stand in the tables in its layout if this pair is one of its two, and in any case in a table of their own."
)
PROBED = ("semantic", "last-hidden", "random")
"""Methods of the paper's comparison of what probes see."""


def exhibits(runs: Sequence[Run], probes: ProbesReport | None) -> Iterator[Section]:
    """One section, if a run is of one of the paper's tasks."""
    if not any(run.settings["task"] in paper.TASKS for run in runs):
        return
    rows = [*_compared(runs), *_ablated(runs), *_offline(probes)]
    yield Section(TITLE, (Text(_LEGEND), Table(("the paper shows", "here"), rows)))


def _compared(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """A row for each task: the published methods that have a row there."""
    published = dict.fromkeys(row.label for row in paper.RESULTS if row.table != 2)
    for task, name in paper.TASKS.items():
        known = {method for run in runs if run.settings["task"] == task for method in _methods(run)}
        missing = [label for label in published if label not in known]
        if len(missing) == len(published):
            yield f"methods on {name}", "not measured"
        else:
            without = f"; not measured: {', '.join(missing)}" if missing else ""
            yield f"methods on {name}", f"In the paper's layout{without}"


def _methods(run: Run) -> set[str]:
    """Methods with a row or with a reason why the pair does not support them."""
    refused = {parse(label).variant for label in run.not_applicable}
    return {row.configuration.variant for row in run.rows} | refused


def _ablated(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    seen = [run for run in runs if {row.configuration.variant for row in run.rows} >= set(PROBED)]
    yield (
        "probes on all layers, on the last one, and random probabilities",
        _where("What the probes see", seen),
    )
    drafted = [run for run in runs if not ablations.gammas(run).missing]
    yield "segments drafted at a time (gamma 1 to 3)", _where("Gamma", drafted)
    by_sentence = [
        run
        for run in runs
        if any(row.configuration.knobs.get("segmentation") == "sentence" for row in run.rows)
    ]
    yield (
        "sentences instead of paragraphs as segments",
        _where("In the paper's layout", by_sentence),
    )


def _where(section: str, runs: Sequence[Run]) -> str:
    return f"{section}: {', '.join(run.name for run in runs)}" if runs else "not measured"


def _offline(probes: ProbesReport | None) -> Iterator[tuple[str, str]]:
    curves = "Learning curve and domains"
    yield (
        "quality of probes by number of samples",
        curves if probes and probes.learning_curve else "not measured",
    )
    yield (
        "probes within and across domains",
        curves if probes and probes.domains else "not measured",
    )
