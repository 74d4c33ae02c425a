"""The GPU bench at toy size on a CPU: every stage for real, by what a bare GPU machine has installed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.bench.gpu.__main__ import main
from semspec.bench.gpu.models import build
from semspec.bench.gpu.parity import measure_parity
from semspec.bench.gpu.record import Record
from semspec.bench.gpu.shapes import TINY
from semspec.bench.gpu.timing import Light

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
MISSING = ("datasets", "fastapi", "google", "grpc", "httpx", "psutil", "pyarrow", "pydantic_settings", "redis", "rich")
"""What a machine with PyTorch and transformers alone need not have."""
RUN_WITHOUT = """
import runpy, sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
runpy.run_module("semspec.bench.gpu", run_name="__main__", alter_sys=True)
"""


def test_bare_machine_runs_every_stage_and_parity_holds(tmp_path: Path) -> None:
    """At toy size with nothing to import but what a bare machine has; greedy agrees on every token."""
    command = [sys.executable, "-c", RUN_WITHOUT, ",".join(MISSING)]
    command += ["--scale", "tiny", "--device", "cpu", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    stages = json.loads((tmp_path / "gpu.json").read_text())["stages"]
    assert {row["status"] for row in stages.values()} == {"done"}
    parity = stages["parity"]["facts"]
    assert parity["holds"] and {row["dtype"] for row in parity["rows"]} == {"bfloat16", "float32"}
    assert [row["num_equal"] for row in parity["rows"] if "num_equal" in row] == [64]


def test_main_says_so_and_writes_nothing_without_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["--output", str(tmp_path / "out")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_main_skips_stages_that_do_not_fit_and_notes_why(tmp_path: Path) -> None:
    assert main(["--scale", "tiny", "--device", "cpu", "--minutes", "0", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "gpu.json").read_text())["stages"]
    assert {row["status"] for row in rows.values()} == {"skipped"}
    assert "were left" in rows["parity"]["reason"] and "needs speed of light" in rows["decode"]["reason"]


def test_record_keeps_what_was_measured_when_a_later_stage_fails_or_is_cut_off(tmp_path: Path) -> None:
    def fails() -> dict[str, Any]:
        assert on_disk()["first"]["facts"] == {"value": 1}  # as a kill at this moment would leave it
        raise RuntimeError("out of memory")

    def on_disk() -> dict[str, Any]:
        stages: dict[str, Any] = json.loads((tmp_path / "gpu.json").read_text())["stages"]
        return stages

    record = Record(tmp_path, {"environment": {"device": "none"}}, 60)
    record.stage("first", 0, lambda: {"value": 1})
    assert record.stage("second", 0, fails) is None
    assert record.stage("third", 0, lambda: {"value": 3}, needs=("second",)) is None
    record.stage("fourth", 0, lambda: {"value": 4}, needs=("first",))
    rows = on_disk()
    assert [row["status"] for row in rows.values()] == ["done", "failed", "skipped", "done"]
    assert "out of memory" in rows["second"]["reason"] and "second" in rows["third"]["reason"]
    assert record.has_failed


def test_parity_reports_a_model_that_reads_otherwise_than_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semspec.bench.gpu.parity.BARS", {torch.float32: 1e-12})
    facts = measure_parity(CPU)
    assert not facts["holds"]


def test_floor_is_the_larger_of_bytes_and_products() -> None:
    shape = TINY.target
    num_weights = shape.num_body_parameters + shape.num_head_parameters
    slow_memory, slow_units = Light(1e6, 1e30), Light(1e30, 1e9)
    floor_ms = slow_memory.decode_ms(shape, 9)
    assert floor_ms == pytest.approx((2 * num_weights + 10 * shape.kv_bytes_per_token) / 1e6 * 1e3)
    attention = 4 * shape.num_layers * shape.hidden_size * (1 + 2 + 3)
    assert slow_units.forward_ms(shape, 3, 0, 3) == pytest.approx((2 * num_weights * 3 + attention) / 1e9 * 1e3)


def test_shape_counts_the_parameters_of_the_model_built() -> None:
    model = build(TINY.target, CPU, TINY.window).lm.model
    assert 2 * sum(parameter.numel() for parameter in model.parameters()) == TINY.target.weight_bytes
