"""The GPU bench without vLLM: its record, the lower bounds, the shapes. tests/vllm runs all of its stages."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.bench.gpu import __main__ as gpu
from semspec.bench.gpu.record import Record, summary
from semspec.bench.gpu.shapes import TINY
from semspec.bench.gpu.timing import Light, with_floors

pytestmark = pytest.mark.slow


def on_disk(folder: Path) -> dict[str, Any]:
    stages: dict[str, Any] = json.loads((folder / "gpu.json").read_text())["stages"]
    return stages


def test_main_says_so_and_writes_nothing_without_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert gpu.main(["--output", str(tmp_path / "out")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_light_is_measured_without_vllm_and_the_other_stages_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda _: None)
    assert gpu.main(["--scale", "tiny", "--device", "cpu", "--output", str(tmp_path)]) == 0
    light, *others = on_disk(tmp_path).values()
    assert light["status"] == "done" and light["facts"]["bandwidth_bytes_per_s"] > 0
    assert len(others) == 4
    assert all(row["status"] == "skipped" and "semspec[vllm,engine]" in row["reason"] for row in others)


def test_stage_that_is_killed_at_its_limit_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"rows": [{"what": "read", "streams": 1, "tokens": 4, "context": 8, "ms": {"median": 2.0}}]}

    def killed(*_: object) -> None:
        (tmp_path / "target.json").write_text(json.dumps(facts))

    monkeypatch.setattr(gpu, "_run_group", killed)
    monkeypatch.setattr(gpu, "find_spec", lambda _: True)
    chosen = gpu._parser().parse_args(["--scale", "tiny"])
    row = gpu.run_stage("target", chosen, tmp_path, Record(tmp_path, {}, 60), 7)
    assert row == {"status": "failed", "facts": facts, "reason": "it was killed after 7 s"}


def test_process_is_killed_at_its_limit_with_its_group(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        assert gpu._run_group(["sh", "-c", "sleep 60 & wait"], log.fileno(), 0.2) is None
        assert gpu._run_group(["sh", "-c", "exit 3"], log.fileno(), 10) == 3


def test_record_on_disk_is_complete_while_a_later_stage_runs(tmp_path: Path) -> None:
    def second(limit_s: float) -> dict[str, Any]:
        assert on_disk(tmp_path)["first"]["facts"] == {"value": 1}  # as a kill at this moment would leave it
        assert limit_s <= 5
        return {"status": "failed", "reason": "out of memory"}

    record = Record(tmp_path, {"environment": {"device": "none"}}, 60)
    record.stage("first", 0, 5, lambda _: {"status": "done", "facts": {"value": 1}})
    record.stage("second", 0, 5, second)
    record.stage("third", 61, 90, second)
    assert [row["status"] for row in on_disk(tmp_path).values()] == ["done", "failed", "skipped"]


def test_floor_is_the_larger_of_bytes_and_products() -> None:
    shape = TINY.target
    num_weights = shape.num_body_parameters + shape.num_head_parameters
    slow_memory, slow_units = Light(1e6, 1e30), Light(1e30, 1e9)
    decode = {"what": "decode", "streams": 2, "tokens": 1, "context": 9}
    kept_bytes = 2 * 10 * shape.kv_bytes_per_token
    assert slow_memory.floor_ms(shape, decode) == pytest.approx((2 * num_weights + kept_bytes) / 1e6 * 1e3)
    read = {"what": "read", "streams": 1, "tokens": 3, "context": 0}
    attention = 4 * shape.num_layers * shape.hidden_size * (1 + 2 + 3)
    assert slow_units.floor_ms(shape, read) == pytest.approx((2 * num_weights * 3 + attention) / 1e9 * 1e3)
    facts = with_floors({"rows": [decode | {"ms": {"median": 1e6}}]}, shape, slow_memory)
    assert 0 < facts["rows"][0]["share_of_floor"] < 1
    [line] = summary({"target": {"facts": facts}})
    assert "of the floor" in line and "2 x 1 tokens after 9" in line


def test_shape_counts_the_parameters_of_the_model_built() -> None:
    from transformers import Qwen2ForCausalLM

    from semspec.bench.gpu.engines import config_of

    with torch.device("meta"):
        model = Qwen2ForCausalLM(config_of(TINY.target, 512))
    assert 2 * sum(parameter.numel() for parameter in model.parameters()) == TINY.target.weight_bytes
