"""The checks of `semspec doctor`: each function yields checks and imports optional packages only when called."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from semspec.errors import InvalidRequest, SemspecError
from semspec.installation import install_command

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check, in one line."""

    name: str
    level: Level
    message: str
    remedy: str = ""
    """How to solve the problem; empty if there is none."""


def ok(name: str, message: str) -> Check:
    return Check(name, "ok", message)


def warn(name: str, message: str, remedy: str) -> Check:
    """A problem with which the stack still runs."""
    return Check(name, "warn", message, remedy)


def fail(name: str, message: str, remedy: str) -> Check:
    """A problem with which the stack cannot run."""
    return Check(name, "fail", message, remedy)


def run_check(name: str, look: Callable[[], Check | str]) -> Check:
    """Run a check. `look` returns its result or the message of a passed check, or raises the error of a failed one."""
    try:
        found = look()
    except ImportError as error:
        return fail(
            name, f"cannot be checked: {error.name} is not installed", install_command("serve")
        )
    except InvalidRequest as error:
        usual = "correct it in the environment or in pair.json; docs/settings.md lists all"
        return fail(name, error.message, error.remedy or usual)
    except SemspecError as error:
        hint = error.operator_hint and f" ({error.operator_hint})"
        return fail(name, error.message, (error.remedy + hint).strip())
    return ok(name, found) if isinstance(found, str) else found
