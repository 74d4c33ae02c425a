"""The stages between samples and probes, on data small enough to check by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from demo.problems import make_problem
from demo.train_probes import ParserEquivalence
from training.cluster import cluster_segments
from training.contexts import ProbeContext
from training.evaluate import expected_calibration_error, verification
from training.files import read_lines, write_lines
from training.label import label

CONTEXT = ProbeContext(0, 4, (1, 2), "")


class ByFirstLetter:
    def clusters(self, context: ProbeContext, segments: Sequence[str]) -> list[int]:
        return [ord(segment[0]) for segment in segments]

    def is_valid(self, context: ProbeContext, segment: str) -> bool | None:
        return None if segment == "?" else segment.startswith("a")


def rows(target: str, draft: str) -> list[dict[str, object]]:
    written = [("target", text) for text in target.split()] + [("draft", text) for text in draft.split()]
    return [{"context": 0, "writer": writer, "text": text} for writer, text in written]


def test_labels_are_shares_of_each_models_own_samples(tmp_path: Path) -> None:
    data = rows("a1 a2 a3 b1", "a4 c1 c2 ?")
    cluster_segments(tmp_path / "clusters.jsonl", [CONTEXT], data, ByFirstLetter())
    labels = label(data, list(read_lines(tmp_path / "clusters.jsonl")), {0: 4})
    np.testing.assert_allclose(labels.target_probability, [0.75, 0.75, 0.75, 0.25, 0.75, 0, 0, 0])
    np.testing.assert_allclose(labels.draft_probability, [0.25, 0.25, 0.25, 0, 0.25, 0.5, 0.5, 0.25])
    assert labels.by_draft.tolist() == [False] * 4 + [True] * 4
    assert labels.valid[:4].tolist() == [1, 1, 1, 0] and np.isnan(labels.valid[7])


def test_parser_puts_paraphrases_together_and_different_counts_apart() -> None:
    problem = make_problem(4)
    first = f"First, the {problem.item} start at {problem.start}.\n\n"
    paraphrase = f"Initially, the {problem.item} stand at {problem.start} in hand.\n\n"
    wrong = f"First, the {problem.item} start at {problem.start + 1}.\n\n"
    equivalence = ParserEquivalence()
    assert equivalence.clusters(CONTEXT, [first, paraphrase, wrong, "x", "y"]) == [0, 0, 1, 2, 3]
    assert [equivalence.is_valid(CONTEXT, text) for text in (first, wrong)] == [True, False]


def test_finished_stage_is_not_done_again(tmp_path: Path) -> None:
    write_lines(tmp_path / "clusters.jsonl", [{"cluster": 9, "valid": None}])
    cluster_segments(tmp_path / "clusters.jsonl", [CONTEXT], rows("a1", "b1"), ByFirstLetter())
    assert list(read_lines(tmp_path / "clusters.jsonl")) == [{"cluster": 9, "valid": None}]


def test_broken_off_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_lines(path, [{"a": 1}])
    with pytest.raises(ZeroDivisionError):
        write_lines(path, ({"a": 1 // n} for n in (1, 0)))
    assert list(read_lines(path)) == [{"a": 1}]


def test_verification_counts_right_and_wrong_by_both_rules() -> None:
    q = np.array([0.5, 0.5, 0.5, 0.5, 0.5], dtype=np.float32)
    p = np.array([0.5, 0.4, 0.05, 0.3, 0.9], dtype=np.float32)
    metrics = verification(q, p, np.array([1, 1, 0, 0, np.nan], dtype=np.float32))
    assert metrics["auroc"] == 1.0 and metrics["num_right"] == 2 and metrics["num_wrong"] == 2
    assert metrics["sample"] == {"right_accepted": 0.9, "wrong_accepted": pytest.approx(0.35)}
    assert metrics["threshold"]["0.5"] == {"right_accepted": 1.0, "wrong_accepted": 0.5}  # type: ignore[index]


def test_calibration_error_of_a_constant_bias() -> None:
    predicted = np.linspace(0, 0.89, 1000).astype(np.float32)
    assert expected_calibration_error(predicted + 0.1, predicted) == pytest.approx(0.1, abs=1e-3)
