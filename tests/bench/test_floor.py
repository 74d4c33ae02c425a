"""Floors against arithmetic done by hand, and the measuring of the machine."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from semspec.bench.report import speed_of_light
from semspec.bench.report.speed_of_light import Machine, Weights, measure_machine, weights_of
from semspec.stack import BUNDLED_PAIR


def test_floor_is_the_slower_of_reading_and_multiplying() -> None:
    machine, weights = Machine(bandwidth_bytes_per_s=1e10, flops_per_s=1e11), Weights(10_000_000)
    assert weights.floor_ms(machine, 1, "fp32") == pytest.approx(4.0)  # 40 MB at 10 GB/s
    assert weights.floor_ms(machine, 1, "bf16") == pytest.approx(2.0)
    assert weights.floor_ms(machine, 64, "bf16") == pytest.approx(12.8)  # 1.28 GFLOP at 100 GFLOP/s


def test_weights_leave_out_embeddings_unless_they_are_the_output_layer_too(tmp_path: Path) -> None:
    embeddings, head, block = torch.zeros(10, 4), torch.zeros(10, 4), torch.zeros(4, 4)
    untied = {"model.embed_tokens.weight": embeddings, "lm_head.weight": head, "model.layers.0.weight": block}
    save_file(untied, tmp_path / "model.safetensors")
    assert weights_of(tmp_path).num_parameters == 56
    assert weights_of(BUNDLED_PAIR / "target").num_parameters == 4_963_456  # tied


def test_machine_is_measured_on_one_thread_which_stays_the_callers_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_of_light, "NUM_TRIES", 1)
    monkeypatch.setattr(speed_of_light, "VECTOR_SIDE", 1024)
    before = torch.get_num_threads()
    machine = measure_machine()
    assert torch.get_num_threads() == before
    assert 1e8 < machine.bandwidth_bytes_per_s < 1e13
    assert 1e8 < machine.flops_per_s < 1e15
