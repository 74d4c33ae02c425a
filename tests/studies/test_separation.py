"""What tells right from wrong: tables of made-up scores with known answers, and of a finished run."""

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch

from semspec.errors import InvalidRequest
from semspec.reporting.files import Row
from semspec.reporting.progress import Reporter
from semspec.training.config import load_config
from studies.natural.separation import (
    PROBES,
    SEEDS,
    Data,
    Truth,
    cross_fitted,
    kept,
    read_kept,
    table,
)
from studies.natural.sequence import fit_sequence, predict_sequence

NUMBER = re.compile(r"[+-]?\d\.\d{3}")


def cells(lines: Iterator[str]) -> dict[str, list[list[float]]]:
    """Numbers of each cell of a table: value, and its interval's ends."""
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    return {row[0]: [[float(n) for n in NUMBER.findall(cell)] for cell in row[2:]] for row in rows}


def made_up(
    num_questions: int, per_question: int, distance: float, noise: float
) -> tuple[Truth, np.ndarray, dict[tuple[str, int | None], np.ndarray]]:
    """Scores of normal distributions, `distance` apart, with a part that segments of a question share."""
    rng = np.random.default_rng(0)
    question = np.repeat(np.arange(num_questions), per_question)
    right = rng.random(len(question)) < 0.6
    shared = np.repeat(rng.normal(size=num_questions), per_question)
    own = np.sqrt(1 - noise**2) * rng.normal(size=len(question)) + noise * shared
    scores: dict[tuple[str, int | None], np.ndarray] = {
        ("mean surprisal", None): rng.normal(size=len(question)),
        ("likelihood", None): rng.normal(size=len(question)),
        ("states with surprisal", 0): own + distance * right,
    }
    return Truth("made up", np.arange(len(question)), right), question, scores


def test_table_has_the_auroc_and_log_loss_of_the_distributions() -> None:
    truth, question, scores = made_up(500, 4, distance=1.0, noise=0)
    found = cells(table(truth, scores, question))
    [value, low, high], difference, [loss, *_], [accepted, *_] = found["states with surprisal"]
    expected = NormalDist().cdf(1 / np.sqrt(2))
    assert low < expected < high and value == pytest.approx(expected, abs=0.03)
    assert difference[0] > 0.2 and difference[1] > 0
    log_odds = scores["states with surprisal", 0] - 0.5 + np.log(0.6 / 0.4)
    best = np.mean(np.log1p(np.exp(np.where(truth.right, -log_odds, log_odds))))
    assert loss == pytest.approx(best, abs=0.01)
    normal = NormalDist()
    assert accepted == pytest.approx(1 - normal.cdf(normal.inv_cdf(0.05) + 1), abs=0.04)
    chance = found["likelihood"]
    assert chance[0][1] < 0.5 < chance[0][2] and chance[1] == []
    share = truth.right.mean()
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert chance[2][0] == pytest.approx(entropy, abs=0.01)


def test_interval_is_over_questions_and_few_contexts_are_enough() -> None:
    truth, question, scores = made_up(30, 1, distance=1.0, noise=0)
    alone = cells(table(truth, scores, question))["states with surprisal"][0]
    copied = {key: np.repeat(score, 10) for key, score in scores.items()}
    many = Truth("made up", np.arange(300), np.repeat(truth.right, 10))
    assert cells(table(many, copied, np.repeat(question, 10)))["states with surprisal"][0] == alone


def test_kept_scores_give_the_same_tables() -> None:
    truth, question, scores = made_up(40, 4, distance=1.0, noise=0)
    some = Truth("some", truth.rows[5:100], truth.right[5:100])
    truths, read_scores, read_question = read_kept(list(kept([truth, some], scores, question)))
    for own, read in zip((truth, some), truths, strict=True):
        expected = list(table(own, scores, question))
        assert list(table(read, read_scores, read_question)) == expected


@pytest.mark.parametrize(("num_right", "num_wrong"), [(9, 200), (200, 9), (0, 0)])
def test_too_few_segments_of_a_class_are_refused_in_one_line(
    num_right: int, num_wrong: int
) -> None:
    right = np.array([True] * num_right + [False] * num_wrong, dtype=bool)
    rows = np.arange(len(right))
    said = f"rollouts: {num_right} right and {num_wrong} wrong segments, at least 10 of each"
    with pytest.raises(InvalidRequest, match=said) as error:
        list(table(Truth("rollouts", rows, right), {}, rows))
    assert "\n" not in str(error.value)


def test_probability_of_a_question_does_not_see_its_own_answers() -> None:
    score, question = np.random.default_rng(0).normal(size=60), np.repeat(np.arange(30), 2)
    right = np.random.default_rng(1).random(60) < 0.5
    before = cross_fitted(score, right, question)
    right[question == 3] = ~right[question == 3]
    assert (cross_fitted(score, right, question) == before)[question == 3].all()


def test_sequence_model_learns_an_order_that_means_do_not_show() -> None:
    generator = torch.Generator().manual_seed(0)
    segments, targets = [], []
    for number in range(400):
        values = torch.randn(int(torch.randint(6, 15, (), generator=generator)), 4) * 0.1
        values[1 if number % 2 else -2, 0] = -5.0
        segments.append(values)
        targets.append(float(number % 2))
    train, validation, test = np.split(np.arange(400), [250, 300])
    net = fit_sequence(segments, torch.tensor(targets), train, validation, seed=0)
    predicted = predict_sequence(net, segments, test)
    assert np.mean((predicted > 0.5) == (test % 2 == 1)) > 0.95
    again = fit_sequence(segments, torch.tensor(targets), train, validation, seed=0)
    assert (predict_sequence(again, segments, test) == predicted).all()


@pytest.mark.slow
def test_finished_run_has_every_score_and_rollouts_find_their_segments(run: Path) -> None:
    data = Data(load_config(run / "pair.yaml"), run / "work")
    scores = data.scores(Reporter(quiet=True))
    seeded = [
        *(f"{name}{suffix}" for name in PROBES.values() for suffix in ("", ", p/q")),
        "sequence model",
    ]
    assert {name for name, seed in scores if seed == 0} == {*seeded}
    assert len(scores) == 2 + len(SEEDS) * len(seeded)
    assert all(np.isfinite(score[data.test]).all() for score in scores.values())
    texts = {
        index: data.rows[shard][row]["text"]
        for index, (shard, row) in enumerate(
            zip(data.labels.shard.tolist(), data.labels.row.tolist(), strict=True)
        )
    }
    truth = data.by_rollouts([*records(data)])
    assert len(truth.rows) and data.test[truth.rows].all()
    assert [len(texts[row]) % 2 == 0 for row in truth.rows.tolist()] == truth.right.tolist()
    assert cells(table(data.by_samples(), scores, data.labels.question)).keys() >= {*seeded}


def records(data: Data) -> Iterator[Row]:
    """Rollouts of the second draft of each context, right if its text has an even length; every context twice, once
    with a wrong segment of the target, which does not count."""
    for rows in data.rows.values():
        drafted: dict[str, list[Row]] = {}
        for row in rows:
            if row["writer"] == "draft":
                drafted.setdefault(row["context"], []).append(row)
        for context, own in drafted.items():
            is_even = len(own[1]["text"]) % 2 == 0
            draft = {"sample": 1, "right": [is_even] * 3 + [not is_even]}
            yield {"context": context, "draft": draft, "target": {"right": [True] * 4}}
            wrong = {"sample": 1, "right": [not is_even] * 4}
            yield {"context": context, "draft": wrong, "target": {"right": [True, False] * 2}}
