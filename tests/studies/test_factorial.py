"""The factorial's cells and errors against arithmetic, and one pair of each kind made from a few contexts."""

from types import SimpleNamespace

import numpy as np
import pytest

from semspec.training.config import load_config
from semspec.training.evaluation.acceptance import Cost
from semspec.training.evaluation.verification import Predicted
from semspec.types import Acceptance
from studies.factorial.__main__ import CONFIG
from studies.factorial.cells import CELLS, effects
from studies.factorial.fits import Factorial
from studies.factorial.measures import mean_of


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


def test_recommended_rule_is_chosen_on_questions_held_out_of_its_domain() -> None:
    """Ratios that tell right from wrong on ledgers at 0.5, on boxes at 0.2, and nothing on the test questions."""
    rng, num = np.random.default_rng(0), 400
    right, domain = rng.random(num) < 0.8, np.where(np.arange(num) % 2, "boxes", "ledger")
    split = np.array(["validation", "calibration", "test", "train"])[np.arange(num) // 2 % 4]
    edge = np.where(domain == "boxes", 0.2, 0.5)
    ratio = np.where(right == (split != "test"), edge + 0.1 * rng.random(num), edge - 0.1 * rng.random(num))
    factorial = Factorial.__new__(Factorial)
    factorial._config = load_config(CONFIG)
    factorial.labels = SimpleNamespace(
        by_draft=np.ones(num, bool), split=split, domain=domain, valid=right.astype(float), num_tokens=np.full(num, 20),
        question=np.arange(num), where=np.flatnonzero,
    )  # type: ignore[assignment]  # fmt: skip
    predicted = Predicted("made up", ratio.astype(np.float32), np.ones(num, np.float32))
    cost = Cost(1.0, 10.0, 5.0, 1.0)
    assert factorial._recommended(predicted, "ledger", cost) == Acceptance("threshold", 0.5)
    assert factorial._recommended(predicted, "boxes", cost) == Acceptance("threshold", 0.2)
