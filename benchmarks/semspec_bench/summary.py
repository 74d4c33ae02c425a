"""Summarises records: means with standard errors, and differences paired by question."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from semspec.errors import InvalidRequest
from semspec.reporting.files import read_json
from semspec.reporting.numbers import Measured
from semspec_bench.configuration import Configuration, parse
from semspec_bench.intervals import Interval, interval_of_difference, interval_of_share
from semspec_bench.record import ANSWERS, RECORDS, STAGES, Record, read_records

NUM_RESAMPLES = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one configuration over the questions that all configurations of its run have answered."""

    label: str
    configuration: Configuration
    num_questions: int
    num_samples: int
    """Answers to a question; the least of all questions, if the run is not whole."""
    num_answers: int
    pass_at_1: Measured
    """Share of right answers; the samples of a question are averaged first."""
    difference: Measured
    """pass@1 minus the baseline's, paired by question."""
    pass_at_1_95: Interval
    difference_95: Interval
    num_right: int
    num_gained: int
    """Right answers where the baseline's with the same seed is wrong."""
    num_lost: int
    """Wrong answers where the baseline's with the same seed is right."""
    mcnemar_p: float | None
    """McNemar's p-value of the difference: exact, two-sided; None with several samples per question."""
    latency_s: Measured
    median_latency_s: float
    speedup: Measured
    """The baseline's mean latency divided by this one's."""
    tokens_per_s: float
    """Rate of all sessions together while all of them are busy."""
    mean_tokens: float
    target_ratio: float | None
    """Share of the tokens that the target wrote, or sampled after a rejection; None where unknown."""
    acceptance_rate: float | None
    """Accepted share of the judged segments; None if there are none."""
    token_acceptance_rate: float | None
    """Accepted share of the proposed tokens; None if there are none."""
    share_cut: float
    """Share of answers that reached the token budget."""
    share_equal_to_baseline: float
    stages_ms: Mapping[str, float]
    """Means per generation; `wire_ms` is part of the other stages, `other_ms` the latency outside them."""
    num_rounds: float
    """Mean number of judged segments per generation."""

    def as_json(self) -> dict[str, Any]:
        """Return all fields except the parsed configuration."""
        row = asdict(self)
        del row["configuration"]
        return row


@dataclass(frozen=True, slots=True)
class Run:
    """The summary of a run's folder."""

    folder: Path
    name: str
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: Sequence[Row]
    """The baseline first."""
    not_applicable: Mapping[str, str]
    """Label -> why the pair does not support it."""
    records: Sequence[Record]

    @property
    def is_timed(self) -> bool:
        """Return whether its times are results, because no other question was answered at the same time."""
        return bool(self.settings["sessions"] == 1)


def read_run(folder: Path) -> tuple[dict[str, Any], list[Record]]:
    """Read `run.json` and all answers of a run, or those of a report's file `NAME.jsonl.gz`.

    Raises: InvalidRequest when `folder` is neither.
    """
    if folder.name.endswith(ANSWERS):
        summary = folder.parent / "summary.json"
        facts = (
            read_json(summary).get(folder.name.removesuffix(ANSWERS)) if summary.is_file() else None
        )
        if facts is None:
            text = f"{folder} cannot be reported on: {summary} must name it"
            raise InvalidRequest(text)
        labels = [row["label"] for row in facts["rows"]]
        return {**facts, "labels": labels}, read_records(folder)
    path = folder / "run.json"
    if not path.is_file():
        raise InvalidRequest(
            f"{folder} is not a run: it has no run.json", remedy="make one with `semspec bench run`"
        )
    return read_json(path), read_records(folder / RECORDS)


def load_run(folder: Path) -> Run:
    """Summarise a run's folder.

    Raises: InvalidRequest when the folder is not a run, or none of its questions has been answered by all.
    """
    facts, records = read_run(folder)
    return Run(
        folder=folder,
        name=folder.resolve().name.removesuffix(ANSWERS),
        settings=facts["settings"],
        environment=facts["environment"],
        rows=summarise(records, facts["labels"], facts["settings"]["sessions"]),
        not_applicable=facts["not_applicable"],
        records=records,
    )


def summarise(records: Sequence[Record], labels: Sequence[str], num_sessions: int = 1) -> list[Row]:
    """Summarise each of `labels` that has answers; the first is the baseline. `num_sessions`: concurrent answers.

    Raises: InvalidRequest.
    """
    by_label: dict[str, dict[tuple[str, int], Record]] = {label: {} for label in labels}
    for record in records:
        by_label[record.label][record.question, record.sample] = record
    if not by_label[labels[0]]:
        raise InvalidRequest(
            f"the run has no answers of its baseline {labels[0]}", remedy="let it go on"
        )
    answered = [answers for answers in by_label.values() if answers]
    keys = sorted(set.intersection(*(set(answers) for answers in answered)))
    if not keys:
        raise InvalidRequest(
            "no question has been answered by all configurations", remedy="let the run go on"
        )
    rows = [[answers[key] for key in keys] for answers in answered]
    return [_row(answers, rows[0], num_sessions) for answers in rows]


def _row(records: Sequence[Record], baseline: Sequence[Record], num_sessions: int) -> Row:
    questions = np.unique([record.question for record in records], return_inverse=True)[1]
    right, base_right = (
        by_question(_array(side, "is_right"), questions) for side in (records, baseline)
    )
    latency, base_latency = (
        by_question(_array(side, "latency_s"), questions) for side in (records, baseline)
    )
    num_tokens = _array(records, "num_tokens").sum()
    knows_writers = all(record.num_target_tokens is not None for record in records)
    return Row(
        label=records[0].label,
        configuration=parse(records[0].label),
        num_questions=len(right),
        num_samples=len(records) // len(right),
        num_answers=len(records),
        pass_at_1=mean(right),
        difference=mean(right - base_right),
        pass_at_1_95=interval_of_share(right),
        difference_95=interval_of_difference(right, base_right),
        num_right=sum(record.is_right for record in records),
        num_gained=sum(
            record.is_right > reference.is_right
            for record, reference in zip(records, baseline, strict=True)
        ),
        num_lost=sum(
            record.is_right < reference.is_right
            for record, reference in zip(records, baseline, strict=True)
        ),
        mcnemar_p=_mcnemar(right, base_right) if len(records) == len(right) else None,
        latency_s=mean(latency),
        median_latency_s=float(np.median(_array(records, "latency_s"))),
        speedup=ratio(base_latency, latency),
        tokens_per_s=float(num_sessions * num_tokens / _array(records, "latency_s").sum()),
        mean_tokens=float(num_tokens / len(records)),
        target_ratio=_share(records, "num_target_tokens", "num_tokens") if knows_writers else None,
        acceptance_rate=_share(records, "num_accepted", "num_accepted", "num_rejected"),
        token_acceptance_rate=_share(records, "num_accepted_tokens", "num_proposed_tokens"),
        share_cut=float(np.mean([record.finish_reason == "length" for record in records])),
        share_equal_to_baseline=float(
            np.mean(
                [a.text_digest == b.text_digest for a, b in zip(records, baseline, strict=True)]
            )
        ),
        stages_ms=_stages(records),
        num_rounds=float(
            np.mean([record.num_accepted + record.num_rejected for record in records])
        ),
    )


def _share(records: Sequence[Record], part: str, *whole: str) -> float | None:
    """Return the share of a count in other counts, over all answers of a configuration; None if the total is 0."""
    total = sum(float(_array(records, name).sum()) for name in whole)
    return float(_array(records, part).sum()) / total if total else None


def _stages(records: Sequence[Record]) -> dict[str, float]:
    if not all(record.stages_ms for record in records):
        return {}
    means = {
        name: float(np.mean([r.stages_ms[name] for r in records])) for name in (*STAGES, "wire_ms")
    }
    latency_ms = 1e3 * float(_array(records, "latency_s").mean())
    return means | {"other_ms": latency_ms - sum(means[name] for name in STAGES)}


def _array(records: Sequence[Record], name: str) -> Floats:
    return np.array([getattr(record, name) for record in records], dtype=np.float64)


def by_question(values: Floats, questions: NDArray[np.intp]) -> Floats:
    """Return the mean of each question's samples."""
    means: Floats = np.bincount(questions, values) / np.bincount(questions)
    return means


def mean(values: Floats) -> Measured:
    """Return the mean of independent values, with its error."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return Measured(float(values.mean()), float(error))


def ratio(above: Floats, below: Floats) -> Measured:
    """Return the ratio of the means of paired values, with its error by resampling the pairs."""
    picks = np.random.default_rng(0).integers(0, len(below), (NUM_RESAMPLES, len(below)))
    error = (above[picks].mean(1) / below[picks].mean(1)).std() if len(above) > 1 else float("nan")
    return Measured(float(above.mean() / below.mean()), float(error))


def _mcnemar(right: Floats, base_right: Floats) -> float:
    """Return the p-value of the exact McNemar test on the questions that only one of the two has right."""
    gained, lost = int((right > base_right).sum()), int((right < base_right).sum())
    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
