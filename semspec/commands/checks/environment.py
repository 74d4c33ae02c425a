"""Checks of Python, packages, CPU and GPU."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from semspec.commands.checks import Check, attempt, fail, ok, warn
from semspec.installation import install_command

NEEDED_EXTRAS = ("", "gateway", "engine", "cli")
"""Extras that the stack requires."""


def check_environment() -> Iterator[Check]:
    yield ok("python", platform.python_version())
    yield from check_packages()
    yield attempt("torch", _torch)
    yield attempt("cores", _cores)


def check_packages() -> Iterator[Check]:
    """One check per missing or outdated package, or one for all if there are none."""
    try:
        requirements = requires("semspec") or []
    except PackageNotFoundError:
        yield warn(
            "packages",
            "semspec is not installed, so its requirements are unknown",
            "pip install -e .",
        )
        return
    problems = [check for requirement in requirements if (check := check_requirement(requirement))]
    yield from problems or [ok("packages", "all there, none older than its floor")]


def check_requirement(text: str) -> Check | None:
    """The problem with one requirement of the package's metadata.

    None if it is satisfied, or if it belongs to an extra that the stack does not require.
    """
    requirement = Requirement(text)
    name, marker = requirement.name, requirement.marker
    extra = next(
        (extra for extra in NEEDED_EXTRAS if marker is None or marker.evaluate({"extra": extra})),
        None,
    )
    if extra is None:
        return None
    try:
        found = version(name)
    except PackageNotFoundError:
        return fail("packages", f"{name} is not installed", install_command(extra or "serve"))
    if not requirement.specifier.contains(found, prereleases=True):
        wanted = requirement.specifier
        return fail("packages", f"{name} {found} is not {wanted}", f"pip install '{name}{wanted}'")
    return None


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
