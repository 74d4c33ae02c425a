"""Checks of Python, packages, CPU and GPU."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from semspec.commands.checks import Check, fail, ok, warn

LEAST_PYTHON = (3, 11)
NEEDED_EXTRAS = {"": fail, "gateway": fail, "engine": fail, "cli": warn}
"""Extras that the stack requires, and the level of a missing package in each."""

_REQUIREMENT = re.compile(r"""([\w.-]+) (?:\[[^]]*\])? \s* ([^;]*) (?:;.*extra\s*==\s*["']([\w-]+)["'])?""", re.VERBOSE)


def check_environment() -> Iterator[Check]:
    yield _python(sys.version_info[:3])
    yield from check_packages()
    yield _torch()
    yield _cores()


def _python(found: tuple[int, int, int]) -> Check:
    words = ".".join(map(str, found))
    if found < LEAST_PYTHON:
        wanted = ".".join(map(str, LEAST_PYTHON))
        return fail("python", f"{words} is older than {wanted}", f"make the environment with Python {wanted} or newer")
    return ok("python", words)


def check_packages() -> Iterator[Check]:
    """One check per missing or outdated package, or one for all if there are none."""
    try:
        requirements = requires("semspec") or []
    except PackageNotFoundError:
        yield warn("packages", "semspec is not installed, so its requirements are unknown", "pip install -e .")
        return
    problems = [check for requirement in requirements if (check := check_requirement(requirement))]
    yield from problems or [ok("packages", "all there, none older than its floor")]


def check_requirement(requirement: str) -> Check | None:
    """The problem with one requirement of the package's metadata.

    None if it is satisfied, or if it belongs to an extra that the stack does not require.
    """
    matched = _REQUIREMENT.match(requirement)
    if matched is None or (matched[3] or "") not in NEEDED_EXTRAS:
        return None
    name, specifiers, extra = matched[1], matched[2].strip(), matched[3] or ""
    found, complain = _version(name), NEEDED_EXTRAS[extra]
    if found is None:
        target = f"semspec[{extra}]" if extra else "semspec"
        return complain("packages", f"{name} is not installed", f"pip install '{target}'")
    if not satisfies(found, specifiers):
        return complain("packages", f"{name} {found} is not {specifiers}", f"pip install '{name}{specifiers}'")
    return None


def satisfies(found: str, specifiers: str) -> bool:
    """Whether a version satisfies bounds such as `>=2.1,<3`; operators other than >=, < and == are ignored."""
    numbers = _numbers(found)
    for specifier in filter(None, map(str.strip, specifiers.split(","))):
        bound = _numbers(specifier.lstrip("<>=!~ "))
        if specifier.startswith(">=") and numbers < bound:
            return False
        if specifier.startswith("==") and numbers != bound:
            return False
        if specifier.startswith("<") and not specifier.startswith("<=") and numbers >= bound:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers of a version's release part without trailing zeros: 2.10.0+cpu is 2, 10."""
    release = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(number) for number in release[0].split(".")] if release else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _torch() -> Check:
    try:
        import torch
    except ImportError as error:
        return fail("torch", f"torch is not installed ({error})", "pip install 'semspec[engine]', or `make setup`")
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        return ok("torch", f"{torch.__version__}, {name}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free")
    if shutil.which("nvidia-smi"):
        remedy = "TORCH_VARIANT=cuda make setup, and see that the driver is recent enough"
        return warn("torch", f"{torch.__version__} sees no GPU, though nvidia-smi is installed", remedy)
    return ok("torch", f"{torch.__version__}, no GPU: CPU")


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = {role: os.environ.get(f"SEMSPEC_{role.upper()}_THREADS", "1") for role in ("draft", "target")}
    words = f"{cores}; threads: {', '.join(f'{role} {number}' for role, number in threads.items())}"
    if sum(int(number) for number in threads.values() if number.isdecimal()) > cores:
        remedy = "lower SEMSPEC_DRAFT_THREADS and SEMSPEC_TARGET_THREADS, or give the machine more cores"
        return warn("cores", f"{words}: more threads than cores wait for each other", remedy)
    return ok("cores", words)
