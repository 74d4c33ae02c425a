"""The torch device that a setting names, and copies to it."""

import ctypes
import gc
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from semspec.errors import Mismatch


def device_of(name: str, user: str) -> str:
    """Return `name` (auto, cpu, cuda or cuda:N) with "auto" resolved. Raises: Mismatch when `user` cannot have it."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if num_gpus else "cpu"
    _, _, index = name.partition(":")
    if name.startswith("cuda") and int(index or 0) >= num_gpus:
        seen = (
            f"torch sees {num_gpus} here"
            if torch.backends.cuda.is_built()
            else "this torch is built without CUDA"
        )
        raise Mismatch(f"no device {name!r} for {user}: {seen}", remedy="choose 'cpu' or 'auto'")
    return name


def on_device(values: Sequence[float], device: torch.device) -> Tensor:
    """Return `values` as a tensor; copying it to a GPU does not wait for the work queued there."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def num_cores() -> int:
    """Return the processor cores that this process may use, by its affinity and its container's quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    with suppress(OSError, ValueError):  # "max", no quota; systems without control groups
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        cores = min(cores, max(1, quota // period))
    return cores


def release_memory() -> None:
    """Return freed memory to the system. glibc keeps it otherwise: over a gigabyte after a model of 1.5B is loaded."""
    gc.collect()
    with suppress(OSError, AttributeError):  # of other C libraries
        ctypes.CDLL(None).malloc_trim(0)
