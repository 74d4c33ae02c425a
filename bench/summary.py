"""From records to a table: means with their standard errors, and differences paired by problem."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.record import Record

NUM_RESAMPLES = 2000

Row = dict[str, Any]


def summarise(records: Sequence[Record], baseline: str) -> dict[str, Row]:
    """A row a label, over the problems every label has answered; `baseline` is the label of the target alone."""
    by_label: dict[str, dict[int, Record]] = {}
    for record in records:
        by_label.setdefault(record.label, {})[record.seed] = record
    seeds = sorted(set.intersection(*(set(own) for own in by_label.values())))
    aligned = {label: [own[seed] for seed in seeds] for label, own in by_label.items()}
    return {label: _row(own, aligned[baseline]) for label, own in aligned.items()}


def _row(own: Sequence[Record], target: Sequence[Record]) -> Row:
    right, latency = _array(own, "is_right"), _array(own, "latency_s")
    target_right, target_latency = _array(target, "is_right"), _array(target, "latency_s")
    num_tokens, judged = _array(own, "num_tokens").sum(), sum(r.num_accepted + r.num_rejected for r in own)
    return {
        "num_problems": len(own),
        "pass_at_1": _round(right.mean()),
        "pass_at_1_se": _round(_standard_error(right)),
        "pass_at_1_minus_target": _round((right - target_right).mean()),
        "pass_at_1_minus_target_se": _round(_standard_error(right - target_right)),
        "latency_s": _round(latency.mean()),
        "median_latency_s": _round(float(np.median(latency))),
        "speedup": _round(target_latency.mean() / latency.mean()),
        "speedup_se": _round(_speedup_error(target_latency, latency)),
        "tokens_per_s": _round(num_tokens / latency.sum()),
        "target_ratio": _round(_array(own, "num_target_tokens").sum() / max(num_tokens, 1)),
        "acceptance_rate": _round(sum(r.num_accepted for r in own) / judged) if judged else None,
        "mean_stages_ms": {name: _round(sum(r.stages_ms[name] for r in own) / len(own)) for name in own[0].stages_ms},
        "share_equal_to_target": _round(
            float(np.mean([a.text_digest == b.text_digest for a, b in zip(own, target, strict=True)]))
        ),
    }


def _array(records: Sequence[Record], name: str) -> NDArray[np.float64]:
    return np.array([getattr(record, name) for record in records], dtype=np.float64)


def _standard_error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _speedup_error(target: NDArray[np.float64], own: NDArray[np.float64]) -> float:
    """Standard error of the ratio of mean latencies, by resampling problems."""
    picks = np.random.default_rng(0).integers(0, len(own), (NUM_RESAMPLES, len(own)))
    return float((target[picks].mean(1) / own[picks].mean(1)).std())


def _round(value: float) -> float:
    return round(float(value), 4)


def table(rows: Mapping[str, Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| configuration | pass@1 | minus target | latency s | speed-up | tokens/s | target ratio | acceptance |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for label, row in rows.items():
        acceptance = "-" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.3f}"
        lines.append(
            f"| {label} | {row['pass_at_1']:.3f} ± {row['pass_at_1_se']:.3f} "
            f"| {row['pass_at_1_minus_target']:+.3f} ± {row['pass_at_1_minus_target_se']:.3f} "
            f"| {row['latency_s']:.3f} | {row['speedup']:.2f} ± {row['speedup_se']:.2f} | {row['tokens_per_s']:.0f} "
            f"| {row['target_ratio']:.3f} | {acceptance} |"
        )
    return "\n".join(lines) + "\n"
