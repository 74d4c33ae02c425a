"""Runs as the bench would write them, made up: seeded, with the shape of true ones and no meaning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from semspec_bench.record import STAGES, Record
from semspec_bench.summary import Run, summarise

RATES: Mapping[str, tuple[float, float]] = {
    "target": (1.0, 0.95),
    "draft": (7.6, 0.62),
    "semantic": (2.9, 0.94),
    "semantic:rule=sample": (2.2, 0.95),
    "semantic:threshold=0.05": (3.0, 0.93),
    "semantic:threshold=0.3": (2.7, 0.94),
    "semantic:threshold=0.5": (2.4, 0.95),
    "semantic:gamma=1": (2.8, 0.94),
    "semantic:gamma=2": (2.5, 0.93),
    "semantic:gamma=3": (2.2, 0.92),
    "semantic:segmentation=sentence": (2.3, 0.93),
    "semantic:rewrite=token-level": (3.1, 0.94),
    "token-level": (1.6, 0.95),
    "semantic:probes=last-hidden": (2.8, 0.9),
    "semantic:probes=surprisal": (2.85, 0.93),
    "in-process/semantic": (2.6, 0.94),
    "random": (1.9, 0.74),
    "transformers/assisted": (1.3, 0.95),
}
"""Label -> speed-up, pass@1."""
FEW = ("target", "semantic", "transformers/assisted")
HOSTILE = "<script>alert('x')</script>"
SETTINGS: Mapping[str, Any] = {
    "task": "demo", "pair": "pair", "gateway": None, "temperature": 0.6, "top_p": 0.95, "max_tokens": 512,
    "samples": 1, "sessions": 1, "seed": 0, "code": "0123abcd",
}  # fmt: skip
ENVIRONMENT: Mapping[str, Any] = {
    "python": "3.11.7",
    "num_cores": 2,
    "devices": [],
    "versions": {"torch": "2.13.0"},
}


def made_up_run(
    name: str = "sampled",
    labels: Sequence[str] = tuple(RATES),
    num_questions: int = 120,
    not_applicable: Mapping[str, str] | None = None,
    seed: int = 0,
    **settings: Any,
) -> Run:
    rng = np.random.default_rng(seed)
    length = rng.lognormal(5, 0.4, num_questions)
    records = [
        _record(rng, label, index, int(length[index]))
        for index in range(num_questions)
        for label in labels
    ]
    return Run(
        folder=Path(".work/bench") / name,
        name=name,
        settings=dict(SETTINGS) | settings,
        environment=ENVIRONMENT,
        rows=summarise(records, labels),
        not_applicable=not_applicable or {},
        records=records,
    )


def _record(rng: np.random.Generator, label: str, index: int, num_tokens: int) -> Record:
    speedup, right = RATES[label]
    latency_s = num_tokens / 100 / speedup * float(rng.lognormal(0, 0.1))
    trace = (
        []
        if "/assisted" in label
        else [_segment(rng, label, number, 1e2 * latency_s) for number in range(8)]
    )
    spent = (
        {name: sum(one["times"][name] for one in trace) for name in (*STAGES, "wire_ms")}
        if trace
        else {}
    )
    accepted = sum(one["verdict"] == "accepted" for one in trace)
    rejected = sum(one["verdict"] == "rewritten" for one in trace)
    return Record(
        label=label,
        question=str(index),
        sample=0,
        seed=index,
        is_right=bool(rng.random() < right),
        finish_reason="stop" if rng.random() < 0.97 else "length",
        latency_s=latency_s,
        num_prompt_tokens=40,
        num_tokens=num_tokens,
        num_target_tokens=None
        if not trace
        else num_tokens
        if label == "target"
        else num_tokens * rejected // 8,
        num_accepted=accepted,
        num_rejected=rejected,
        num_proposed_tokens=num_tokens if "token-level" in label else 0,
        num_accepted_tokens=num_tokens // 2 if "token-level" in label else 0,
        stages_ms=spent,
        text_digest=f"{label[:3]}{index}",
        trace=trace,
    )


def _segment(rng: np.random.Generator, label: str, number: int, span_ms: float) -> dict[str, Any]:
    kept = "accepted" if rng.random() < 0.9 - 0.03 * number else "rewritten"
    shares = {
        "draft_ms": 0.2,
        "read_ms": 0.3,
        "judge_ms": 0.05,
        "write_ms": 0.0 if kept == "accepted" else 1.2,
    }
    return {
        "index": number,
        "text": HOSTILE,
        "num_tokens": 14,
        "writer": "draft",
        "verdict": "unjudged" if label in ("target", "draft") else kept,
        "times": {name: share * span_ms for name, share in shares.items()}
        | {"wire_ms": 0.1 * span_ms},
    }
