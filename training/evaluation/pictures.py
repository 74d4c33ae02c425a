"""The report's pictures with their captions, and with words for those who do not see them."""

from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from matplotlib.figure import Figure

from training.evaluation import plots
from training.evaluation.evaluate import Report
from training.evaluation.states_picture import StatesPicture
from training.evaluation.wording import decimal, measured_decimal, measured_share, share


@dataclass(frozen=True, slots=True)
class Picture:
    """One of the report's pictures."""

    name: str
    """Of its file."""
    title: str
    caption: str
    alt: str
    """What it shows, for those who do not see it."""
    png: bytes

    @property
    def uri(self) -> str:
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


def pictures(report: Report, states: StatesPicture | None = None) -> Iterator[Picture]:
    """Those that there are numbers for."""
    for name, title, caption, alt, draw in _described(report):
        with plots.styled():
            yield Picture(name, title, caption, alt, plots.png(draw(report)))
    if states is not None and len(states.vectors) > 2:
        caption = (
            f"{len(states.vectors):,} segments of test questions, each number scaled to a deviation of 1. "
            "A drawing, not a measure: the probes see all dimensions."
        )
        alt = "Scatter plot of segments, coloured by their semantic probability under the target."
        with plots.styled():
            yield Picture("states", "Segments by their states", caption, alt, plots.png(plots.states(states)))


def _described(report: Report) -> Iterator[tuple[str, str, str, str, Callable[[Report], Figure]]]:
    """Name, title, caption, words for those who do not see it, and how to draw it."""
    served, expected = report.served.verifications[report.criterion], report.recommendation.expected
    of = f"{report.counts.questions.get('test', 0):,} test questions"
    segments = f"{served.num_right:,} right and {served.num_wrong:,} wrong draft-written segments of {of}"
    yield (
        "acceptance",
        "Right and wrong segments accepted",
        f"Along the threshold on p/q: {segments}. Squares: the rule min(1, p/q). Lower and further right is better.",
        f"Curves of wrong against right segments accepted, a variant each. Served probes: AUROC "
        f"{measured_decimal(served.auroc)}, wrong accepted at 95% of the right ones "
        f"{measured_share(served.wrong_accepted)}.",
        plots.acceptance,
    )
    yield (
        "ratios",
        "p/q of right and of wrong segments",
        f"Served probes, {segments}. What overlaps cannot be told apart by any threshold.",
        "Two histograms of the ratio p/q on a logarithmic axis, one of right and one of wrong segments.",
        plots.ratios,
    )
    yield (
        "strictness",
        "What the threshold does",
        f"Served probes, {report.counts.draft_segments:,} draft-written segments of {of}. "
        "Dotted: the rule min(1, p/q). The speed-up is an estimate without draft-ahead and network.",
        f"Shares of segments accepted and estimated speed-up along the threshold. With the recommended rule "
        f"{share(expected.acceptance)} are accepted, speed-up {decimal(expected.speed_up, 2)}.",
        plots.strictness,
    )
    calibration = (
        f"{name}, expected calibration error {measured_decimal(report.served.regressions[use].ece)}"
        for use, name in plots.PROBES.items()
    )
    yield (
        "reliability",
        "Does 0.7 mean 70%?",
        f"Served probes, {of}. On the dashed line it does. Areas go by the number of segments.",
        f"Reliability diagrams: {'; '.join(calibration)}.",
        plots.reliability,
    )
    if len(report.learning_curve) > 1:
        first, last = report.learning_curve[0], report.learning_curve[-1]
        yield (
            "learning_curve",
            "What more contexts bring",
            f"Probes fitted on shares of the training questions: {segments}. Bars: one standard error, by question.",
            f"AUROC from {decimal(first.auroc.value)} at {first.num_contexts} contexts "
            f"to {decimal(last.auroc.value)} at {last.num_contexts}.",
            plots.learning,
        )
    if report.domains:
        yield (
            "domains",
            "From domain to domain",
            "Probes that learned from one domain, on the test questions of another; n draft-written segments.",
            "; ".join(f"{cell.trained_on} on {cell.tested_on}: {decimal(cell.auroc.value)}" for cell in report.domains),
            plots.domains,
        )
