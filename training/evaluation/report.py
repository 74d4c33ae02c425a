"""Writes the reports of probes and of a calibration of `likelihood`: an HTML page, numbers as JSON, and pictures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import cycle, product
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MultipleLocator, PercentFormatter

from semspec.training.data.labels import Labels
from semspec.training.evaluation.acceptance import Outcome, Recommendation, acceptance_of
from semspec.training.evaluation.evaluate import (
    BARS,
    CRITERION_NAMES,
    LEAST_RIGHT_ACCEPTED,
    Report,
    Verdict,
)
from semspec.training.evaluation.likelihood import LikelihoodPoint, LikelihoodReport
from semspec.training.evaluation.verification import (
    Criterion,
    DomainCell,
    LearningPoint,
    Predicted,
    rightness,
)
from semspec.training.files import plain, write_json
from semspec.training.report.document import (
    Block,
    Bullets,
    Section,
    Table,
    Text,
    as_html,
    write_pictures,
    write_text,
)
from semspec.training.report.drawing import (
    BLUE,
    GREEN,
    ORANGE,
    PERCENT,
    PURPLE,
    RED,
    SKY,
    Picture,
    name_points,
    panels,
)
from semspec.training.report.numbers import NONE, decimal, measured_decimal, measured_share, share

STYLES = ((ORANGE, "-"), (GREEN, "--"), (PURPLE, "-."), (RED, ":"), (SKY, "-"))
"""Colours and lines of the variants beside the served probes."""
MEASURES = ("AUROC of p/q", "wrong accepted at 95% of right")
DECISIONS, TRUTHS = {"accepted": True, "rejected": False}, {"right": 1, "wrong": 0}
RIGHT_MEANS: dict[Criterion, str] = {
    "truth": "a segment is right if the data's own check says so",
    "target says it": "a segment is right if at least one of the target's samples at that context means the same",
}


def examples_table(
    labels: Labels,
    served: Predicted,
    report: Report,
    texts: Callable[[int, int], tuple[str, str]],
    num_each: int = 2,
) -> Table:
    """Draft-written segments of test questions, drawn at random: at most `num_each` of each kind, one a context.
    `texts`: the end of the text before the segment of a shard's row, and the segment."""
    order = np.random.default_rng(0).permutation(
        np.flatnonzero(labels.by_draft & (labels.split == "test"))
    )
    accepted = acceptance_of(served.ratio[order], report.recommendation.shown.threshold) >= 0.5
    right, rows = rightness(labels, report.criterion)[order], []
    for (decision, is_accepted), (truth, value) in product(DECISIONS.items(), TRUTHS.items()):
        chosen = order[(accepted == is_accepted) & (right == value)]
        _, first = np.unique(labels.context[chosen], return_index=True)
        for index in chosen[np.sort(first)[:num_each]].tolist():
            before, segment = texts(int(labels.shard[index]), int(labels.row[index]))
            p, q = served.target_probability[index], served.draft_probability[index]
            numbers = (
                decimal(float(p)),
                decimal(float(q)),
                share(float(labels.target_probability[index])),
            )
            rows.append((f"{decision}, {truth}", *numbers, f"… {before.strip()}", segment.strip()))
    return Table(
        ("kind", "p", "q", "samples that mean the same", "end of the context", "segment"), rows
    )


def write_report(report: Report, folder: Path, examples: Table) -> None:
    """Write the self-contained `report.html`, `report.json` and the pictures, each file atomically."""
    contents = sections(report, examples)
    write_pictures(folder, contents)
    write_json(folder / "report.json", report.as_json())
    write_text(folder / "report.html", as_html(f"Probes for {report.name}", contents))


def sections(report: Report, examples: Table) -> list[Section]:
    """Return the page's sections: verdicts, remarks and picture, then folded those that have contents."""
    drawn = Text(
        "Draft-written segments of test questions, drawn at random, a few of each kind: not in proportion."
    )
    folded: dict[str, Sequence[Block]] = {
        "What to keep in mind": (Bullets(tuple(_cautions(report))),),
        "Variants": tuple(_variants(report)) if len(report.variants) > 1 else (),
        "Acceptance rules": tuple(_rule(report)),
        "More contexts, other domains": tuple(_partial(report)),
        "Examples": (drawn, examples) if examples.rows else (),
        "How it was made": tuple(_origin(report)),
    }
    return [
        *(Section("", _verdict(verdict), tone=verdict.standing) for verdict in report.verdicts),
        Section("", tuple(_remarks(report))),
        Section("", (_picture(report),)),
        *(Section(title, blocks, is_folded=True) for title, blocks in folded.items() if blocks),
    ]


def _verdict(verdict: Verdict) -> tuple[Block, ...]:
    claims = tuple(
        f"{'✓ holds' if claim.holds else '✗ fails'}: {claim.text}" for claim in verdict.claims
    )
    return Text(verdict.sentence), Bullets((*claims, *verdict.remarks))


def _remarks(report: Report) -> Iterator[Block]:
    counts = report.counts
    yield Bullets(report.remarks)
    definitions = (
        f"{CRITERION_NAMES[verdict.criterion]}, {RIGHT_MEANS[verdict.criterion]}. "
        for verdict in report.verdicts
    )
    yield Text(
        f"All figures are from {counts.questions.get('test', 0)} test questions ({counts.contexts.get('test', 0)} "
        f"contexts) that no probe has seen. {''.join(definitions)}Figures without a criterion are by the first one. "
        "± is one standard error, by resampling questions."
    )


def _variants(report: Report) -> Iterator[Block]:
    yield Text("Telling right from wrong draft-written segments by p/q, the served probes first:")
    yield Table(
        (
            "probes", "AUROC", "AUROC, “the target says it”", "wrong accepted at 95% of right",
            "wrong accepted at 95% of right, “the target says it”",
            "min(1, p/q): right accepted", "min(1, p/q): wrong accepted", "ECE of p", "ECE of q", "log-loss of p",
            "log-loss of q",
        ),
        [
            (
                variant.name,
                measured_decimal(found.auroc),
                measured_decimal(variant.verifications["target says it"].auroc),
                measured_share(found.wrong_accepted),
                measured_share(variant.verifications["target says it"].wrong_accepted),
                share(found.sample.right_accepted),
                share(found.sample.wrong_accepted),
                *(
                    decimal(measured[use].value)
                    for measured in (variant.ece, variant.log_loss)
                    for use in ("target probe, draft-written", "draft probe")
                ),
            )
            for variant in report.variants
            for found in [variant.verifications[report.criterion]]
        ],
    )  # fmt: skip
    yield Text(
        "“The target says it”: at least one of its samples at that context means the same. ECE: the distance between "
        "probabilities and labels, of drafted segments; log-loss: their cross-entropy in nats."
    )


def _rule(report: Report) -> Iterator[Block]:
    chosen, cost = report.recommendation, report.cost
    yield Text(
        f"Chosen on {chosen.num_right:,} right and {chosen.num_wrong:,} wrong segments of the validation and "
        "calibration questions, on which the probes were also stopped and calibrated: the highest estimated speed-up "
        f"with at most {share(chosen.limit)} of the wrong ones accepted, by the upper end of the 95% interval. "
        f"{_choice(chosen.chosen)} The table is from the test questions, which had no say."
    )
    yield Table(
        (
            "rule",
            "accepted",
            "right accepted",
            "wrong accepted",
            "wrong among accepted",
            "speed-up (estimate)",
        ),
        [_rule_row(one, _is_recommended(one, chosen)) for one in chosen.curve],
    )
    yield Text(
        f"The speed-up is computed, not measured, from {cost.draft_ms_per_token} ms a token in the draft, "
        f"{cost.target_ms_per_token} ms in the target, {cost.read_ms} ms to read a segment and {cost.judge_ms} ms to "
        "judge it, one segment a round, without draft-ahead and network."
    )


def _rule_name(one: Outcome) -> str:
    return "min(1, p/q)" if one.threshold is None else f"p/q ≥ {one.threshold:.2f}"


def _choice(chosen: Outcome | None) -> str:
    if chosen is None:
        return "There is none."
    return f"The chosen one accepted {share(chosen.wrong_accepted)} of them."


def _is_recommended(one: Outcome, chosen: Recommendation) -> bool:
    return chosen.expected is not None and one.threshold == chosen.expected.threshold


def _rule_row(one: Outcome, is_chosen: bool) -> tuple[str, ...]:
    name = _rule_name(one)
    shares = (one.acceptance, one.right_accepted, one.wrong_accepted, one.wrong_kept)
    return (
        f"{name}, recommended" if is_chosen else name,
        *map(share, shares),
        f"{decimal(one.speed_up, 2)}x",
    )


def _partial(report: Report) -> Iterator[Block]:
    """The learning curve and the domain matrix."""
    if len(report.learning_curve) > 1:
        yield Text("Probes fitted on shares of the training questions:")
        yield learning_table(report.learning_curve)
    if report.domains:
        yield Text(
            "AUROC of p/q of probes that learned from one domain, on the test questions of another:"
        )
        yield domain_table(report.domains)


def _cautions(report: Report) -> Iterator[str]:
    counts, shown = report.counts, report.recommendation.shown
    name = "recommended rule" if report.recommendation.expected else f"rule {_rule_name(shown)}"
    own = (
        f"; of the target's own {share(counts.target_wrong)} are"
        if report.criterion == "truth"
        else ""
    )
    yield (
        "Semantic acceptance is lossy: what is accepted may be wrong. Of the draft-written segments that the "
        f"{name} accepts {share(shown.wrong_kept)} are wrong{own}. Only pass@1 of whole answers, "
        "beside the target alone, says what that costs."
    )
    if counts.unknown:
        yield (
            f"{counts.unknown:,} of {counts.draft_segments:,} draft-written test segments are neither right nor wrong, "
            "since the truth about them is unknown. They count towards what is accepted, not towards right or wrong."
        )
    if report.criterion != "truth":
        yield "A right segment that none of the target's samples happened to say counts as wrong here."
    yield (
        "Segments of one context are alike. Standard errors come from resampling questions, and know nothing of other "
        "data."
    )


def _origin(report: Report) -> Iterator[Block]:
    counts = report.counts
    rows = {"questions": counts.questions, "contexts": counts.contexts}
    yield Table(
        ("", *counts.contexts),
        [(name, *(f"{n:,}" for n in of.values())) for name, of in rows.items()],
    )
    if report.facts:
        yield Table(
            ("setting", "value"), [(name, str(value)) for name, value in report.facts.items()]
        )


def learning_table(curve: Sequence[LearningPoint]) -> Table:
    """What more contexts bring."""
    rows = [
        (f"{one.num_contexts:,}", measured_decimal(one.auroc), measured_share(one.wrong_accepted))
        for one in curve
    ]
    return Table(("contexts learned from", *MEASURES), rows)


def domain_table(cells: Sequence[DomainCell]) -> Table:
    """AUROC of p/q; the diagonal is within a domain."""
    columns = list(dict.fromkeys(cell.tested_on for cell in cells))
    found = {(cell.trained_on, cell.tested_on): measured_decimal(cell.auroc) for cell in cells}
    rows = dict.fromkeys(cell.trained_on for cell in cells)
    return Table(
        ("learned from \\ tested on", *columns),
        [(row, *(found.get((row, one), NONE) for one in columns)) for row in rows],
    )


def _picture(report: Report) -> Picture:
    served = report.served.verifications[report.criterion]
    return Picture.drawn(
        "acceptance",
        "Right and wrong segments accepted, and speed",
        f"Along the threshold on p/q: {served.num_right:,} right and {served.num_wrong:,} wrong draft-written segments "
        f"of {report.counts.questions.get('test', 0):,} test questions. Squares: the rule min(1, p/q). Lower and "
        "further right is better. The speed-up is an estimate.",
        f"Curves of wrong segments accepted against right ones and against speed-up. Served probes: AUROC "
        f"{measured_decimal(served.auroc)}, wrong accepted at 95% of the right ones "
        f"{measured_share(served.wrong_accepted)}.",
        _drawn,
        report,
    )


def _drawn(report: Report) -> Figure:
    """Wrong against right segments accepted, for all variants: the whole range and the relevant corner; and against
    the speed-up, for the served one's rules."""
    figure, (whole, corner, speed) = panels(3, (12.5, 4.3))
    served, *others = report.variants
    for axes in (whole, corner):
        for variant, (colour, line) in (
            *zip(others, cycle(STYLES), strict=False),
            (served, (BLUE, "-")),
        ):
            found, width = (
                variant.verifications[report.criterion],
                2.4 if variant is served else 1.4,
            )
            points = [(one.right_accepted, one.wrong_accepted) for one in found.thresholds]
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                linestyle=line,
                linewidth=width,
                label=variant.name,
            )
            axes.plot(
                found.sample.right_accepted,
                found.sample.wrong_accepted,
                "s",
                color=colour,
                markersize=5,
            )
        if expected := report.recommendation.expected:
            axes.plot(
                [expected.right_accepted],
                [expected.wrong_accepted],
                "o",
                color="black",
                markersize=10,
                fillstyle="none",
                label="recommended rule",
                zorder=5,
            )
        axes.set(xlabel="right segments accepted")
        axes.xaxis.set_major_formatter(PERCENT)
        axes.yaxis.set_major_formatter(PERCENT)
    bar = (
        (LEAST_RIGHT_ACCEPTED, 0),
        1 - LEAST_RIGHT_ACCEPTED,
        BARS[report.criterion].most_wrong_accepted,
    )
    corner.add_patch(
        Rectangle(*bar, facecolor=GREEN, alpha=0.18, label="the bar: pass through here")
    )
    whole.set(
        ylabel="wrong segments accepted", xlim=(0, 1.01), ylim=(-0.01, 1.01), title="whole range"
    )
    corner.set(xlim=(0.8, 1.003), ylim=(-0.004, 0.2), title="the corner that matters")
    corner.xaxis.set_major_locator(MultipleLocator(0.05))
    corner.yaxis.set_major_locator(MultipleLocator(0.05))
    _draw_speed(speed, report.recommendation)
    figure.legend(*corner.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _draw_speed(axes: Axes, chosen: Recommendation) -> None:
    """Wrong segments accepted against speed-up: every second candidate rule and the recommended one, each named."""
    rules = [one for one in chosen.curve[1::2] if not _is_recommended(one, chosen)]
    if chosen.expected:
        rules = sorted([*rules, chosen.expected], key=lambda one: one.speed_up)
    axes.plot(
        [one.speed_up for one in rules],
        [one.wrong_accepted for one in rules],
        ".-",
        color=BLUE,
        linewidth=0.8,
    )
    if chosen.expected:
        axes.plot(
            chosen.expected.speed_up,
            chosen.expected.wrong_accepted,
            "o",
            color="black",
            ms=10,
            fillstyle="none",
        )
    axes.set(xlabel="estimated speed-up", title="what each rule costs and brings")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    name_points(axes, [(_rule_name(one), one.speed_up, one.wrong_accepted) for one in rules], 0.07)


def headline(report: LikelihoodReport) -> str:
    """What the threshold does, in one sentence."""
    chosen = report.chosen
    return (
        f"likelihood accepts where the calibrated probability is at least {chosen.threshold:.3f}: "
        f"{measured_share(chosen.acceptance)} of the draft's segments, {measured_share(chosen.right_accepted)} of the "
        f"right and {measured_share(chosen.wrong_accepted)} of the wrong ones, estimated speed-up "
        f"{decimal(chosen.speed_up, 2)}x"
    )


def write_likelihood(name: str, report: LikelihoodReport, folder: Path) -> None:
    """Write the self-contained `report.html` and `report.json`, each file atomically."""
    contents = [Section("", tuple(_calibration(report)))]
    write_json(folder / "report.json", plain(asdict(report), 5))
    write_text(folder / "report.html", as_html(f"{name} without probes", contents))


def _calibration(report: LikelihoodReport) -> Iterator[Block]:
    one = report.calibration
    yield Text(f"{headline(report)}.")
    yield Text(
        f"From {one.num_questions} questions: {one.num_right:,} right drafted segments, and about {one.num_wrong:,} "
        f"wrong ones. AUROC {measured_decimal(report.auroc)}. Each question is judged by weights of the others; ± is "
        "one standard error, by resampling questions."
    )
    yield Table(
        ("threshold", "accepted", "right accepted", "wrong accepted", "speed-up (estimate)"),
        [_point_row(point, point.threshold == one.threshold) for point in report.curve],
    )
    yield Bullets(
        (
            "Right: one of the target's samples at that context means the same.",
            f"{share(report.missed)} of the target's own segments are meant by none of its other samples. As many of "
            "the draft's segments that none of them means are not counted as wrong; the others are.",
            "Semantic acceptance is lossy. Only pass@1 of whole answers, beside the target alone, tells what it costs.",
        )
    )


def _point_row(point: LikelihoodPoint, is_chosen: bool) -> tuple[str, ...]:
    name = f"{point.threshold:.3f}"
    shares = (point.acceptance, point.right_accepted, point.wrong_accepted)
    return (
        f"{name}, served" if is_chosen else name,
        *map(measured_share, shares),
        f"{decimal(point.speed_up, 2)}x",
    )
