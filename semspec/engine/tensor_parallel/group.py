"""The ranks of one model as a process group: NCCL between GPUs, Gloo on a CPU, never beyond this machine."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from semspec.engine.decoder import Sum
from semspec.engine.tensor_parallel.share import Share
from semspec.errors import Mismatch

GROUP_TIMEOUT = timedelta(minutes=2)
"""Longest wait for the other ranks, which are fed alike: beyond it one of them hangs."""


def check_vacant() -> None:
    """Raises: Mismatch when this process has joined a group already."""
    if dist.is_initialized():
        raise Mismatch("this process runs a split model already; give the other a process of its own")


def join(rendezvous: Path, share: Share, device: torch.device) -> Sum:
    """Meet the other ranks at the file `rendezvous`. Raises: Mismatch when they cannot sum up a tensor."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, loopback)  # its sockets ask for no password
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{rendezvous}",
            rank=share.rank,
            world_size=share.num_ranks,
            timeout=GROUP_TIMEOUT,
        )
        summed(torch.ones(1, device=device)).item()  # connections are made by the first sum: ready means ready
    except RuntimeError as error:
        raise Mismatch(f"rank {share.rank} of {share.num_ranks} cannot reach the others: {error}") from error
    return summed


def summed(tensor: Tensor) -> Tensor:
    """See `semspec.engine.decoder.Sum`."""
    dist.all_reduce(tensor)
    return tensor


def leave() -> None:
    """End the group, as every rank does."""
    if dist.is_initialized():
        dist.destroy_process_group()
