"""A case of an attack is JSON: it is drawn from a seed, kept in a file when it finds something, and tried again.

How bad a finding is:

| severity | what |
|---|---|
| critical | a process ends, also by a signal in native code; data of another owner is seen; state is lost or changed |
| high | the neighbour, who asks under another key all the while, gets an error or waits longer than 10 s; a request has no end |
| medium | a server error or a traceback for a client's mistake; the neighbour waits longer than 3 times its quiet median, and than 1.5 s, for 5 s in a row; memory grows by more than 200 MB, and stays |
| low | an answer that is not as described, or a refusal that does not say what is wrong |

On a busy machine a wait tells little: a case that made the neighbour wait is tried again alone, against a new quiet
median, and counts only if it does so again.
"""  # noqa: E501

import enum
import hashlib
import json
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.attacks.victim import Victim

Case = dict[str, Any]
Run = Callable[[Case], Awaitable[None]]
"""Does what a case says. Raises: Found."""
Draw = Callable[[str, int], list[Case]]
"""`draw(seed, number)`: so many cases; the same for a seed."""


class Severity(enum.StrEnum):
    """See the table above; KEPT is no finding."""

    KEPT = "kept"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


KEPT, LOW, MEDIUM, HIGH, CRITICAL = Severity


class Found(Exception):
    """A finding; one of the machine's load counts only if it is found again."""

    def __init__(self, severity: Severity, why: str, is_of_load: bool = False) -> None:
        super().__init__(why)
        self.severity, self.why, self.is_of_load = severity, why, is_of_load


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    num_cases: int
    opened: Callable[["Victim", Path], AbstractAsyncContextManager[tuple[Draw, Run]]]
    """`opened(victim, folder)`, with an empty folder for its files."""
    at_once: int = 1
    """Cases that run together."""


@dataclass(frozen=True, slots=True)
class Result:
    """One case and what was found."""

    family: str
    case: Case
    severity: Severity = KEPT
    why: str = ""
    is_of_load: bool = False

    def line(self) -> str:
        """Of ASCII."""
        told = f"{self.severity}: {self.family}, {json.dumps(self.case)[:300]}: {self.why}"
        return told.encode("ascii", "backslashreplace").decode()

    def keep(self, folder: Path) -> Path:
        """A file from which the case can be tried again."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=1)
        path = (
            folder
            / f"{self.family.replace(' ', '-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
        )
        path.write_text(text)
        return path


def seed_of_commit() -> str:
    """The hash of the commit, so that each commit draws other cases; `0` where there is no git."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, check=False
    )
    return found.stdout.decode().strip()[:12] or "0"
