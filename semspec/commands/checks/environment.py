"""Checks of Python, CPU and GPU."""

import os
import platform
import shutil
from collections.abc import Iterator

from semspec.commands.checks import Check, ok, run_check, warn


def check_environment() -> Iterator[Check]:
    yield ok("python", platform.python_version())
    yield run_check("torch", _torch)
    yield run_check("cores", _cores)


def _torch() -> Check:
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        return ok(
            "torch", f"{torch.__version__}, {name}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"
        )
    if shutil.which("nvidia-smi"):
        remedy = "TORCH_VARIANT=cuda make setup, and see that the driver is recent enough"
        return warn(
            "torch", f"{torch.__version__} sees no GPU, though nvidia-smi is installed", remedy
        )
    return ok("torch", f"{torch.__version__}, no GPU: CPU")


def _cores() -> Check:
    from semspec.device import num_cores  # imports torch

    cores = num_cores()
    threads = {
        role: os.environ.get(f"SEMSPEC_{role.upper()}_THREADS", "by default")
        for role in ("draft", "target")
    }
    words = f"{cores}; threads: {', '.join(f'{role} {number}' for role, number in threads.items())}"
    if sum(int(number) for number in threads.values() if number.isdecimal()) > cores:
        remedy = (
            "lower SEMSPEC_DRAFT_THREADS and SEMSPEC_TARGET_THREADS, or give the machine more cores"
        )
        return warn("cores", f"{words}: more threads than cores wait for each other", remedy)
    return ok("cores", words)
