"""The factorial's cells, effects and errors against arithmetic."""

import numpy as np
import pytest

from studies.factorial.cells import CELLS, effects
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
