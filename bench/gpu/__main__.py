"""python -m semspec.bench.gpu [--output DIR] [--minutes 15]: what this machine's GPU allows; without one, says so."""

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch

from semspec.bench.gpu.record import Facts, Record, Results, summary
from semspec.bench.gpu.shapes import SCALES, Scale
from semspec.bench.gpu.timing import Light, measure_light, with_floors
from semspec.commands import INTERRUPTED

PACKAGES = ("torch", "vllm", "transformers", "numpy", "safetensors", "tokenizers")
QUERIED = ("name", "driver_version", "memory.total", "clocks.sm", "clocks.mem", "power.limit", "temperature.gpu")
STAGES = {"light": (10, 60), "parity": (60, 150), "target": (120, 400), "draft": (60, 150), "plain": (90, 200)}
"""Seconds that must be left for a stage to begin, and its limit."""
TINY_S = 5, 600
RESULTS = Path(__file__).parents[1] / "results"
NO_VLLM = "vLLM is not installed where this runs: pip install 'semspec[vllm,engine]'"


def gpu_state() -> dict[str, str]:
    """Name, driver, memory, clocks, power limit and temperature, as printed by nvidia-smi; empty if it fails. Unlike
    torch, it holds no memory."""
    query = ["nvidia-smi", f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader", "--id=0"]
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        return dict(zip(QUERIED, (field.strip() for field in answer.split(",")), strict=False))
    return {}


def describe(device: str) -> Facts:
    state = gpu_state() if device == "cuda" else {}
    facts: Facts = {"device": state.get("name", platform.machine()), "python": platform.python_version(), "gpu": state}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts


def run_stage(name: str, chosen: Namespace, folder: Path, record: Record, limit_s: float) -> Facts:
    """The row of a stage that runs in a process group of its own, which ends with it or at its limit."""
    if name != "light" and find_spec("vllm") is None:
        return {"status": "skipped", "reason": NO_VLLM}
    path = folder / f"{name}.json"
    own = ["--stage", name, "--scale", chosen.scale, "--device", chosen.device, "--output", str(path)]
    with (folder / f"{name}.log").open("w") as log:
        code = _run_group([sys.executable, "-m", "semspec.bench.gpu", *own], log.fileno(), limit_s)
    facts: Facts = json.loads(path.read_text()) if path.exists() else {"rows": []}
    path.unlink(missing_ok=True)
    reason = facts.pop("error", f"it ended with {code}; {name}.log says why")
    light = record.stages.get("light", {}).get("facts")
    if light and name in ("target", "draft", "plain"):
        shape = SCALES[chosen.scale].draft if name == "draft" else SCALES[chosen.scale].target
        facts = with_floors(facts, shape, Light(light["bandwidth_bytes_per_s"], light["flops_per_s"]))
    if code == 0:
        return {"status": "done", "facts": facts}
    return {"status": "failed", "facts": facts, "reason": reason if code else f"it was killed after {limit_s:.0f} s"}


def _run_group(command: Sequence[str], output: int, limit_s: float) -> int | None:
    """The exit status of a process in a group of its own; None: it was killed at its limit."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stage_main(chosen: Namespace, results: Results) -> int:
    """A stage in its own process; returns the exit code. The rows before an error stay."""
    torch.set_num_threads(1)
    try:
        asyncio.run(measure(chosen.stage, SCALES[chosen.scale], chosen.device, results))
    except Exception as error:
        traceback.print_exc()
        results.note(error=f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")
        return 1
    return 0


async def measure(name: str, scale: Scale, device: str, results: Results) -> None:
    if name == "light":
        return results.note(**measure_light(scale, torch.device(device)))
    # Only here: they need what a service needs.
    from semspec.bench.gpu.parity import measure_parity
    from semspec.bench.gpu.series import measure_shape

    if name == "parity":
        return await measure_parity(results, scale.num_problems, device)
    if name == "draft":
        return await measure_shape(results, scale.draft, scale.draft_sizes, device)
    await measure_shape(results, scale.target, scale.target_sizes, device, has_hooks=name == "target")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 if a stage failed or parity does not hold."""
    chosen = _parser().parse_args(arguments)
    if chosen.stage:
        return stage_main(chosen, Results(chosen.output))
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing measured (--scale tiny --device cpu tries the code without one)")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a stage ends with this process
    environment = describe(chosen.device)
    folder = chosen.output or RESULTS / f"gpu-{re.sub(r'[^a-z0-9]+', '-', environment['device'].lower())}"
    head = {"command": "make bench-gpu", "scale": chosen.scale, "environment": environment}
    record = Record(folder, head, chosen.minutes * 60)
    for name, of_paper in STAGES.items():
        seconds = of_paper if chosen.scale == "paper" else TINY_S
        record.stage(name, *seconds, partial(run_stage, name, chosen, folder, record))
    print(*summary(record.stages), f"written: {folder}/gpu.json", sep="\n")
    holds = record.stages["parity"].get("facts", {}).get("holds", True)
    return int(not holds or "failed" in [stage["status"] for stage in record.stages.values()])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m semspec.bench.gpu", description=__doc__)
    parser.add_argument("--output", type=Path, help="folder for gpu.json and logs; default bench/results/gpu-DEVICE")
    parser.add_argument("--minutes", type=float, default=15.0, help="time budget; stages that do not fit are left out")
    parser.add_argument("--scale", choices=SCALES, default="paper", help="sizes of the models")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.stdout.flush()
    os._exit(code)  # without waiting for vLLM's threads
