"""Scores of drafts after beginnings of answers, from made-up states; pairs for a reader from made-up segments."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from sklearn.model_selection import GroupKFold

from semspec.pairs import named_pair
from semspec.types import SURPRISAL_FEATURES
from studies.natural.agreement import draw, report
from studies.natural.beginnings import (
    NUM_DRAFTS,
    NUM_FOLDS,
    NUM_TARGET,
    STATES,
    scores,
    table,
)
from studies.natural.separation import Scores, Truth, read_kept

NUM_QUESTIONS, SHAPE = 60, (3, 16)


def sample(writer: str, result: int | None, **more: Any) -> dict[str, Any]:
    text = f"{writer} says {result}"
    own = {"writer": writer, "text": text, "end": "boundary", "result": result}
    return own | more


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A run whose states tell right from wrong by their first number, apart from a number that belongs to a question
    and from noise; a draft of each context is cut, and has no result."""
    rng = np.random.default_rng(0)
    (tmp_path / STATES).mkdir()
    records = []
    for number in range(1, NUM_QUESTIONS + 1):
        results: list[int | None] = [*rng.integers(0, 2, NUM_DRAFTS - 1).tolist(), None]
        states = rng.normal(size=(NUM_DRAFTS, *SHAPE))
        states[:, :, 0] += np.array([3.0 * (own == 0) for own in results])[:, None]
        states[:, :, 1] = 10 * rng.normal()
        save_file({STATES: states.astype(np.float16)}, tmp_path / STATES / f"{number}.safetensors")
        drafts = [
            sample("draft", own, surprisal=rng.normal(-1, 0.1, len(SURPRISAL_FEATURES)).tolist())
            for own in results
        ]
        target = [sample("target", 0) for _ in range(NUM_TARGET)]
        records.append(
            {"question": str(number), "depth": 0, "reasoning": "", "samples": [*target, *drafts]}
        )
    return tmp_path, records


def test_probes_tell_right_from_wrong_on_questions_that_they_have_not_seen(
    run: tuple[Path, list[dict[str, Any]]],
) -> None:
    pair = named_pair("qwen2.5-coder")
    assert pair and pair.release
    [truth], columns, questions = read_kept(list(scores(*run, pair.release)))
    assert len(truth.rows) == NUM_QUESTIONS * (NUM_DRAFTS - 1) == len(questions)
    by_states = columns["states of all layers", 0]
    assert np.mean((by_states > 0) == truth.right) > 0.95
    by_statistics = columns["statistics, fitted here", 0]
    assert np.mean((by_statistics > 0) == truth.right) < 0.65


def test_only_drafts_of_the_same_fold_are_compared() -> None:
    """A score that is perfect within each fold stays perfect when each fold has another scale and offset."""
    question = np.repeat(np.arange(NUM_QUESTIONS), 4)
    right = np.tile([True, True, False, False], NUM_QUESTIONS)
    folds = GroupKFold(NUM_FOLDS, shuffle=True, random_state=0).split(question, right, question)
    score = np.empty(len(right))
    for number, (_, held) in enumerate(folds):
        score[held] = 10.0**-number * (right[held] - 5.0 * number)
    chance = np.random.default_rng(0).normal(size=len(right))
    columns: Scores = {("likelihood", None): chance, ("moved", 0): score}
    rows = [*table(Truth("said", np.arange(len(right)), right), columns, question)]
    [moved] = [line for line in rows if line.startswith("| moved | 0 |")]
    assert moved.startswith("| moved | 0 | 1.000 (1.000 to 1.000) |")
    by_chance = [line for line in rows if line.startswith("| likelihood |")]
    assert len(by_chance) == 3 and all("| 0.4" in line or "| 0.5" in line for line in by_chance)


def test_pairs_differ_and_half_have_equal_results(run: tuple[Path, list[dict[str, Any]]]) -> None:
    pairs = list(draw(run[1]))
    assert len({pair["context"] for pair in pairs}) > 40
    assert all(pair["first"] != pair["second"] for pair in pairs)
    assert 0.3 < np.mean([pair["result"] for pair in pairs]) < 0.7


def test_agreement_is_kappa() -> None:
    """Of 40 pairs, the reader and the results agree on 30: kappa .5; the model says what the reader says."""
    pairs = [
        {"context": f"{same}{result}{number}", "same": same, "result": result}
        | {"entails": [0.9 if same else 0.1, 0.9]}
        for same, result, count in (
            (True, True, 15),
            (False, False, 15),
            (True, False, 5),
            (False, True, 5),
        )
        for number in range(count)
    ]
    lines = list(report([*pairs, {"same": None, "result": True, "entails": [1.0, 1.0]}]))
    assert "41 pairs" in lines[0] and "compared 40" in lines[0]
    rows = {line.split(" | ")[0].strip("| "): line for line in lines if line.startswith("| ")}
    assert "| 15 | 5 | 5 | 15 | 0.50 " in rows["reader, result"]
    assert "1.00 (1.00 to 1.00)" in rows["reader, model"]
