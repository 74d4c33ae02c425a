"""Labels of a bench: what they mean, and what is refused."""

import pytest

from semspec.decoding import Options, RetrievalOptions
from semspec.errors import InvalidRequest
from semspec.types import Acceptance, Segmentation
from semspec_bench.configuration import parse
from semspec_bench.runners.in_process import read_options
from semspec_gateway.options import AcceptanceOptions, Defaults

DEFAULTS = Defaults(acceptance=AcceptanceOptions(rule="threshold", threshold=0.1))


def test_a_bare_strategy_leaves_the_pair_its_defaults() -> None:
    assert parse("semantic").options == {"strategy": "semantic"}
    expected = DEFAULTS.options("semantic"), DEFAULTS.segmentation
    assert read_options(DEFAULTS, parse("semantic")) == expected


def test_knobs_reach_the_request_and_the_loop_alike() -> None:
    configuration = parse(
        "in-process/semantic:rewrite=token-level:gamma=2:num_candidates=2:num_speculative_tokens=3:threshold=0.3:"
        "segmentation=sentence:ahead=off"
    )
    assert configuration.options == {
        "strategy": "semantic",
        "rewrite": "token-level",
        "gamma": 2,
        "num_candidates": 2,
        "num_speculative_tokens": 3,
        "segmentation": "sentence",
        "acceptance": {"threshold": 0.3},
    }
    options, segmentation = read_options(DEFAULTS, configuration)
    assert segmentation is Segmentation.SENTENCE
    assert options == Options(
        "token-level", "", 2, 2, 3, Acceptance("threshold", 0.3), draft_ahead=False
    )


def test_options_of_retrieval_have_knobs() -> None:
    configuration = parse("in-process/retrieval:source=datastore")
    retrieval = {"source": "datastore"}
    assert configuration.options == {"strategy": "retrieval", "retrieval": retrieval}
    options, _ = read_options(DEFAULTS, configuration)
    assert options.retrieval == RetrievalOptions("datastore")


def test_server_is_named_by_its_label_without_knobs() -> None:
    configuration = parse("server/tensor-parallel-2")
    assert (configuration.runner, configuration.method) == ("server", "tensor-parallel-2")
    for label in ("server/", "server/a b", "server/r2r:tokens=3"):
        with pytest.raises(InvalidRequest, match="a server has no knobs; name it server/NAME"):
            parse(label)


def test_paper_rule_replaces_the_pairs_threshold() -> None:
    options, _ = read_options(DEFAULTS, parse("semantic:rule=sample"))
    assert options.acceptance.rule == "sample"


def test_threshold_reaches_the_loop() -> None:
    options, _ = read_options(DEFAULTS, parse("spec-reason:threshold=9"))
    assert options.acceptance == Acceptance("threshold", 9.0)


def test_peer_methods_have_their_own_knobs() -> None:
    configuration = parse("transformers/assisted:tokens=5")
    assert configuration.runner == "transformers"
    assert configuration.method == "assisted"
    assert configuration.knobs == {"tokens": 5}


@pytest.mark.parametrize(
    ("label", "named"),
    [
        ("semantik", "semantic"),
        ("teleport/semantic", "in-process"),
        ("vllm/semantic", "draft_model"),
        ("semantic:gama=2", "gamma"),
        ("semantic:ahead=off", "unknown knob 'ahead'"),
        ("semantic:rewrite=draft", "token-level"),
        ("semantic:gamma=two", "gamma='two'"),
        ("semantic:rule=maybe", "threshold"),
        ("semantic:rule=sample:threshold=1", "takes no threshold"),
    ],
)
def test_unknown_words_are_refused_with_those_that_are_known(label: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        parse(label)
