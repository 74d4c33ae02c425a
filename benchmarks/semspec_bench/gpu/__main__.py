"""python -m semspec_bench.gpu [--output DIR] [--scale quarter-hour]: measures this machine's GPUs.

The same command resumes an interrupted run on the same device with the same software. Its last line names a bundle with
the results, to send.
"""

import argparse
import asyncio
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

from semspec.commands import INTERRUPTED
from semspec.errors import Mismatch
from semspec.reporting.files import read_json
from semspec.stack import BUNDLED_PAIR
from semspec.stack.parent_death import bound_command
from semspec_bench.environment import code_digest
from semspec_bench.gpu.pair import (
    HUB_PAIR,
    SMALL_HUB_PAIR,
    folder_of,
    link_pair,
    measure_answers,
    rows_of,
)
from semspec_bench.gpu.record import Facts, Record, Results, bundle, holds, summary
from semspec_bench.gpu.shapes import SCALES, Scale
from semspec_bench.gpu.timing import PeakRates, measure_peak_rates, with_floors

PACKAGES = ("torch", "vllm", "transformers", "numpy", "safetensors", "tokenizers")
QUERIED = (
    "name",
    "driver_version",
    "memory.total",
    "power.limit",
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
)
NUM_FIXED = 4
"""The first of them are equal in every run."""
STAGES = {"light": (10, 60), "parity": (60, 150), "target": (120, 400), "draft": (60, 150), "tp2": (120, 240),
          "answers": (300, 640), "plain": (90, 160)}  # fmt: skip
"""Seconds that must be left for a stage to begin, and its limit."""
QUARTER_HOUR_STAGES = {"light": (10, 20), "parity": (60, 150), "target": (120, 280), "draft": (60, 110),
                       "answers": (60, 230), "plain": (60, 110), "tp2": (120, 240)}  # fmt: skip
"""The same in a quarter of an hour, on one GPU; `tp2` only if the others leave time."""
TINY_STAGES = dict.fromkeys(STAGES, (5, 600))
STAGES_OF_SCALE = {
    "paper": STAGES,
    "quarter-hour": QUARTER_HOUR_STAGES,
    "tiny": TINY_STAGES,
    "cpu": TINY_STAGES,
}
MINUTES = {"paper": 30.0, "quarter-hour": 15.0, "tiny": 30.0, "cpu": 30.0}
DEFAULT_PAIRS = {
    "paper": HUB_PAIR,
    "quarter-hour": SMALL_HUB_PAIR,
    "tiny": str(BUNDLED_PAIR),
    "cpu": str(BUNDLED_PAIR),
}
RESULTS = Path(__file__).parents[2] / "results"
NO_VLLM = "vLLM is not installed where this runs: make setup TORCH_VARIANT=cuda"


def gpu_state() -> dict[str, str]:
    """Return name, driver, memory, clocks, power limit and temperature, as printed by nvidia-smi; empty if it fails.
    Unlike torch, nvidia-smi takes no GPU memory."""
    query = ["nvidia-smi", f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader", "--id=0"]
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
        return dict(zip(QUERIED, (field.strip() for field in answer.split(",")), strict=False))
    return {}


def describe(device: str) -> Facts:
    """Describe device and software; only results with equal descriptions belong together."""
    state = gpu_state() if device == "cuda" else {}
    facts: Facts = {
        "device": state.get("name", platform.machine()),
        "python": platform.python_version(),
    }
    facts |= {
        "gpu": {name: state[name] for name in QUERIED[:NUM_FIXED] if name in state},
        "num_gpus": num_gpus(device),
    }
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts | {"code": code_digest()}


def num_gpus(device: str) -> int:
    return torch.cuda.device_count() if device == "cuda" else 0


def run_stage(name: str, chosen: Namespace, folder: Path, record: Record, limit_s: float) -> Facts:
    """Run a stage in a process group of its own, which ends with it or at its limit; return its record."""
    if name != "light" and find_spec("vllm") is None:
        return {"status": "skipped", "reason": NO_VLLM}
    if name == "tp2" and num_gpus(chosen.device) < 2:
        return {"status": "skipped", "reason": "it takes two GPUs"}
    path, pair = folder / f"{name}.json", folder
    arguments = [
        "--stage",
        name,
        "--scale",
        chosen.scale,
        "--device",
        chosen.device,
        "--output",
        str(path),
    ]
    if name == "answers":
        try:
            pair = link_pair(chosen.pair, folder)
        except Mismatch as error:
            return {"status": "skipped", "reason": str(error)}
        arguments += ["--pair", str(pair), *(["--data", chosen.data] if chosen.data else [])]
    with (folder / f"{name}.log").open("w") as log:
        code = _run_group(
            [sys.executable, "-m", "semspec_bench.gpu", *arguments], log.fileno(), limit_s
        )
    facts: Facts = read_json(path) if path.exists() else {"rows": []}
    path.unlink(missing_ok=True)
    reason = facts.pop("error", f"it ended with {code}; {name}.log says why")
    light = record.stages.get("light", {}).get("facts")
    if name == "answers":
        facts |= rows_of(pair)
    elif light and name in ("target", "draft", "plain", "tp2"):
        shape = SCALES[chosen.scale].draft if name == "draft" else SCALES[chosen.scale].target
        gpus = 2 if name == "tp2" else 1
        facts = with_floors(
            facts,
            shape,
            PeakRates(gpus * light["bandwidth_bytes_per_s"], gpus * light["flops_per_s"]),
        )
    if code == 0:
        return {"status": "done", "facts": facts}
    return {
        "status": "failed",
        "facts": facts,
        "reason": reason if code else f"it was killed after {limit_s:.0f} s",
    }


def _run_group(command: Sequence[str], output: int, limit_s: float) -> int | None:
    """Run a process in a group of its own, which ends with this process; return its exit status, None at the limit."""
    process = subprocess.Popen(
        bound_command(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stage_main(chosen: Namespace, results: Results) -> int:
    """Run a stage in this process and return the exit code. Rows before an error are kept."""
    torch.set_num_threads(1)
    scale = SCALES[chosen.scale]
    try:
        if chosen.stage == "answers":
            total = gpu_state().get("memory.total", "0").split()[0]  # MiB
            measure_answers(
                Path(chosen.pair), [int(total) << 20] * num_gpus(chosen.device), scale, chosen.data
            )
        else:
            asyncio.run(measure(chosen.stage, scale, chosen.device, results))
    except Exception as error:
        traceback.print_exc()
        results.note(error=f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")
        return 1
    return 0


async def measure(name: str, scale: Scale, device: str, results: Results) -> None:
    if name == "light":
        return results.note(**measure_peak_rates(scale, torch.device(device)))
    # These imports need a service's packages.
    from semspec_bench.gpu.parity import measure_parity
    from semspec_bench.gpu.series import measure_shape

    if name == "parity":
        return await measure_parity(results, scale.num_problems, device)
    if name == "draft":
        return await measure_shape(results, scale.draft, scale.draft_sizes, device)
    if name == "tp2":
        return await measure_shape(results, scale.target, scale.tp2_sizes, device, num_gpus=2)
    await measure_shape(
        results, scale.target, scale.target_sizes, device, has_hooks=name == "target"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if a stage failed, or a comparison does not hold."""
    chosen = _parser().parse_args(arguments)
    if chosen.stage:
        return stage_main(chosen, Results(chosen.output))
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print(
            "no CUDA device here: nothing measured (--scale tiny --device cpu tries the code without one)"
        )
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stage ends with this process
    environment = describe(chosen.device)
    folder = (
        chosen.output
        or RESULTS / f"gpu-{re.sub(r'[^a-z0-9]+', '-', environment['device'].lower())}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    chosen.pair = chosen.pair or DEFAULT_PAIRS[chosen.scale]
    head = {"command": "make bench-gpu", "scale": chosen.scale, "environment": environment}
    record = Record(folder, head, 60 * (chosen.minutes or MINUTES[chosen.scale]))
    if (
        record.stages.get("answers", {}).get("facts", {}).get("pair")
        != folder_of(chosen.pair, folder).name
    ):
        record.stages.pop("answers", None)
    for name, seconds in STAGES_OF_SCALE[chosen.scale].items():
        record.stage(name, *seconds, partial(run_stage, name, chosen, folder, record))
    lines = list(summary(record.stages))
    (folder / "summary.txt").write_text("\n".join([*lines, ""]))
    print(*lines, f"written: {folder}/gpu.json", f"to send: {bundle(folder)}", sep="\n")
    return int(not holds(record.stages))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m semspec_bench.gpu", description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        help="folder for gpu.json and logs; default benchmarks/results/gpu-DEVICE",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="time budget, by default 30, or 15 for a quarter-hour; stages that do not fit are left out",
    )
    parser.add_argument(
        "--pair",
        help="its folder, or DRAFT,TARGET; default: one of the scale's, if the hub's cache has it",
    )
    parser.add_argument("--data", help="JSONL file of math500, for a machine without the hub")
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="paper",
        help="the paper's sizes, those timed once and real weights of a small pair, tiny models, or a target for a CPU",
    )
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
