"""The report as one page to look at, its numbers as JSON, and its pictures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from training.data.labels import Labels
from training.evaluation import plots, wording
from training.evaluation.acceptance import acceptance_of
from training.evaluation.evaluate import Report
from training.evaluation.pictures import Picture, pictures
from training.evaluation.states_picture import StatesPicture
from training.evaluation.verification import Criterion, Predicted, rightness
from training.files import replacing, write_json

KINDS = ("accepted, right", "accepted, wrong", "rejected, right", "rejected, wrong")
RIGHT_MEANS: dict[Criterion, str] = {
    "truth": "right by the data's own truth",
    "target says it": "the target says it too: at least one of its samples at that context means the same",
}


@dataclass(frozen=True, slots=True)
class Example:
    """A draft-written segment of a test question."""

    text: str
    reasoning_tail: str
    """The end of what comes before it."""
    target_probability: float
    """As predicted; the next one too."""
    draft_probability: float
    label: float
    """Share of the target's samples that mean the same."""
    valid: bool | None
    """By the data's own truth; None where that is unknown."""
    kind: str
    """One of `KINDS`."""


def example_rows(labels: Labels, served: Predicted, report: Report, num_each: int = 2) -> dict[int, str]:
    """Draft-written segments of test questions to show, at most `num_each` of a kind: their kinds by index."""
    test = labels.where(labels.by_draft & (labels.split == "test"))
    params = np.random.default_rng(0).permutation(test)
    accepted = acceptance_of(served.ratio[params], report.recommendation.expected.threshold) >= 0.5
    right = rightness(labels, report.criterion)[params]
    chosen: dict[int, str] = {}
    for kind, mask in zip(KINDS, _kinds(accepted, right), strict=True):
        rows = params[mask]
        _, first = np.unique(labels.context[rows], return_index=True)  # of one context they are much alike
        chosen |= dict.fromkeys(rows[np.sort(first)[:num_each]].tolist(), kind)
    return chosen


def _kinds(accepted: NDArray[np.bool_], right: NDArray[np.float32]) -> Iterator[NDArray[np.bool_]]:
    for took in (accepted, ~accepted):
        yield took & (right == 1)
        yield took & (right == 0)


def write_report(
    report: Report, folder: Path, examples: Sequence[Example] = (), states: StatesPicture | None = None
) -> None:
    """`report.html`, whole in itself, `report.json`, and the pictures; each file replaced in one step."""
    drawn = list(pictures(report, states))
    for picture in drawn:
        with replacing(folder / f"{picture.name}.png") as partial:
            partial.write_bytes(picture.png)
    write_json(folder / "report.json", report.as_json())
    with replacing(folder / "report.html") as partial:
        partial.write_text(page(report, drawn, examples), encoding="utf-8")


def page(report: Report, drawn: Sequence[Picture], examples: Sequence[Example]) -> str:
    """The page. Whatever models wrote stands in it escaped."""
    environment = Environment(
        loader=PackageLoader("training.evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: tuple[Callable[..., str], ...] = (
        wording.share, wording.decimal, wording.measured_share, wording.measured_decimal,
    )  # fmt: skip
    environment.filters |= {one.__name__: one for one in filters}
    groups = {kind: [one for one in examples if one.kind == kind] for kind in KINDS}
    return environment.get_template("report.html.j2").render(
        report=report, pictures=drawn, examples=groups, right_means=RIGHT_MEANS, probes=plots.PROBES
    )
