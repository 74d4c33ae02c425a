"""Measures by hand on tiny arrays, and what must hold of a report's numbers whatever the data."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isnan, nan

import numpy as np
import pytest
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from semspec.errors import InvalidRequest
from semspec.training.data.labels import Labels
from semspec.training.evaluation.acceptance import (
    Cost,
    Drafts,
    card_curve,
    default_rule,
    outcome,
    recommend,
)
from semspec.training.evaluation.evaluate import (
    LEAST_AUROC,
    MOST_WRONG_ACCEPTED,
    Evidence,
    evaluate,
)
from semspec.training.evaluation.metrics import (
    Resampling,
    auroc,
    dense_ranks,
    expected_calibration_error,
    log_loss,
    wrong_accepted,
)
from semspec.training.evaluation.verification import Predicted
from semspec.types import Acceptance
from tests.training.judged import guessed, made_up

COST = Cost(draft_ms_per_token=1, target_ms_per_token=10, read_ms=15, judge_ms=5)


def drafts(ratio: Sequence[float], right: Sequence[float], num_tokens: int = 10) -> Drafts:
    size = len(ratio)
    return Drafts(np.array(ratio), np.array(right), np.full(size, num_tokens), np.arange(size))


def evidence(labels: Labels, noise: float = 1.0) -> Evidence:
    return Evidence(
        "pair",
        labels,
        guessed(labels, "served", noise),
        COST,
        variants=[
            guessed(labels, "paper recipe", 4 * noise),
            guessed(labels, "surprisal alone", 0.9 * noise, seed=1),
        ],
        learning_curve=[
            (80, guessed(labels, "all", noise)),
            (20, guessed(labels, "quarter", 3 * noise)),
        ],
        domains={
            str(name): guessed(labels, f"only {name}", noise) for name in np.unique(labels.domain)
        },
        facts={"recipe": "cross"},
    )


def test_measures_by_hand() -> None:
    ratio, right = dense_ranks(np.array([0.9, 0.8, 0.8, 0.1])), np.array([True, True, False, False])
    assert (
        wrong_accepted(ratio, right) == 0.5
    )  # both right ones pass only from 0.8 on, with one of two wrong ones
    assert wrong_accepted(ratio, right, least_right=0.5) == 0


def test_measures_are_those_of_other_libraries_with_weights_as_repetitions() -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 5, 50) / 4
    predicted = rng.random(50).round(1)
    weight = rng.integers(0, 4, 50)
    right = rng.random(50) < predicted
    repeated = np.repeat(np.arange(50), weight)
    weights = weight.astype(float)
    assert auroc(dense_ranks(predicted), right, weights) == pytest.approx(
        roc_auc_score(right[repeated], predicted[repeated])
    )
    error = expected_calibration_error(label[repeated], predicted[repeated])
    assert expected_calibration_error(label, predicted, weights) == pytest.approx(error)
    once, likely = rng.integers(0, 2, 50).astype(float), predicted.clip(0.1, 0.9)
    assert log_loss(once, likely, weights) == pytest.approx(
        sklearn_log_loss(once, likely, sample_weight=weights)
    )


def test_what_cannot_be_had_is_nan() -> None:
    ranks = dense_ranks(np.array([0.1, 0.2]))
    for value in (
        auroc(ranks, np.array([True, True])),
        wrong_accepted(ranks, np.array([False, False])),
        Resampling.of(np.array([7, 7])).measured(lambda weight: 1.0, np.array([7, 7])).error,
        Resampling.of(np.array([7]))
        .measured(lambda weight: 1.0, np.array([], dtype=np.int64))
        .value,
    ):
        assert isnan(value)


def test_standard_error_knows_that_segments_of_a_question_stand_together() -> None:
    question = np.arange(100).repeat(25)
    together, apart = (question % 2).astype(float), (np.arange(2500) % 2).astype(float)
    resampling = Resampling.of(question, num_resamples=400)
    errors = [
        resampling.measured(
            lambda weight, values=values: float(weight @ values / weight.sum()),  # type: ignore[misc]
            question,
        )
        for values in (together, apart)
    ]
    assert errors[0].value == errors[1].value == 0.5
    assert errors[0].error == pytest.approx(0.05, rel=0.15)  # sqrt(0.25 / 100)
    assert errors[1].error < 0.005


def test_outcome_of_both_rules_by_hand() -> None:
    judged = drafts([2.0, 0.8, 0.1, 0.6, 0.5], [1, 1, 0, 0, nan])
    sample, threshold = outcome(judged, None, COST), outcome(judged, 0.6, COST)
    assert sample.right_accepted == pytest.approx(0.9)
    assert sample.wrong_accepted == pytest.approx(0.35)
    assert sample.acceptance == pytest.approx(3.0 / 5)
    assert sample.wrong_kept == pytest.approx(0.7 / 2.5)
    assert (threshold.right_accepted, threshold.wrong_accepted) == (1, 0.5)
    assert threshold.acceptance == 0.6 and threshold.wrong_kept == pytest.approx(1 / 3)
    # 10 tokens: 10 ms draft, 15 read, 5 judge, 40% of 100 ms rewritten, against 100 ms
    assert threshold.speed_up == pytest.approx(100 / (10 + 15 + 5 + 0.4 * 100))


def many(num_each: int = 200) -> Drafts:
    """Right and wrong segments, this many at each of three ratios."""
    ratios, right = [0.9, 0.62, 0.42, 0.32, 0.12, 0.01], [1, 1, 1, 0, 0, 0]
    return drafts(ratios * num_each, right * num_each)


def test_recommended_rule_is_the_fastest_within_the_limit() -> None:
    judged = many()
    recommended = recommend(judged, judged, COST, limit=0.4)
    assert recommended.basis == "limit met" and recommended.chosen
    assert recommended.chosen.rule == Acceptance("threshold", 0.15)
    strict = recommend(judged, judged, COST, limit=0.01)
    assert strict.basis == "limit met" and strict.chosen
    assert strict.chosen.rule == Acceptance("threshold", 0.35)


FEW = drafts([0.9, 0.1] * 20, [1, 0] * 20)
"""None of 20 wrong segments is accepted, but up to a sixth may be."""
ALIKE = drafts([3.0] * 400, [1, 0] * 200)
SLOW = replace(COST, draft_ms_per_token=7)


@pytest.mark.parametrize(
    ("judged", "cost", "limit", "basis"),
    [
        (FEW, COST, 0.2, "limit met"),
        (FEW, COST, 0.1, "limit missed"),
        (ALIKE, COST, 0.1, "limit missed"),
        (many(), SLOW, 0.4, "too slow"),
        (drafts([0.9] + [0.1] * 41, [1] + [0] * 41), COST, 0.9, "too few segments"),
        (drafts([0.9] * 41 + [0.1] * 19, [1] * 41 + [0] * 19), COST, 0.9, "too few segments"),
        (drafts([0.9] * 41, [1] * 41), COST, 0.9, "too few segments"),
    ],
)
def test_rule_is_recommended_only_within_the_limit(
    judged: Drafts, cost: Cost, limit: float, basis: str
) -> None:
    recommended = recommend(judged, many(), cost, limit)
    assert recommended.basis == basis
    assert (recommended.chosen is not None) == (basis == "limit met")


@pytest.mark.parametrize(
    ("semantic", "speed_up", "tokenizers", "rule"),
    [
        (
            Acceptance("threshold", 0.4),
            2.0,
            ("a.1", "a.2"),
            {
                "strategy": "semantic",
                "gamma": 2,
                "acceptance": {"rule": "threshold", "threshold": 0.4},
            },
        ),
        (None, 1.2, ("a.1", "b.1"), {"strategy": "likelihood", "gamma": 2}),
        (None, 0.7, ("a.1", "a.2"), {"strategy": "token-level"}),
        (None, 0.7, ("a.1", "b.1"), {"strategy": "target"}),
        (None, None, ("a.1", "a.2"), {"strategy": "token-level"}),
    ],
)
def test_nothing_lossy_is_the_default_that_is_slow(
    semantic: Acceptance | None,
    speed_up: float | None,
    tokenizers: tuple[str, str],
    rule: dict[str, object],
) -> None:
    assert default_rule(semantic, speed_up, 2, *tokenizers) == rule


def test_recommended_rule_has_not_seen_the_test_questions() -> None:
    labels = made_up()
    test = labels.split == "test"
    tokens = np.where(test, 1000, labels.num_tokens)
    for valid in (1 - labels.valid[test], np.nan):
        other = replace(
            labels,
            valid=labels.valid.copy(),
            target_probability=np.where(
                test, 1 - labels.target_probability, labels.target_probability
            ),
            num_tokens=tokens,
        )
        other.valid[test] = valid
        changed = replace(evidence(labels), labels=other)
        first = evaluate(evidence(labels), num_resamples=2)
        second = evaluate(changed, num_resamples=2)
        assert first.recommendation.chosen == second.recommendation.chosen
        assert first.criterion == second.criterion
        assert json.dumps(first.as_json()["variants"]) != json.dumps(second.as_json()["variants"])


def with_valid(valid: Callable[[Labels], object]) -> Labels:
    labels = made_up()
    return replace(
        labels, valid=np.broadcast_to(np.asarray(valid(labels), np.float32), len(labels))
    )


@pytest.mark.parametrize(
    ("labels", "noise", "criterion", "headline"),
    [
        (made_up(), 0.4, "truth", "Good enough to serve."),
        (
            made_up(),
            2.5,
            "truth",
            r"Not good enough to serve\. Missed: AUROC, wrong segments accepted",
        ),
        (with_valid(lambda _: nan), 0.4, "target says it", "Good enough to serve."),
        (
            with_valid(lambda one: np.where(one.split == "test", 1, one.valid)),
            0.4,
            "truth",
            "Not judged: the test questions have .* and 0 wrong",
        ),
    ],
    ids=["good", "bad", "without truth", "without a wrong segment"],
)
def test_verdict_on_probes(labels: Labels, noise: float, criterion: str, headline: str) -> None:
    report = evaluate(evidence(labels, noise), num_resamples=5)
    verdict = report.verdicts[0]
    assert report.criterion == verdict.criterion == criterion
    assert re.search(headline, verdict.headline)
    assert verdict.standing == ("good" if headline.startswith("Good") else "bad")
    assert [verdict.criterion for verdict in report.verdicts[1:]] == (
        ["target says it"] if criterion == "truth" else []
    )
    has_truth = criterion == "truth"
    assert has_truth or (
        isnan(report.served.verifications["truth"].auroc.value) and report.counts.target_wrong == 0
    )


def shuffled_truth(labels: Labels) -> Labels:
    """Return `labels` whose truth has nothing to do with what the target says."""
    return replace(labels, valid=np.random.default_rng(3).permutation(labels.valid))


@pytest.mark.parametrize(
    ("labels", "standings"),
    [
        (made_up(), ["good", "good"]),
        (shuffled_truth(made_up()), ["bad", "good"]),
        (with_valid(lambda _: nan), ["good"]),
    ],
    ids=["agreeing", "disagreeing", "without truth"],
)
def test_each_criterion_has_its_own_verdict(labels: Labels, standings: list[str]) -> None:
    report = evaluate(evidence(labels, noise=0.1), num_resamples=5)
    assert [verdict.standing for verdict in report.verdicts] == standings
    for verdict in report.verdicts:
        found = report.served.verifications[verdict.criterion]
        auroc, wrong = verdict.claims[:2]
        assert (
            f"{found.auroc.value:.3f} ±" in auroc.text and f"at least {LEAST_AUROC}" in auroc.text
        )
        assert auroc.holds is (found.auroc.value >= LEAST_AUROC)
        assert f"{found.wrong_accepted.value:.1%} ±" in wrong.text
        assert wrong.holds is (found.wrong_accepted.value <= MOST_WRONG_ACCEPTED)
        assert verdict.headline in verdict.text and all(
            claim.text[1:] in verdict.text for claim in verdict.claims
        )


def test_counts_and_curves() -> None:
    report = evaluate(evidence(made_up(), noise=0.4), num_resamples=50)
    assert [one.name for one in report.variants] == ["served", "paper recipe", "surprisal alone"]
    assert report.counts.contexts == {"train": 80, "validation": 80, "calibration": 80, "test": 240}
    verification = report.served.verifications["truth"]
    assert verification.num_right + verification.num_wrong + report.counts.unknown == 2400
    assert report.counts.unknown > 0
    assert [point.num_contexts for point in report.learning_curve] == [20, 80]
    cells = {(cell.trained_on, cell.tested_on) for cell in report.domains}
    assert cells == {
        (one, other) for one in ("algebra", "geometry") for other in ("algebra", "geometry")
    }
    accepted = [one.acceptance for one in verification.thresholds]
    assert accepted == sorted(accepted, reverse=True) and accepted[0] == 1
    curve = card_curve(report.recommendation.curve)
    assert len(curve) == 21 and curve[0]["threshold"] == 0.05 and curve[-1]["threshold"] is None
    assert len(json.dumps(curve)) < 3000


def test_probes_are_doubtful_on_few_questions() -> None:
    """They have one domain, and no calibration split."""
    labels = made_up(num_questions=48, domains=["all"])
    labels.split[labels.split == "calibration"] = "validation"
    report = evaluate(evidence(labels, noise=0.4), num_resamples=5)
    assert "calibration" not in report.counts.contexts and len(report.domains) == 1
    for verdict in report.verdicts:
        assert any("Only 24 test questions" in remark for remark in verdict.remarks)
        assert verdict.headline == "Every bar is cleared, on too few segments to rely on."
        assert verdict.standing == "doubtful"


@pytest.mark.parametrize(("num_questions", "is_uncertain"), [(24, True), (240, False)])
def test_share_on_either_side_of_its_bar_is_uncertain(
    num_questions: int, is_uncertain: bool
) -> None:
    labels = made_up(num_questions)
    verdict = evaluate(evidence(labels, noise=0.9), num_resamples=50).verdicts[0]
    text = "too uncertain to serve on"
    assert any(text in remark for remark in verdict.remarks) is is_uncertain


def test_segments_the_probes_were_not_asked_about_are_refused() -> None:
    labels = made_up(num_questions=12)
    served = guessed(labels, "served", 1.0)
    hole = Predicted("served", served.target_probability.copy(), served.draft_probability)
    hole.target_probability[np.flatnonzero(labels.split == "test")[0]] = np.nan
    with pytest.raises(InvalidRequest, match="served: nothing predicted for 1 of"):
        evaluate(replace(evidence(labels), served=hole), num_resamples=2)
