"""Checks of a reproduction before it begins: what it refuses, with the remedy, and how much it has to do."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.reporting.progress import Reporter
from semspec.training.config import read_config, read_yaml
from semspec_bench.cli import main
from semspec_bench.reproduce import PAIRS, PairConfig, Reproduction
from tests.bench.tiny_pair import DRAFT, METHODS, TARGET, save_models, save_pair_file, use_hub
from tests.helpers.hub import serving, use


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
        ({"runs": [{"task": "math500", "strategies": ["semantic"]}]}, "the target alone first"),
        (
            {"runs": [{"task": "math500", "strategies": ["target", "semantik"]}]},
            "unknown strategy 'semantik'",
        ),
        (
            {"runs": [{"task": "math500", "strategies": METHODS, "probes": "paper"}]},
            "paper not defined",
        ),
        ({"runs": 2 * [{"task": "math500", "strategies": METHODS}]}, "math500 occurs twice"),
        ({"training": "elsewhere.yaml"}, "cannot read"),
    ],
)
def test_pair_file_is_refused_by_field(
    changes: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = refused(save_pair_file(tmp_path, **changes), tmp_path / "output", capsys)
    assert said in line


def test_failed_check_is_line(hub: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [{"task": "gpqa-diamond", "data": str(tmp_path / "none.jsonl"), "strategies": METHODS}]
    path = save_pair_file(tmp_path, runs=runs, environment={"SEMSPEC_TARGET_ENGINE": "vllm"})
    vllm, draft, target, _, questions, *_ = lines = refused(path, tmp_path / "output", capsys)
    assert vllm.startswith("fail") and "make setup TORCH_VARIANT=cuda" in vllm
    assert draft.startswith("fail")
    assert "is gated" in draft
    assert f"{hub}/{DRAFT}" in draft
    assert "hf auth login" in draft
    assert target.startswith("ok") and "to download: 100000000.0 GB" in target
    assert questions.startswith("fail") and "none.jsonl" in questions
    assert "3 of" in lines[-1] and "nothing was started" in lines[-1]


def checked(path: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of `--check`, which makes nothing, whether it succeeds or fails."""
    with suppress(SystemExit):
        main(["reproduce", "--pair", str(path), "--output", str(output), "--check"])
    assert not output.exists()
    return capsys.readouterr().err.strip().splitlines()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA devices")
@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"SEMSPEC_TARGET_DEVICE": "cuda:1", "SEMSPEC_DRAFT_DEVICE": "cpu"}},
        {"environment": {"SEMSPEC_VERIFIER_DEVICE": "cuda"}},
        {"probes": {"main": {}, "more": {"target": {"device": "cuda:0"}}}},
        {"probes": {"main": {"probes": {"device": "cuda"}}}},
    ],
)
def test_pair_that_names_cuda_devices_is_refused_without_them(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_models(tmp_path / "hub")
    lines = checked(save_pair_file(tmp_path, **changes), tmp_path / "output", capsys)
    [devices] = [line for line in lines if " GPUs " in line]
    assert devices.startswith("fail") and "names cuda" in devices and "sees no GPU" in devices
    assert "TORCH_VARIANT=cuda" in devices or "nvidia-smi" in devices
    assert "1 of" in lines[-1] and "nothing was started" in lines[-1]


@pytest.mark.parametrize("path", sorted(PAIRS.glob("*.yaml")), ids=lambda path: path.stem)
def test_pair_of_the_paper_is_valid_and_has_its_four_tasks(path: Path, tmp_path: Path) -> None:
    config = read_config(path, PairConfig)
    made = Reproduction(
        config, read_yaml(path.parent / config.training), tmp_path, None, Reporter(quiet=True)
    )
    assert {run.task for run in config.runs} >= {"math500", "aime24", "amc23", "gpqa-diamond"}
    recipes = {name: made.pipelines[f"paper-{name}"].probes for name in ("math", "science")}
    assert all(
        (one.domain, one.labels, one.projection) == (name, "own", None)
        for name, one in recipes.items()
    )
    assert [*map(made._sampling_group, config.probes)] == [
        "main",
        "paper-math",
        "paper-math",
        "sentence",
    ]
    assert all(
        pipeline.output == tmp_path / "pairs" / pipeline.name / "probes"
        for pipeline in made.pipelines.values()
    )
