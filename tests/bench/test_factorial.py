"""The factorial's cells and errors against arithmetic, and one pair of each kind made from a few contexts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from semspec.bench.factorial.__main__ import CONFIG
from semspec.bench.factorial.cells import CELLS, Cell, effects
from semspec.bench.factorial.fits import Factorial
from semspec.bench.factorial.measures import mean_of
from semspec.probes.probe import load_probe
from semspec.training.config import QuestionSource, load_config
from semspec.training.pipeline import Pipeline
from semspec.training.progress import Reporter


def test_effects_compare_cells_that_differ_in_one_factor() -> None:
    assert len(CELLS) == len(set(CELLS)) == 14
    for effect in effects():
        assert effect.cells and effect.minus and not set(effect.cells) & set(effect.minus)
        for factor in ("recipe", "features", "layers"):
            levels, others = ({getattr(CELLS[n], factor) for n in cells} for cells in (effect.cells, effect.minus))
            is_changed = not levels & others
            assert is_changed or levels == others
    assert len(list(effects())) == 9


def test_error_counts_questions_and_training_seeds() -> None:
    rng = np.random.default_rng(0)
    values = np.empty((2, 5, 4001))
    of_seed, of_questions = np.array([-2.0, -1, 0, 1, 2]), 3 * rng.standard_normal(4000)
    values[:, :, 0] = 10 + of_seed
    values[:, :, 1:] = 10 + of_seed[:, None] + of_questions
    alone = mean_of(values, [0])
    assert alone.value == 10 and alone.error == pytest.approx(np.sqrt(2 + 9), rel=0.05)
    paired = mean_of(values, [0], [1])  # the same questions: only the two trainings' variance is left
    assert paired.value == 0 and paired.error == pytest.approx(np.sqrt(2 + 2), rel=0.05)


@pytest.mark.slow
def test_pairs_of_cells_without_and_with_states(tmp_path: Path) -> None:
    config = load_config(CONFIG)
    few = [one.model_copy(update={"limit": 5 if one.role == "train" else 1}) for one in config.questions]
    samples = config.samples.model_copy(update={"num_samples": 5, "num_test_samples": 5})
    probes = config.probes.model_copy(update={"num_epochs": 1})
    config = config.model_copy(
        update={"questions": tuple[QuestionSource, ...](few), "samples": samples, "probes": probes}
    )
    for stage in ("contexts", "samples", "clusters"):
        Pipeline(config, tmp_path / "work").make(stage)
    factorial = Factorial(config, tmp_path / "work", Reporter(quiet=True))
    without, middle = CELLS[-1], Cell("paper", "states", "middle")
    predicted = factorial.predicted(without, 0)
    assert set(predicted.draft_probability) == {np.float32(factorial.constant_q)}
    factorial.save_pair(without, 0, tmp_path / "without")
    draft = load_probe(tmp_path / "without" / "probes" / "draft.safetensors").probe
    anything = torch.randn(7, len(draft.mean))
    assert draft(anything).detach().numpy() == pytest.approx(factorial.constant_q, abs=1e-3)
    factorial.save_pair(middle, 1, tmp_path / "middle")
    cards = {
        role: load_probe(tmp_path / "middle" / "probes" / f"{role}.safetensors").card for role in ("draft", "target")
    }
    assert (cards["target"].layers, cards["draft"].layers, cards["target"].recipe) == ((12,), (2,), "own")
