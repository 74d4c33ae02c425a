"""Hardware, software and models of a run."""

import hashlib
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoConfig

import semspec
from semspec.device import num_cores
from semspec.engine.architecture import context_window
from semspec.errors import InvalidRequest
from semspec.pairs import ROLES

ROOT = Path(semspec.__file__).resolve().parents[1]
MEASURED_CODE = ("semspec", "services", "gateway", "benchmarks/semspec_bench/runners")
"""Folders with the code that produces answers."""

Say = Callable[[str], None]
PROMPT_SHARE = 5
"""A prompt may have the window divided by this: QwQ's 40,960 tokens leave 32,768 for the answer."""
PACKAGES = ("torch", "transformers", "grpcio", "fastapi", "redis", "safetensors")


def environment(pair: Path) -> dict[str, Any]:
    """Return the facts needed to interpret and reproduce the numbers."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "num_cores": num_cores(),
        "devices": [
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        ],
        "versions": dict(_versions()),
        "models": {role: _model_name(pair / role) for role in ROLES},
        "weights_bytes": {
            role: sum(path.stat().st_size for path in (pair / role).glob("*.safetensors"))
            for role in ROLES
        },
    }


def _model_name(folder: Path) -> str:
    """Return the folder's name; for a link into the hub's cache, the model's name on the hub."""
    parts = folder.resolve().parts
    return (
        parts[-3].removeprefix("models--").replace("--", "/")
        if "snapshots" in parts[-2:-1]
        else parts[-1]
    )


def answer_tokens(pair: Path, wanted: int, say: Say) -> int:
    """Return the token budget of an answer: `wanted`, or what the smaller window leaves, which is reported.

    Raises: InvalidRequest.
    """
    window, role = min((_window(pair / role), role) for role in ROLES)
    found = min(wanted, window - window // PROMPT_SHARE)
    if found < wanted:
        say(
            f"answers have {found:,} tokens, not {wanted:,}: the {role}'s window has {window:,}, with the prompt"
        )
    return found


def _window(model: Path) -> int:
    """Return a checkpoint's context window (prompt and answer) in tokens. Raises: InvalidRequest."""
    path = model / "config.json"
    if not path.is_file():
        raise InvalidRequest(
            f"{path} does not exist",
            remedy="give a folder with draft/, target/ and probes/ as --pair",
        )
    return context_window(AutoConfig.from_pretrained(model, trust_remote_code=False))


def code_digest() -> str:
    """Return the digest of the code that produces answers; runs with different code are kept apart."""
    digest = hashlib.sha256()
    for path in sorted(
        {path for folder in MEASURED_CODE for path in (ROOT / folder).rglob("*.py")}
    ):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def memory_bytes(processes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the peak resident memory and current GPU memory of each process, if the system reports them."""
    on_gpu = _gpu_bytes()
    memory: dict[str, dict[str, int]] = {}
    for role, pid in processes.items():
        with suppress(psutil.Error):
            memory[role] = {"resident": _peak_bytes(pid)} | (
                {"gpu": on_gpu[pid]} if pid in on_gpu else {}
            )
    return memory


def _peak_bytes(pid: int) -> int:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return int(psutil.Process(pid).memory_info().rss)


def _gpu_bytes() -> dict[int, int]:
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        lines = subprocess.run(
            query, capture_output=True, text=True, timeout=10, check=True
        ).stdout.splitlines()
        return {
            int(pid): int(mebibytes) << 20 for pid, mebibytes in (line.split(",") for line in lines)
        }
    return {}


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    return platform.processor()


def _versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            yield name, version(name)
