"""What a reproduction refuses before it begins, each with one line and the remedy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semspec.bench.cli import main
from semspec.bench.reproduce import PAIRS, PairConfig, Reproduction
from semspec.training.config import read_config, read_yaml
from semspec.training.progress import Reporter
from tests.bench.tiny_pair import DRAFT, METHODS, TARGET, save_pair_file, snapshot, use_hub
from tests.hub import serving, use


@pytest.fixture(autouse=True)
def _own_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(tmp_path / "hub", monkeypatch)


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path | None]:
    """The draft is gated, the target larger than any disk."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    return {DRAFT: None, TARGET: tmp_path / "model"}


@pytest.fixture
def hub(models: dict[str, Path | None], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(models) as endpoint:
        use(endpoint, monkeypatch)
        yield endpoint


def refused(path: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that the command says before it refuses; nothing is made."""
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "--pair", str(path), "--output", str(output)])
    assert ended.value.code == 2 and not output.exists()
    lines = capsys.readouterr().err.strip().splitlines()
    return [line for line in lines if line.startswith(("ok", "fail", "semspec"))]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runs": [{"task": "math500", "strategies": ["semantic"]}]}, "name the target alone first"),
        ({"runs": [{"task": "math500", "strategies": ["target", "semantik"]}]}, "unknown strategy 'semantik'"),
        ({"runs": [{"task": "math500", "strategies": METHODS, "probes": "paper"}]}, "none of the name paper"),
        ({"runs": 2 * [{"task": "math500", "strategies": METHODS}]}, "math500 twice"),
        ({"probes": {"main": {"samples": {"num_samples": 1}}}}, "training.yaml with probes.main: samples.num_samples"),
        ({"training": "elsewhere.yaml"}, "cannot read"),
        ({"gpus": 2}, "gpus: no such setting"),
    ],
)
def test_pair_file_is_refused_by_field(
    changes: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = refused(save_pair_file(tmp_path, **changes), tmp_path / "output", capsys)
    assert said in line


def test_every_failed_check_is_one_line_with_its_remedy(
    hub: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [{"task": "gpqa-diamond", "data": str(tmp_path / "none.jsonl"), "strategies": METHODS}]
    path = save_pair_file(tmp_path, runs=runs, environment={"SEMSPEC_TARGET_ENGINE": "vllm"})
    vllm, draft, target, _, questions, *_ = lines = refused(path, tmp_path / "output", capsys)
    assert vllm.startswith("fail") and "semspec[vllm]" in vllm
    assert draft.startswith("fail") and "is gated" in draft and f"{hub}/{DRAFT}" in draft and "hf auth login" in draft
    assert target.startswith("ok") and "to download: 100000000.0 GB" in target
    assert questions.startswith("fail") and "none.jsonl" in questions
    assert "3 of" in lines[-1] and "nothing was begun" in lines[-1]


def test_models_that_fit_neither_disk_nor_memory_are_refused(
    hub: str, models: dict[str, Path | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models[DRAFT] = models[TARGET]
    lines = refused(save_pair_file(tmp_path), tmp_path / "output", capsys)
    [disk], [memory] = ([line for line in lines if f" {name} " in line] for name in ("disk", "memory"))
    assert disk.startswith("fail") and "HF_HOME" in disk and memory.startswith("fail")


def test_hub_out_of_reach_is_said_unless_the_models_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (snapshot(tmp_path / "hub", DRAFT) / "model.safetensors").write_bytes(b"0" * 8)
    draft, target, *_ = refused(save_pair_file(tmp_path), tmp_path / "output", capsys)
    assert draft.startswith("ok") and "to download: nothing" in draft
    assert target.startswith("fail") and "HF_ENDPOINT" in target


@pytest.mark.parametrize("path", sorted(PAIRS.glob("*.yaml")), ids=lambda path: path.stem)
def test_pair_of_the_paper_is_valid_and_has_its_four_tasks(path: Path, tmp_path: Path) -> None:
    config = read_config(path, PairConfig)
    made = Reproduction(config, read_yaml(path.parent / config.training), tmp_path, None, Reporter(quiet=True))
    assert {run.task for run in config.runs} >= {"math500", "aime24", "amc23", "gpqa-diamond"}
    recipes = {name: made.pipelines[f"paper-{name}"].probes for name in ("math", "science")}
    assert all((one.domain, one.labels, one.projection) == (name, "own", None) for name, one in recipes.items())
    assert [*map(made._sampled_as, config.probes)] == ["main", "paper-math", "paper-math", "sentence"]
    assert all(pipeline.output == tmp_path / "pairs" / pipeline.name / "probes" for pipeline in made.pipelines.values())
