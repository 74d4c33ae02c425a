"""Pictures from the traces: the stages of a mean round, and acceptance by position in the answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from semspec.bench.record import STAGES, Record
from semspec.bench.summary import Row, Run
from semspec.training.report.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PERCENT,
    PURPLE,
    SKY,
    error_line,
    panels,
)
from semspec.training.report.numbers import Measured

STAGE_NAMES = {
    "draft_ms": "draft writes", "read_ms": "target reads", "judge_ms": "probes judge", "write_ms": "target rewrites",
}  # fmt: skip
_COLOURS = dict(zip(STAGES, (SKY, BLUE, PURPLE, ORANGE), strict=True))
LEAST_SEGMENTS = 20


@dataclass(frozen=True, slots=True)
class Round:
    """Mean costs of a judged segment."""

    num_rounds: int
    stages_ms: Mapping[str, float]
    wire_ms: float
    """The part of the stages outside the engines."""
    other_ms: float
    """The answer's latency outside the stages, divided by its rounds."""
    num_tokens: float
    target_ms: float
    """Time of the baseline for as many tokens."""


@dataclass(frozen=True, slots=True)
class Depth:
    """Acceptance of judged segments at one position of the answers."""

    index: int
    num_segments: int
    acceptance: Measured


def mean_round(run: Run, row: Row) -> Round | None:
    """The mean round; None if no segment of the row was judged, or the traces are missing."""
    judged = [segment for record in _records(run, row) for segment in _judged(record)]
    if not judged:
        return None
    times = {
        name: float(np.mean([one["times"].get(name, 0.0) for one in judged]))
        for name in (*STAGES, "wire_ms")
    }
    num_tokens = float(np.mean([one["num_tokens"] for one in judged]))
    base = run.rows[0]
    return Round(
        num_rounds=len(judged),
        stages_ms={name: times[name] for name in STAGES},
        wire_ms=times["wire_ms"],
        other_ms=max(row.stages_ms.get("other_ms", 0.0), 0.0) / max(row.num_rounds, 1e-9),
        num_tokens=num_tokens,
        target_ms=1e3 * base.latency_s.value / base.mean_tokens * num_tokens,
    )


def waterfall(round_: Round) -> Figure:
    """The consecutive stages, and the time of the target alone for as many tokens."""
    figure, (axes,) = panels(1, (9.0, 3.0))
    left, rows = (
        0.0,
        [*STAGE_NAMES.values(), "other", "wire (part of the four)", "target alone, as many tokens"],
    )
    for name, title in STAGE_NAMES.items():
        axes.barh(title, round_.stages_ms[name], left=left, color=_COLOURS[name])
        left += round_.stages_ms[name]
    axes.barh("other", round_.other_ms, left=left, color=GREY)
    axes.barh(
        rows[5],
        round_.wire_ms,
        left=left - round_.wire_ms,
        color="white",
        edgecolor=GREEN,
        hatch="////",
    )
    axes.barh(rows[6], round_.target_ms, color=BLACK)
    lengths = [*round_.stages_ms.values(), round_.other_ms, round_.wire_ms, round_.target_ms]
    starts = [*np.cumsum([0.0, *round_.stages_ms.values()]), left - round_.wire_ms, 0.0]
    for index, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        axes.annotate(
            f"{length:.2f} ms",
            (start + length, index),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
        )
    axes.set_xlim(0, 1.1 * max(left + round_.other_ms, round_.target_ms))
    axes.set_xlabel(
        f"milliseconds, mean of {round_.num_rounds:,} judged segments of {round_.num_tokens:.1f} tokens"
    )
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


def by_depth(run: Run, row: Row) -> list[Depth]:
    """Acceptance of the first, second, ... judged segment; positions with few segments are omitted."""
    verdicts: dict[int, list[bool]] = {}
    for record in _records(run, row):
        for index, segment in enumerate(_judged(record), 1):
            verdicts.setdefault(index, []).append(segment["verdict"] == "accepted")
    return [
        _depth(index, own) for index, own in sorted(verdicts.items()) if len(own) >= LEAST_SEGMENTS
    ]


def _depth(index: int, accepted: Sequence[bool]) -> Depth:
    share = float(np.mean(accepted))
    return Depth(
        index, len(accepted), Measured(share, float(np.sqrt(share * (1 - share) / len(accepted))))
    )


def acceptance_by_depth(depths: Sequence[Depth]) -> Figure:
    figure, (axes,) = panels(1, (9.0, 3.0))
    error_line(axes, [one.index for one in depths], [one.acceptance for one in depths])
    axes.set(xlabel="judged segment of the answer", ylabel="accepted", ylim=(-0.02, 1.03))
    axes.yaxis.set_major_formatter(PERCENT)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _records(run: Run, row: Row) -> list[Record]:
    return [record for record in run.records if record.label == row.label]


def _judged(record: Record) -> Iterator[Mapping[str, Any]]:
    return (segment for segment in record.trace if segment["verdict"] != "unjudged")
