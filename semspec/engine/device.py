"""The torch device that a setting names."""

import ctypes
import gc
from contextlib import suppress

import torch

from semspec.errors import Mismatch


def device_of(name: str, user: str) -> str:
    """`name` (auto, cpu, cuda or cuda:N), with "auto" resolved. Raises: Mismatch when `user` cannot have it."""
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
        raise Mismatch(f"no device {name!r} for {user}: {seen}; take 'cpu' or 'auto'")
    return name


def release_memory() -> None:
    """Return freed memory to the system. glibc keeps it otherwise: over a gigabyte after a model of 1.5B is loaded."""
    gc.collect()
    with suppress(OSError, AttributeError):  # of other C libraries
        ctypes.CDLL(None).malloc_trim(0)
