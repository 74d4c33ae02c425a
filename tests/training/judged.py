"""Labels and what probes say of them, made up."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semspec.training.data.labels import Labels
from semspec.training.evaluation.verification import Predicted

SPLITS = ("train", "validation", "calibration", "test")


def made_up(
    num_questions: int = 120,
    num_samples: int = 10,
    domains: Sequence[str] = ("algebra", "geometry"),
    seed: int = 0,
) -> Labels:
    """Four contexts a question; a fifth of the drafts' segments are wrong, one in ten of them unknown."""
    rng = np.random.default_rng(seed)
    context = np.arange(4 * num_questions).repeat(2 * num_samples)
    size, question = len(context), context // 4
    wrong = rng.random(size) < rng.beta(1, 4, num_questions)[question]
    p = np.where(wrong, 0, rng.beta(2, 1.5, size))
    return Labels(
        context=context,
        question=question,
        domain=np.array(domains)[question % len(domains)],
        split=np.array(SPLITS)[np.minimum(question % 6, 3)],
        by_draft=np.arange(size) // num_samples % 2 == 1,
        target_probability=p.astype(np.float32),
        draft_probability=rng.beta(1.5, 1.5, size).astype(np.float32),
        valid=np.where(rng.random(size) < 0.1, np.nan, 1 - wrong).astype(np.float32),
        num_tokens=rng.integers(10, 60, size),
        shard=np.zeros_like(context),
        row=np.arange(size),
        draft_row=np.arange(size),
    )


def guessed(labels: Labels, name: str, noise: float, seed: int = 0) -> Predicted:
    """Probes that are off by `noise` on the logarithmic scale; nan where the pipeline does not ask."""
    rng = np.random.default_rng(seed)

    def off(wanted: NDArray[np.float32]) -> NDArray[np.float64]:
        inner = wanted.clip(0.005, 0.995)
        odds: NDArray[np.float64] = inner / (1 - inner) * rng.lognormal(0, noise, len(wanted))
        return odds / (1 + odds)

    held_out = labels.split != "train"
    p = np.where(held_out, off(labels.target_probability), np.nan).astype(np.float32)
    q = np.where(held_out & labels.by_draft, off(labels.draft_probability), np.nan).astype(
        np.float32
    )
    return Predicted(name, p, q)
