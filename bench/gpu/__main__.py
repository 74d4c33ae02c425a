"""python -m semspec.bench.gpu [--output DIR] [--minutes 9]: what this machine's GPU allows; without one, says so."""

import argparse
import platform
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from semspec.bench.gpu.forwards import measure_decode, measure_reads
from semspec.bench.gpu.models import Pair, build
from semspec.bench.gpu.parity import measure_parity
from semspec.bench.gpu.record import Facts, Record
from semspec.bench.gpu.shapes import SCALES, Scale, fitted
from semspec.bench.gpu.timing import Light, Timer, measure_light

PACKAGES = ("torch", "transformers", "numpy", "safetensors", "tokenizers")
QUERIED = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit", "temperature.gpu")
LIGHT_S, PARITY_S, MODELS_S, DECODE_S, READ_S = 10.0, 15.0, 60.0, 60.0, 90.0
"""Seconds that must be left for a stage to begin; a stage with repetitions ends after this time."""
RESULTS = Path(__file__).parents[1] / "results"


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


def describe(device: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {"device": device_name(device), "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        facts |= {
            "cuda": torch.version.cuda,
            "num_multiprocessors": properties.multi_processor_count,
            "memory_bytes": total_bytes,
            "free_memory_bytes": free_bytes,
        }
    return facts


def gpu_state(device: torch.device) -> dict[str, str]:
    """Current driver, clocks, power limit and temperature, as printed by nvidia-smi; empty if it fails."""
    if device.type != "cuda":
        return {}
    query = ["nvidia-smi", f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader", f"--id={device.index or 0}"]
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        return dict(zip(QUERIED, (field.strip() for field in answer.split(",")), strict=False))
    return {}


class Bench:
    """Runs the stages on one device."""

    def __init__(self, record: Record, scale: Scale, device: torch.device) -> None:
        self._record, self._scale, self._device = record, scale, device
        self._timer = Timer(device)
        # Set by the stages "speed of light" and "models", which later stages require.
        self._light: Light
        self._pair: Pair

    def run(self) -> None:
        stage, needs = self._record.stage, ("speed of light", "models")
        stage("speed of light", LIGHT_S, self._measure_light)
        stage("parity", PARITY_S, lambda: measure_parity(self._device))
        stage("models", MODELS_S, self._build_models)
        stage("decode", DECODE_S, self._measure_decode, needs)
        stage("read", READ_S, self._measure_reads, needs)

    def _measure_light(self) -> Facts:
        self._light, facts = measure_light(self._timer, self._scale, LIGHT_S)
        return facts | {"gpu": gpu_state(self._device)}

    def _build_models(self) -> Facts:
        """Build both models; the target with as many layers as fit into memory."""
        scale, target_shape = self._scale, self._scale.target
        draft = build(scale.draft, self._device, scale.window)
        if self._device.type == "cuda":
            free_bytes = torch.cuda.mem_get_info(self._device)[0]
            target_shape = fitted(scale.target, free_bytes - scale.reserve_bytes)
        self._pair = Pair(draft, build(target_shape, self._device, scale.window))
        return {
            "weights": "random, bf16",
            "target_layers_left_out": scale.target.num_layers - target_shape.num_layers,
        } | {
            role: asdict(model.shape) | {"weight_bytes": model.shape.weight_bytes}
            for role, model in (("draft", draft), ("target", self._pair.target))
        }

    def _measure_decode(self) -> Facts:
        facts = measure_decode(self._timer, self._scale, self._pair, self._light, DECODE_S)
        return facts | {"gpu": gpu_state(self._device)}

    def _measure_reads(self) -> Facts:
        return measure_reads(self._timer, self._scale, self._pair.target, self._light, READ_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 if a stage failed."""
    chosen = _parser().parse_args(arguments)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing measured (--scale tiny --device cpu tries the code without one)")
        return 0
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    device = torch.device(chosen.device, 0) if chosen.device == "cuda" else torch.device("cpu")
    name = re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")
    folder = chosen.output or RESULTS / f"gpu-{name}"
    head = {"scale": chosen.scale, "environment": describe(device), "gpu_at_start": gpu_state(device)}
    record = Record(folder, head, chosen.minutes * 60)
    Bench(record, SCALES[chosen.scale], device).run()
    print(*record.summary(), f"written: {folder}/gpu.json", sep="\n")
    return int(record.has_failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m semspec.bench.gpu", description=__doc__)
    parser.add_argument("--output", type=Path, help="folder for gpu.json; default bench/results/gpu-DEVICE")
    parser.add_argument("--minutes", type=float, default=9.0, help="time budget; stages that do not fit are left out")
    parser.add_argument("--scale", choices=SCALES, default="paper", help="sizes of the models")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
