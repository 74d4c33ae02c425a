"""`semspec plan`: its sums beside those of a run on a GPU and of a checkpoint, and what does not fit."""

import json
import re
from pathlib import Path

import pytest
from safetensors import safe_open

from semspec.cli import main
from semspec.commands.plan import read_model
from semspec.engine.settings import ModelSettings
from semspec.reporting.files import read_json
from semspec.stack.config import BUNDLED_PAIR
from semspec_bench.gpu.__main__ import RESULTS
from semspec_bench.gpu.engines import memory

SHAPES = {"target": (64, 5120, 27648, 40, 8, 152064), "draft": (28, 1536, 8960, 12, 2, 151936)}
"""Of DeepSeek-R1-Distill-Qwen-32B and 1.5B: layers, hidden and MLP size, heads, KV heads, vocabulary."""
NAMES = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size"
)  # fmt: skip


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    for role, shape in SHAPES.items():
        (tmp_path / role).mkdir()
        common = {
            "model_type": "qwen2",
            "tie_word_embeddings": False,
            "max_position_embeddings": 131072,
        }
        config = common | dict(zip(NAMES, shape, strict=True))
        (tmp_path / role / "config.json").write_text(json.dumps(config))
    return ["--draft-model", str(tmp_path / "draft"), "--target-model", str(tmp_path / "target")]


@pytest.mark.parametrize("role", SHAPES)
def test_sums_are_those_of_a_run_on_an_h100(role: str, pair: list[str]) -> None:
    """benchmarks/results/gpu-h100: what the processes took after all reads."""
    model = read_model(pair[1 if role == "draft" else -1])
    taken = read_json(RESULTS / "gpu-h100" / "gpu.json")["stages"][role]["facts"]["end"]
    found = {what: measured / planned for what, planned, measured in memory(model, taken, 1, 2048)}
    assert len(found) == 3 and found == pytest.approx(dict.fromkeys(found, 1.0), rel=0.04)


def test_parameters_are_those_of_the_checkpoint() -> None:
    folder = BUNDLED_PAIR / "target"
    model = read_model(str(folder))
    with safe_open(folder / "model.safetensors", "np") as file:
        sizes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    counted = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in sizes)
    assert model.num_parameters == counted
    assert model.file_bytes == (folder / "model.safetensors").stat().st_size


def test_layout_on_two_gpus(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Eight of 32,768 tokens and a prompt; the printed settings are read by the services."""
    with pytest.raises(SystemExit) as ended:
        main(["plan", *pair])
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and "its fingerprint differs" in printed
    found = re.findall(r"SEMSPEC_TARGET_(\w+)=(.*)", printed)
    values = {
        name.lower(): json.loads(value.strip("'")) if "{" in value else value
        for name, value in found
    }
    read = ModelSettings.model_validate({"model": "m", **values})
    assert read.vllm_options.kv_cache_dtype == "fp8" and read.vllm_options.tensor_parallel_size == 2
    assert "SEMSPEC_GATEWAY_MAX_CONCURRENT=11" in printed
    assert read.max_context_tokens == 34_816
    assert read.device == "cuda"
    assert "kv_bytes" in read.model_fields_set


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--gpus", "1"],
            r"8 answers of 34,816 tokens do not fit; the most is 5 of them, or 8 of 2\d,\d+ tokens",
        ),
        (["--context", "200000"], r"--context: the window of .*draft has 131072 tokens"),
        (["--sessions", "0"], r"--sessions: give at least 1"),
        (
            ["--target-model", "./nowhere"],
            r"there is no folder ./nowhere; give a checkpoint's folder, a GGUF file",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(
    pair: list[str], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *pair, *options])
    error = capsys.readouterr().err
    assert ended.value.code == 1 and len(error.splitlines()) == 1
    assert re.search(message, error), error
