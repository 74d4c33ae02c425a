"""The factorial's cells and errors against arithmetic, and one pair of each kind made from a few contexts."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from semspec.bench.factorial.__main__ import CONFIG
from semspec.bench.factorial.cells import CELLS, Cell, effects
from semspec.bench.factorial.fits import Factorial
from semspec.bench.factorial.measures import mean_of
from semspec.probes.probe import load_probe
from semspec.training.config import QuestionSource, load_config
from semspec.training.evaluation.acceptance import Cost
from semspec.training.evaluation.verification import Predicted
from semspec.training.pipeline import Pipeline
from semspec.training.progress import Reporter
from semspec.types import Acceptance


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
    served = [json.loads((tmp_path / name / "probes" / "serving.json").read_text()) for name in ("without", "middle")]
    assert [rule["acceptance_rule"] for rule in served] == ["sample", "sample"]


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
