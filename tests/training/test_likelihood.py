"""Calibrates `likelihood` on pilots that are made up, and on a tiny pair by the command."""

import json
from pathlib import Path

import numpy as np
import pytest

from semspec.decoding.likelihood.calibration import load_calibration
from semspec.errors import InvalidRequest
from semspec.release import load_release
from semspec.training.config import load_config
from semspec.training.evaluation.acceptance import Cost
from semspec.training.evaluation.likelihood import LikelihoodReport, Pilot, calibrated, predicted
from semspec.training.pipeline import Pipeline
from semspec.types import SURPRISAL_FEATURES, Segmentation, Writer
from tests.helpers.fakes import FakeModel
from tests.training import support
from tests.training.judged import made_up

COST = Cost(draft_ms_per_token=1.0, target_ms_per_token=10.0, read_ms=20.0, judge_ms=0.0)
MODELS = {writer.value: FakeModel(writer).model_info for writer in (Writer.DRAFT, Writer.TARGET)}


def pilot(
    num_questions: int = 60, missed: float = 0.0, wrong: float = 0.2, seed: int = 0
) -> tuple[Pilot, np.ndarray]:
    """Forty segments a question, half of the draft's; which of them are truly wrong.

    The statistics of wrong segments are lower, by no more than what overlaps. The samples miss a share `missed` of what
    is right, whoever wrote it.
    """
    rng = np.random.default_rng(seed)
    question = np.arange(num_questions).repeat(40)
    by_draft = np.arange(len(question)) % 2 == 1
    is_wrong = by_draft & (rng.random(len(question)) < wrong)
    said = ~is_wrong & (rng.random(len(question)) >= missed)
    surprisal = rng.normal(size=(len(question), len(SURPRISAL_FEATURES)))
    surprisal[:, SURPRISAL_FEATURES.index("min_margin")] += np.where(is_wrong, -2.5, 0.0)
    tokens = np.full(len(question), 20)
    return Pilot(surprisal, by_draft, said, question, tokens), is_wrong


def calibrate(of: Pilot, limit: float = 0.1) -> LikelihoodReport:
    return calibrated(of, MODELS, Segmentation.PARAGRAPH, COST, limit, "digest")


@pytest.mark.parametrize("missed", [0.0, 0.08])
@pytest.mark.parametrize("limit", [0.05, 0.2])
def test_threshold_accepts_at_most_stated_share_of_wrong(missed: float, limit: float) -> None:
    """By the upper end of the interval, which is wider where the samples miss what is right."""
    found = calibrate(pilot(200, missed)[0], limit).calibration
    other, is_wrong = pilot(200, missed, seed=1)
    probability = np.array([found.probability(row) for row in other.surprisal])
    accepted = probability >= found.threshold
    assert limit / 2 - 2 * missed < accepted[is_wrong].mean() <= limit
    assert missed or accepted[other.by_draft & ~is_wrong].mean() > (0.6 if limit == 0.05 else 0.9)
    assert found.num_wrong == pytest.approx(0.2 * 200 * 20, rel=0.1)


def test_curve_is_nested_and_its_errors_shrink_with_questions() -> None:
    few, many = calibrate(pilot(30)[0]), calibrate(pilot(120)[0])
    for report in (few, many):
        for name in ("threshold", "right_accepted", "wrong_accepted", "acceptance"):
            values = [getattr(point, name) for point in report.curve]
            values = values if name == "threshold" else [one.value for one in values]
            assert values == sorted(values, reverse=name != "threshold")
        assert report.chosen in report.curve
        assert report.calibration.threshold == report.chosen.threshold
        assert all(weight >= 0 for weight in report.calibration.weights)
    assert 0 < many.chosen.wrong_accepted.error < few.chosen.wrong_accepted.error
    assert many.auroc.value > 0.9


@pytest.mark.parametrize(
    ("small", "reason"),
    [
        (pilot(19)[0], "the pilot has 19 questions with labels, at least 20"),
        (pilot(wrong=0.0)[0], "the pilot has 0 wrong drafted segments, at least 20"),
        (pilot(missed=0.1, wrong=0.0)[0], "wrong drafted segments, at least 20"),
        (pilot(wrong=1.0)[0], "the pilot has 0 right drafted segments, at least 20"),
    ],
)
def test_small_pilot_and_one_class_are_refused(small: Pilot, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        calibrate(small)
    assert "likelihood.num_questions" in caught.value.remedy and "\n" not in str(caught.value)


def test_no_threshold_within_the_limit_is_refused_in_one_line() -> None:
    """None of some 30 wrong segments is accepted by the highest threshold, but a tenth may be."""
    few = pilot(30, wrong=0.05)[0]
    assert 20 <= few.num_wrong < 36
    with pytest.raises(InvalidRequest, match="no threshold accepts at most 10%") as caught:
        calibrate(few)
    assert "\n" not in str(caught.value)
    assert calibrate(few, 0.3).chosen.wrong_accepted.value < 0.3


def test_pilot_leaves_the_reports_questions_out() -> None:
    labels = made_up()
    surprisal = np.zeros((len(labels), len(SURPRISAL_FEATURES)))
    own = Pilot.of(labels, surprisal, 30)
    splits = {
        question: labels.split[labels.question == question][0]
        for question in np.unique(own.question)
    }
    assert len(splits) == 30 and "test" not in splits.values()
    drafted = np.isin(labels.question, own.question) & labels.by_draft
    assert own.num_right == int((labels.target_probability[drafted] > 0).sum())


def test_prediction_for_the_probes_report_is_the_served_probability() -> None:
    labels = made_up(num_questions=12)
    surprisal = np.random.default_rng(0).normal(size=(len(labels), len(SURPRISAL_FEATURES)))
    found = calibrate(pilot()[0]).calibration
    told = predicted(labels, surprisal, found)
    assert told.ratio[:50] == pytest.approx(
        [found.probability(row) for row in surprisal[:50]], abs=1e-6
    )


@pytest.fixture(scope="module")
def tiny(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pair.yaml`, and `work` and `out` after `semspec train calibrate`."""
    folder = tmp_path_factory.mktemp("tiny")
    assert train(folder, models, limit=32) == 0
    return folder


def train(folder: Path, models: tuple[Path, Path], limit: int) -> object:
    """The exit code."""
    questions = {
        "python": "tests.training.support:solved",
        "id": "id",
        "trace": "solution",
        "limit": limit,
    }
    equivalence = {"kind": "python", "object": "tests.training.support:ByAlphabet"}
    config = support.config(
        *models,
        folder / "out",
        questions=[questions],
        equivalence=equivalence,
        likelihood={"num_questions": 20},
    )
    return support.semspec_train("calibrate", config, folder)


def test_command_writes_a_calibration_that_serves_and_a_page(tiny: Path) -> None:
    found = load_calibration(tiny / "out" / "likelihood.json")
    assert found.num_questions == 20 and found.draft.fingerprint != found.target.fingerprint
    release = load_release(tiny / "out")
    assert release.target_probe == ""
    assert release.likelihood == found.digest
    assert release.draft.fingerprint == found.draft.fingerprint
    report = json.loads((tiny / "work" / "likelihood" / "report.json").read_text())
    is_fast = report["chosen"]["speed_up"] >= 1.1
    assert release.rule == (
        {"strategy": "likelihood", "gamma": 1} if is_fast else {"strategy": "target"}
    )
    assert report["chosen"]["threshold"] == found.threshold
    assert len(report["curve"]) == len(found.curve)
    page = (tiny / "work" / "likelihood" / "report.html").read_text()
    assert f"{found.threshold:.3f}" in page and "±" in page


def test_later_run_keeps_the_pilots_shards(tiny: Path) -> None:
    pipeline = Pipeline(load_config(tiny / "pair.yaml"), tiny / "work")
    pilot = pipeline.questions.pilot(20)
    assert pipeline.contexts.folder.numbers() == pilot and len(pilot) < len(pipeline.questions)
    before = [pipeline.contexts.folder.file(number, ".json").stat().st_mtime_ns for number in pilot]
    pipeline.make("contexts")
    assert pipeline.contexts.folder.numbers() == list(range(len(pipeline.questions)))
    assert [
        pipeline.contexts.folder.file(number, ".json").stat().st_mtime_ns for number in pilot
    ] == before


def test_small_pilot_ends_in_one_line_and_writes_nothing(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = train(tmp_path, models, limit=8)
    [line] = support.complaints(capsys)
    assert code == 2 and "questions with labels, at least 20" in line
    assert not (tmp_path / "out").exists() and not (tmp_path / "work" / "likelihood").exists()
