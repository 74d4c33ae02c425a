"""Labels of a bench: what they mean, and what is refused."""

import pytest

from semspec.bench.configuration import parse
from semspec.bench.runners.in_process import with_options
from semspec.decoding import Generation
from semspec.errors import InvalidRequest
from semspec.types import Acceptance, Context, SamplingParams, Scoring, Segmentation

DEFAULTS = Generation(Context(()), SamplingParams(), acceptance=Acceptance("threshold", 0.1))


def test_a_bare_strategy_leaves_the_pair_its_defaults() -> None:
    assert parse("semantic").options == {"strategy": "semantic"}
    assert with_options(DEFAULTS, parse("semantic")) == DEFAULTS


def test_knobs_reach_the_request_and_the_loop_alike() -> None:
    configuration = parse(
        "in-process/semantic+token-level:gamma=2:token_gamma=3:threshold=0.3:segmentation=sentence:ahead=off"
    )
    assert configuration.options == {
        "strategy": "semantic+token-level",
        "gamma": 2,
        "token_gamma": 3,
        "segmentation": "sentence",
        "acceptance": {"rule": "threshold", "threshold": 0.3},
        "draft_ahead": False,
    }
    generation = with_options(DEFAULTS, configuration)
    assert (generation.gamma, generation.token_gamma, generation.draft_ahead) == (2, 3, False)
    assert generation.segmentation is Segmentation.SENTENCE
    assert generation.acceptance == Acceptance("threshold", 0.3)


def test_alternatives_have_a_knob() -> None:
    two = parse("semantic:num_drafts=2")
    assert two.options == {"strategy": "semantic", "num_drafts": 2}
    assert with_options(DEFAULTS, two).num_drafts == 2 > DEFAULTS.num_drafts


def test_options_of_retrieval_have_knobs() -> None:
    label = "retrieval:retrieval_source=datastore:retrieval_tree=on:gate=soft:gate_entropy=0.1:gate_top_k=5"
    gate = {"gate": "soft", "gate_entropy": 0.1, "gate_top_k": 5}
    options = {"retrieval_source": "datastore", "retrieval_tree": True, **gate}
    assert parse(label).options == {"strategy": "retrieval", **options}


def test_paper_rule_replaces_the_pairs_threshold() -> None:
    assert with_options(DEFAULTS, parse("semantic:rule=sample")).acceptance.rule == "sample"


def test_scoring_knobs_reach_the_loop() -> None:
    generation = with_options(DEFAULTS, parse("spec-reason:score_method=average:score_threshold=9"))
    assert generation.scoring == Scoring("average", 9.0)


def test_peer_methods_have_their_own_knobs() -> None:
    configuration = parse("transformers/assisted:tokens=5")
    assert (configuration.runner, configuration.method, configuration.knobs) == (
        "transformers",
        "assisted",
        {"tokens": 5},
    )


@pytest.mark.parametrize(
    ("label", "named"),
    [
        ("semantik", "semantic"),
        ("teleport/semantic", "in-process"),
        ("vllm/semantic", "draft_model"),
        ("arctic/retrieval", "suffix"),
        ("semantic:gama=2", "gamma"),
        ("semantic:gamma=two", "gamma='two'"),
        ("semantic:rule=maybe", "threshold"),
        ("semantic:rule=sample:threshold=1", "takes no threshold"),
    ],
)
def test_unknown_words_are_refused_with_those_that_are_known(label: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        parse(label)
