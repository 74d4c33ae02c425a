"""The whole way by the command, from two checkpoints to probes that serve."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import yaml
from markupsafe import escape

from semspec.errors import InvalidRequest
from semspec.probes.verifier import ProbeVerifier
from semspec.release import load_release
from semspec.reporting.progress import Reporter
from semspec.training.config import load_config
from semspec.training.files import read_rows
from semspec.training.pipeline import Pipeline
from semspec.training.preset import confirm_run, scale_to_budget
from semspec.types import Context, GenerationParams, Message, SamplingParams, Writer
from tests.helpers.checkpoints import loaded
from tests.training import support

pytestmark = pytest.mark.slow
UNSOLVED = {
    "python": "semspec_demo.probe_data:questions",
    "arguments": {"split": "tune"},
    "id": "id",
    "limit": 20,
}


@pytest.fixture
def unlabelled(run: Path, tmp_path: Path) -> Path:
    """A copy of the work folder, without what is made from all shards."""
    made = shutil.ignore_patterns("labels", "probes", "report")
    return Path(shutil.copytree(run / "work", tmp_path / "work", ignore=made))


async def test_delivered_probes_serve_the_pair(run: Path, models: tuple[Path, Path]) -> None:
    folder = run / "out" / "alternatives"
    verifier = ProbeVerifier.load(run / "out")
    info = await verifier.info()
    async with loaded(*models) as (draft, target):
        assert info.draft_model == (await draft.info()).fingerprint
        assert info.target_model == (await target.info()).fingerprint
        context = Context((await target.encode([Message("user", "Tom has pens: 25. How many?")]),))
        order = GenerationParams(
            SamplingParams(1.0, 1.0, seed=3), max_segment_tokens=12, want_states=True
        )
        [written] = [one async for one in draft.generate(context, order)]
        readings = await target.score(context, [written.segment])
    assert written.states is not None
    assert info.alternatives == ("last-hidden", "surprisal")
    judged = [
        await verifier.judge([written.states], readings, name) for name in ("", *info.alternatives)
    ]
    assert all(
        0 < one.draft_probability <= 1 and 0 <= one.target_probability <= 1 for [one] in judged
    )
    assert len({one.target_probability for [one] in judged}) == 3
    cards = [
        json.loads((folder / name / "target.json").read_text())
        for name in ("last-hidden", "surprisal")
    ]
    assert [(card["features"], card["layers"]) for card in cards] == [
        ("states", "last"),
        ("surprisal", "all"),
    ]
    assert all("auroc" in card["metrics"] and "verdicts" not in card["metrics"] for card in cards)
    release = load_release(run / "out")
    assert release.rule == {"strategy": "target"}  # too few segments to recommend a rule
    assert release.probes_mismatch(info) is None
    assert release.model_location("draft") == str(models[0].resolve())
    assert [model.fingerprint for model in (release.draft, release.target)] == [
        info.draft_model,
        info.target_model,
    ]


def test_report_is_whole_and_repeatable(run: Path, tmp_path: Path) -> None:
    folder = run / "work" / "report"
    report = json.loads((folder / "report.json").read_text())
    assert [one["name"] for one in report["variants"]] == [
        "served", "paper recipe", "the paper's labels", "states alone", "last layer", "surprisal alone",
    ]  # fmt: skip
    assert report["counts"]["contexts"].keys() == {"train", "validation", "calibration", "test"}
    page = (folder / "report.html").read_text()
    assert all(str(escape(verdict["headline"])) in page for verdict in report["verdicts"])
    card = json.loads((run / "out" / "target.json").read_text())
    stated = [(verdict["criterion"], verdict["standing"]) for verdict in report["verdicts"]]
    assert [
        (verdict["criterion"], verdict["standing"]) for verdict in card["metrics"]["verdicts"]
    ] == stated
    shutil.copytree(run / "work", tmp_path / "work")
    shutil.rmtree(tmp_path / "work" / "probes")
    config = load_config(run / "pair.yaml").model_copy(update={"output": tmp_path / "out"})
    again = Pipeline(config, tmp_path / "work")
    again.run()
    for name in ("report/report.json", "report/report.html"):
        assert (tmp_path / "work" / name).read_bytes() == (run / "work" / name).read_bytes()
    delivered = [
        path.relative_to(run / "out") for path in (run / "out").rglob("*") if path.is_file()
    ]
    assert len(delivered) == 13
    for path in delivered:
        assert (tmp_path / "out" / path).read_bytes() == (run / "out" / path).read_bytes()


def test_finished_run_does_nothing_again(run: Path) -> None:
    before = {
        path: path.stat().st_mtime_ns
        for path in (run / "work").rglob("*")
        if path.suffix != ".json"
    }
    Pipeline(load_config(run / "pair.yaml"), run / "work").run()
    kept = [path for path in before if path.is_file() and "report" not in path.parts]
    assert {path: path.stat().st_mtime_ns for path in kept} == {path: before[path] for path in kept}


def test_test_questions_have_more_samples_of_the_target_alone(run: Path) -> None:
    work = run / "work"
    splits = {
        row["id"]: row["split"]
        for path in (work / "questions").glob("*.parquet")
        for row in read_rows(path)
    }
    rows = [row for path in (work / "samples").glob("*.parquet") for row in read_rows(path)]
    sampled = Counter((row["context"], row["writer"]) for row in rows)
    for (context, writer), count in sampled.items():
        is_more = splits[context.rpartition("/")[0]] == "test" and writer == Writer.TARGET
        assert count == (8 if is_more else 6)


def test_status_and_estimate(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semspec.training.estimate.LEAST_S", 0.0)
    monkeypatch.setattr("semspec.training.estimate.timed", lambda make: (make(), 1000.0))
    shutil.copytree(run / "work", tmp_path / "work")
    pipeline = Pipeline(load_config(run / "pair.yaml"), tmp_path / "work")
    assert "clusters  5 of 5 shards" in pipeline.status() and pipeline.damaged() == []
    path = tmp_path / "work" / "samples" / "00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert pipeline.damaged() == [str(path)]
    estimate = pipeline.estimate()
    assert estimate.num_questions == 20
    num_contexts = sum(
        pipeline.contexts.num_contexts(number) for number in range(len(pipeline.questions))
    )
    assert 0.5 < estimate.num_contexts / num_contexts < 2
    states = sum(one.stat().st_size for one in (run / "work" / "samples").glob("*.safetensors"))
    assert 0.5 < estimate.states_bytes / states < 2
    assert set(estimate.stage_s) == {"contexts", "samples", "clusters", "probes"}
    assert "GB" in str(estimate)
    assert all(seconds > 0 for seconds in estimate.stage_s.values())


@pytest.mark.parametrize(("budget_s", "num_questions"), [(1e-9, 8), (1e9, 20)])
def test_preset_takes_as_many_questions_as_fit_its_time(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget_s: float, num_questions: int
) -> None:
    monkeypatch.setattr("semspec.training.estimate.LEAST_S", 0.0)
    monkeypatch.setattr("semspec.training.preset.LEAST_QUESTIONS", 8)
    monkeypatch.setattr("semspec.training.preset.BUDGET_S", budget_s)
    for _ in range(2):  # the second time as the first has chosen
        config = scale_to_budget(load_config(run / "pair.yaml"), tmp_path, Reporter(quiet=True))
        assert config.questions[0].limit == num_questions
        monkeypatch.setattr("semspec.training.preset.BUDGET_S", 1.0)


@pytest.fixture
def estimated(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The work folder of a preset whose estimate is not agreed to yet."""
    monkeypatch.setattr("semspec.training.estimate.LEAST_S", 0.0)
    monkeypatch.setattr("semspec.training.preset.PILOT_LIMIT_S", 0.0)
    monkeypatch.setattr("semspec.training.preset.BUDGET_S", 1e-9)
    monkeypatch.setattr("semspec.training.preset.LEAST_QUESTIONS", 8)
    scale_to_budget(load_config(run / "pair.yaml"), tmp_path / "work", Reporter(quiet=True))
    return tmp_path / "work"


def test_preset_needs_yes(run: Path, estimated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--preset", "laptop")
    assert support.semspec_train_in(estimated, "run", run / "pair.yaml", *options) == 2
    [line] = support.complaints(capsys)
    assert "the run takes at least" in line and "--yes" in line and "--from-prompts" in line
    assert not (estimated / "contexts").exists()
    assert support.semspec_train_in(estimated, "estimate", run / "pair.yaml", *options) == 0
    assert "8 questions: at least" in capsys.readouterr().out


@pytest.mark.parametrize("reply", ["y", "n", ""])
def test_preset_asks_terminal(estimated: Path, reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringIO(f"{reply}\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    if reply == "y":
        confirm_run(estimated, False, Reporter(quiet=True))
        confirm_run(estimated, False, Reporter(quiet=True))  # it asks once
    else:
        with pytest.raises(InvalidRequest, match="not begun"):
            confirm_run(estimated, False, Reporter(quiet=True))


def flipped(data: bytes) -> bytes:
    """The same number of bytes, a bit in the middle changed."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("questions/00000.parquet", flipped),
        ("contexts/00001.parquet", flipped),
        ("samples/00001.parquet", flipped),
        ("samples/00001.safetensors", flipped),
        ("clusters/00001.parquet", flipped),
        ("contexts/00001.json", lambda data: data[: len(data) // 2]),
        ("samples/00001.json", lambda data: b"[]"),
        ("clusters/00001.json", lambda data: b'{"files": 1, "inputs": ""}'),
        ("samples/recipe.json", lambda data: data[: len(data) // 2]),
        ("clusters/recipe.json", lambda data: b"\xff" + data),
    ],
)
def test_damaged_file_is_named_by_run_and_check_and_not_overwritten(
    run: Path,
    unlabelled: Path,
    name: str,
    spoil: Callable[[bytes], bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = unlabelled / name
    path.write_bytes(spoil(path.read_bytes()))
    before = {one: one.read_bytes() for one in unlabelled.rglob("*") if one.is_file()}
    for command, status in (("run", 2), ("check", 2 if path.name == "recipe.json" else 1)):
        code = support.semspec_train_in(unlabelled, command, run / "pair.yaml")
        told = capsys.readouterr()
        lines = [line for line in (told.err + told.out).splitlines() if str(path) in line]
        assert (code, len(lines)) == (status, 1), told
        if status == 2:
            assert lines[0].startswith(f"semspec train: {path} is damaged: ")
            assert "delete" in lines[0]
    after = {one: one.read_bytes() for one in unlabelled.rglob("*") if one.is_file()}
    assert {one: after[one] for one in before} == before


def test_file_deleted_as_advised_is_made_again(run: Path, unlabelled: Path) -> None:
    path = unlabelled / "samples" / "00001.parquet"
    whole = path.read_bytes()
    path.unlink()
    config = load_config(run / "pair.yaml")
    Pipeline(config, unlabelled).make("samples")
    assert path.read_bytes() == whole
    assert Pipeline(config, unlabelled).damaged() == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"draft": {"model": "/nowhere"}}, "there is no folder /nowhere"),
        ({"questions": [UNSOLVED]}, "has no reasoning trace; name the field that holds it"),
        ({"sample": {}}, "sample: no such setting"),
        (
            {"probes": {"layers": [7, 9]}},
            "there are no layers (7, 9): the states have layers 0 to 2",
        ),
        ({"equivalence": {"kind": "entailment", "model": "/nowhere"}}, "/nowhere"),
    ],
)
def test_unusable_configuration_ends_in_one_line(
    models: tuple[Path, Path],
    tmp_path: Path,
    change: dict[str, object],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = (
        support.config(*models, tmp_path / "out").model_dump(mode="json", exclude_none=True)
        | change
    )
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(content))
    assert support.semspec_train_in(tmp_path / "work", "run", tmp_path / "pair.yaml") == 2
    [line] = support.complaints(capsys)
    assert complaint in line
    assert not (tmp_path / "out").exists()
