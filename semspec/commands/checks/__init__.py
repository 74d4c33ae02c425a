"""What `semspec doctor` looks at: each function yields checks and imports what it needs when it is called."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding, in one line."""

    name: str
    level: Level
    message: str
    remedy: str = ""
    """What to do about it; empty if all is well."""


def ok(name: str, message: str) -> Check:
    return Check(name, "ok", message)


def warn(name: str, message: str, remedy: str) -> Check:
    """The stack runs, but not as well as it could."""
    return Check(name, "warn", message, remedy)


def fail(name: str, message: str, remedy: str) -> Check:
    """The stack cannot run."""
    return Check(name, "fail", message, remedy)
