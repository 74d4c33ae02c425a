"""Meaning by a real model: what it says of steps that a person can judge."""

import pytest

from semspec.clustering.equivalence import Alternatives
from semspec.clustering.language_model import LanguageModelConfig, LanguageModelEquivalence
from semspec.clustering.results import ResultsEquivalence
from tests.real.support import DTYPE, LARGE, real_model

pytestmark = pytest.mark.slow

QUESTION = "Tom has 25 pens and sells 6 of them each day for 3 days. How many are left?"
STEPS = (
    "He sells 6 * 3 = 18 pens.\n\n",
    "In three days he sells 6 * 3 = 18 pens.\n\n",
    "He sells 6 + 3 = 9 pens.\n\n",
)


def test_large_model_tells_a_paraphrase_from_another_step() -> None:
    name = str(real_model(LARGE))
    config = LanguageModelConfig(kind="model", model=name, device="cpu", dtype=DTYPE)
    context = Alternatives("1", QUESTION, "", STEPS)
    prompt = LanguageModelEquivalence.load(config).prompt
    same = prompt.probabilities(context, [(STEPS[0], STEPS[1]), (STEPS[1], STEPS[0])])
    other = prompt.probabilities(context, [(STEPS[0], STEPS[2]), (STEPS[2], STEPS[0])])
    assert min(same) > max(other)
    assert ResultsEquivalence().clusters([context]) == [[0, 0, 1]]
