"""The page of a calibration of `likelihood`: the threshold, and the curve to compare with that of probes."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from semspec.training.evaluation.likelihood import LikelihoodPoint, LikelihoodReport
from semspec.training.files import plain, write_json
from semspec.training.report.document import Block, Bullets, Section, Table, Text, as_html, write_text
from semspec.training.report.numbers import decimal, measured_decimal, measured_share, share


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
    contents = [Section("", tuple(_blocks(report)))]
    write_json(folder / "report.json", plain(asdict(report), 5))
    write_text(folder / "report.html", as_html(f"{name} without probes", contents))


def _blocks(report: LikelihoodReport) -> Iterator[Block]:
    one = report.calibration
    yield Text(f"{headline(report)}.")
    yield Text(
        f"From {one.num_questions} questions: {one.num_right:,} right drafted segments, and about {one.num_wrong:,} "
        f"wrong ones. AUROC {measured_decimal(report.auroc)}. Each question is judged by weights of the others; ± is "
        "one standard error, by resampling questions."
    )
    yield Table(
        ("threshold", "accepted", "right accepted", "wrong accepted", "speed-up (estimate)"),
        [_row(point, point.threshold == one.threshold) for point in report.curve],
    )
    yield Bullets(
        (
            "Right: one of the target's samples at that context means the same.",
            f"{share(report.missed)} of the target's own segments are meant by none of its other samples. As many of "
            "the draft's segments that none of them means are not counted as wrong; the others are.",
            "Semantic acceptance is lossy. Only pass@1 of whole answers, beside the target alone, tells what it costs.",
        )
    )


def _row(point: LikelihoodPoint, is_chosen: bool) -> tuple[str, ...]:
    name = f"{point.threshold:.3f}"
    shares = (point.acceptance, point.right_accepted, point.wrong_accepted)
    speed_up = f"{decimal(point.speed_up, 2)}x"
    return (f"{name}, served" if is_chosen else name, *map(measured_share, shares), speed_up)
