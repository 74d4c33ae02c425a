"""`semspec train calibrate --from-prompts` on the bundled pair, and its thresholds on made-up contexts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from semspec.decoding.likelihood.calibration import load_calibration
from semspec.errors import InvalidRequest
from semspec.release import load_release
from semspec.stack import BUNDLED_PAIR, StackConfig
from semspec.training.cli import main
from semspec.training.evaluation.quantiles import (
    Basis,
    OwnContexts,
    QuantileReport,
    calibrated_without_labels,
)
from semspec.types import SURPRISAL_FEATURES, Segmentation, Writer
from semspec_demo.probe_data import questions
from tests.helpers.fakes import FakeModel
from tests.helpers.processes import GENEROUS_S
from tests.training import support

DRAFT, TARGET = (FakeModel(writer).model_info for writer in (Writer.DRAFT, Writer.TARGET))
BASIS = Basis(DRAFT, TARGET, Segmentation.PARAGRAPH, 0.6, 0.95, "digest")


def contexts(
    num: int = 400, shift: float = 0.0, draft_ms: float = 20.0, target_ms: float = 100.0
) -> OwnContexts:
    """Ten contexts an answer; the statistics of drafted segments are lower by `shift`."""
    rng = np.random.default_rng(0)
    own, drafted = rng.normal(size=(2, num, len(SURPRISAL_FEATURES)))
    tokens = np.full(num, 20)
    return OwnContexts(
        np.arange(num) // 10,
        own,
        tokens,
        np.ones(num, dtype=bool),
        drafted - shift,
        tokens,
        np.zeros(num, dtype=bool),
        np.full(num, draft_ms * 20),
        np.full(num, 100.0),
        target_ms,
    )


def calibrate(of: OwnContexts, quantile: float = 0.1) -> QuantileReport:
    return calibrated_without_labels(of, quantile, BASIS)


@pytest.mark.parametrize("quantile", [0.02, 0.1, 0.3])
def test_threshold_leaves_the_stated_share_of_own_segments_below(quantile: float) -> None:
    some = contexts()
    found = calibrate(some, quantile).calibration
    own = np.array([found.probability(row) for row in some.own_surprisal])
    assert (own < found.threshold).mean() == pytest.approx(quantile, abs=0.005)


def test_acceptance_is_that_of_the_served_rule_and_falls_with_the_quantile() -> None:
    some = contexts(shift=0.5)
    report = calibrate(some)
    drafted = np.array([report.calibration.probability(row) for row in some.surprisal])
    for point in report.curve:
        assert point.acceptance.value == (drafted >= point.threshold).mean()
    shares = [point.acceptance.value for point in report.curve]
    assert shares == sorted(shares, reverse=True) and shares[0] > shares[-1]
    assert report.chosen.acceptance.error > 0


def test_speed_counts_drafts_scores_and_rewritten_segments() -> None:
    report = calibrate(contexts())
    accepted = report.chosen.acceptance.value
    # of 2,000 ms that the target takes alone: drafts 400, scores 100, and what is rewritten
    assert report.chosen.speed_up.value == pytest.approx(
        2000 / (500 + (1 - accepted) * 2000), rel=1e-6
    )


def test_repeats_are_never_accepted() -> None:
    some = contexts()
    some.repeats[:200] = True
    assert calibrate(some, 0.02).chosen.acceptance.value < 0.5


def test_cut_segments_are_not_counted_as_own() -> None:
    some = contexts()
    some.is_whole[:100] = False
    own = calibrate(some).calibration.own
    assert own is not None and (own.num_segments, own.num_drafts) == (300, 400)


def test_too_few_segments_are_refused_in_one_line() -> None:
    with pytest.raises(InvalidRequest, match=r"19 whole segments .* at least 20 are needed") as one:
        calibrate(contexts(19))
    assert "\n" not in str(one.value)
    assert {point.quantile for point in calibrate(contexts(40)).curve} == {0.05, 0.1, 0.2, 0.3, 0.5}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty questions of the demo, every second one named `problem`."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    found = [row["question"] for row in islice(questions(split="probe"), 20)]
    rows = [{"problem" if i % 2 else "question": text} for i, text in enumerate(found)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arguments(prompts: Path, folder: Path, *more: str) -> list[str]:
    models = [f"--{role}-model={BUNDLED_PAIR / role}" for role in ("draft", "target")]
    given = [f"--from-prompts={prompts}", f"--output={folder / 'out'}", f"--work={folder / 'work'}"]
    return ["calibrate", *given, *models, "--num-prompts=6", "--max-tokens=240", *more]


def run(words: Sequence[str]) -> object:
    """The exit code."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code


@pytest.fixture(scope="module")
def release(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `work` and `out` after the command."""
    folder = tmp_path_factory.mktemp("release")
    assert run(arguments(prompts, folder)) == 0
    return folder


def test_command_writes_a_release_with_its_basis(release: Path) -> None:
    found = load_calibration(release / "out" / "likelihood.json")
    made = load_release(release / "out")
    assert found.own is not None and (found.num_right, found.max_wrong_accepted) == (None, None)
    assert (found.num_questions, found.own.quantile, found.own.temperature) == (6, 0.1, 0.6)
    assert found.own.num_segments >= 20 and found.own.score_ms > 0
    assert len(found.own.quantiles) == len(found.curve)
    bundled = load_release(BUNDLED_PAIR / "probes")
    for role in ("draft", "target"):
        assert getattr(made, role).fingerprint == getattr(bundled, role).fingerprint
        assert made.model_location(role) == str((BUNDLED_PAIR / role).resolve())
    assert made.likelihood == found.digest
    assert made.rule == {
        "strategy": "token-level"
    }  # exact, since the loss of likelihood is not known
    StackConfig.of_release(release / "out")


def test_second_run_reads(prompts: Path, release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = (release / "work" / "answers.jsonl").read_bytes()
    assert run(arguments(prompts, release, "--quantile=0.3")) == 0
    assert (release / "work" / "answers.jsonl").read_bytes() == answers
    shown = capsys.readouterr().out
    assert "70.0%" in shown and "chosen" in shown and "serve --pair" in shown
    assert "default of the release: token-level, which is exact" in shown


def test_other_setting(prompts: Path, release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(prompts, release, "--temperature=0")) == 2
    [line] = support.complaints(capsys)
    assert "sampling.temperature" in line and "--work" in line


def test_answers_of_an_earlier_format_are_refused(
    prompts: Path, release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The earlier format had a line for each segment and one for the comparison of a whole answer."""
    work = tmp_path / "work"
    work.mkdir()
    recipe = json.loads((release / "work" / "recipe.json").read_text())
    recipe.pop("answers_format", None)
    (work / "recipe.json").write_text(json.dumps(recipe))
    with (work / "answers.jsonl").open("w") as file:
        for line in (release / "work" / "answers.jsonl").read_text().splitlines():
            row = {name: json.loads(line)[name] for name in ("prompt", "contexts")}
            file.write(json.dumps(row) + "\n")
    before = (work / "answers.jsonl").read_bytes()
    assert run(arguments(prompts, tmp_path)) == 2
    [line] = support.complaints(capsys)
    assert "answers_format: None there, 2 now" in line and "give another --work" in line
    assert (work / "answers.jsonl").read_bytes() == before


def test_killed_run_loses_no_finished_answer(prompts: Path, release: Path, tmp_path: Path) -> None:
    path = tmp_path / "work" / "answers.jsonl"
    command = [sys.executable, "-m", "semspec.cli", "train", *arguments(prompts, tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment) as killed:
        deadline = monotonic() + GENEROUS_S
        while not (path.exists() and b"contexts" in path.read_bytes()):
            assert killed.poll() is None and monotonic() < deadline
            sleep(0.05)
        killed.send_signal(signal.SIGKILL)
    before = path.read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    path.write_bytes(whole + b'{"prompt": "cut')
    assert run(arguments(prompts, tmp_path)) == 0
    after = path.read_bytes()
    assert after.startswith(whole) and b'"cut' not in after
    kept = [json.loads(line) for line in after.splitlines()]
    assert sum("contexts" in row for row in kept) == 6


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--pair=nothing"], "give a named pair or two models"),
        (["--config=pair.yaml"], "excludes --config"),
        (["--from-prompts=nowhere.jsonl"], "cannot read nowhere.jsonl"),
        ([f"--output={BUNDLED_PAIR / 'probes'}"], "contains probes"),
    ],
)
def test_wrong_options_end_in_one_line(
    prompts: Path,
    tmp_path: Path,
    more: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*arguments(prompts, tmp_path), *more]) == 2
    [line] = support.complaints(capsys)
    assert complaint in line
