"""The checks of `semspec doctor`: each function yields checks and imports optional packages only when called."""

from dataclasses import dataclass
from typing import Literal

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


def refused(name: str, message: str, remedy: str = "") -> Check:
    """The failed check for an error whose message ends with `; ` and the remedy."""
    words, separator, own = message.rpartition("; ")
    return fail(name, words, own) if separator else fail(name, message, remedy)
