"""Entailment by a language model: the prompt, the probability of its answer, and the clusters that follow."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from semspec.clustering.equivalence import Alternatives
from semspec.clustering.language_model import (
    NO_REASONING,
    EntailmentPrompt,
    LanguageModelConfig,
    LanguageModelEquivalence,
)
from semspec.clustering.loading import load_equivalence, served_equivalence
from semspec.engine.causal_lm import CausalLM
from semspec.stack import BUNDLED_PAIR
from tests.training import support
from tests.training.support import group

TARGET = str(BUNDLED_PAIR / "target")
CONTEXT = Alternatives("1", "What is 3 * 4?", "We multiply.\n\n", ())
PAIRS = [("3 * 4 = 12", "So it is 12."), ("No.", "It is 7, and not 12."), ("So it is 12.", "No.")]


@pytest.fixture(scope="module")
def lm() -> CausalLM:
    return CausalLM.load(TARGET, None, "cpu", "float32")


def test_probability_is_of_yes_against_no_in_batches_of_any_size(lm: CausalLM) -> None:
    prompt = EntailmentPrompt(lm, 16)
    wanted = []
    for premise, hypothesis in PAIRS:
        ids = prompt.ids(CONTEXT, premise, hypothesis)
        logits = lm.forward(ids, lm.new_kv()).logits[-1]
        yes, no = (logits[tokens].exp().sum() for tokens in (prompt.yes, prompt.no))
        wanted.append(float(yes / (yes + no)))
    assert len(set(wanted)) == len(PAIRS)
    for batch_size in (1, 2, 16):
        found = EntailmentPrompt(lm, batch_size).probabilities(CONTEXT, PAIRS)
        torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=1e-3, atol=1e-6)


def test_prompt_is_a_turn_of_the_chat_with_all_texts(lm: CausalLM) -> None:
    """The bundled target's template opens a reasoning, which the prompt closes."""
    text = EntailmentPrompt(lm, 1).text(CONTEXT, "premise {x}", "hypothesis")
    assert text.startswith("<|im_start|>user") and text.endswith("</think>\n\n")
    for part in ("What is 3 * 4?", "We multiply.", "step 1: premise {x}", "step 2: hypothesis"):
        assert part in text
    assert NO_REASONING in EntailmentPrompt(lm, 1).text(group(), "a", "b")


class FakePrompt:
    """Says that one character entails another as a set of arrows has it; counts batches."""

    def __init__(self, arrows: str, probability: float = 0.9) -> None:
        self._arrows, self._probability = arrows.split(), probability
        self.batches: list[list[str]] = []

    def fits(self, context: Alternatives, text: str) -> bool:
        return len(text) < 9

    def probabilities(self, context: Alternatives, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.batches.append(["".join(pair) for pair in pairs])
        return [self._probability if "".join(pair) in self._arrows else 0.1 for pair in pairs]


CHAIN = "ab ba bc cb"


@pytest.mark.parametrize(
    ("arrows", "segments", "clusters"),
    [
        ("ab ba", ["a", "b"], [0, 0]),
        ("ab", ["a", "b"], [0, 1]),
        (CHAIN, ["a", "b", "c"], [0, 0, 1]),
        (CHAIN, ["a", "b", "b", "c"], [0, 0, 0, 0]),
        ("", ["", "\n\n", "a", "a much too long text", " a."], [0, 0, 1, None, 1]),
    ],
)
def test_segments_mean_the_same_if_each_entails_their_representative(
    arrows: str, segments: list[str], clusters: list[int | None]
) -> None:
    equivalence = LanguageModelEquivalence(FakePrompt(arrows), 0.5)  # type: ignore[arg-type]
    assert equivalence.clusters([group(*segments), group()]) == [clusters, []]
    assert equivalence.take_counts()["num_too_long"] == clusters.count(None)


def test_representatives_are_asked_in_one_batch_a_direction() -> None:
    prompt = FakePrompt("ac ca")
    equivalence = LanguageModelEquivalence(prompt, 0.5)  # type: ignore[arg-type]
    assert equivalence.clusters([group("a", "b", "c")]) == [[0, 1, 0]]
    assert [batch for batch in prompt.batches if batch] == [["ab"], ["ac", "bc"], ["ca"]]
    assert equivalence.take_counts()["num_forwards"] == 4


def test_threshold_decides() -> None:
    strict = LanguageModelEquivalence(FakePrompt("ab ba"), 0.95)  # type: ignore[arg-type]
    assert strict.clusters([group("a", "b")]) == [[0, 1]]


def test_bundled_target_clusters_and_serves() -> None:
    fields = {"kind": "model", "model": TARGET, "device": "cpu", "threshold": 0.999999}
    equivalence = load_equivalence(LanguageModelConfig.model_validate(fields))
    assert equivalence.clusters([group("a b", "a  b.", "c")])[0][:2] == [0, 0]
    name, _ = served_equivalence("card", {"equivalence": fields})
    assert name == TARGET
    name, _ = served_equivalence("card", {"equivalence": {"kind": "results"}})
    assert name == "results"


def test_segment_beyond_the_window_has_no_cluster(lm: CausalLM) -> None:
    equivalence = LanguageModelEquivalence(EntailmentPrompt(lm, 4), 0.5)
    assert equivalence.clusters([group("12 " * lm.info.max_context_tokens)]) == [[None]]


def test_model_is_the_target_unless_it_is_named(tmp_path: Path) -> None:
    def equivalence(**fields: object) -> object:
        kind = {"kind": "model", **fields}
        return support.config(
            tmp_path / "a", tmp_path / "b", tmp_path, equivalence=kind
        ).equivalence

    target = LanguageModelConfig(kind="model", model=str(tmp_path / "b"), device="cpu")
    assert equivalence() == target
    assert equivalence(threshold=0.7) == target.model_copy(update={"threshold": 0.7})
    assert equivalence(model="other") == LanguageModelConfig(kind="model", model="other")
