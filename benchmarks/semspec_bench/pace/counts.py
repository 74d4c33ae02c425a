"""Counts of paced steps, and of those that the host could not make in time."""

import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from semspec.types import Writer

TOLERANCE = 0.1
"""A step is late if it ends later than emulated by more than this share of its time."""
MAX_LATE_SHARE = 0.05
"""Share of late steps up to which a run has a result."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Steps of an engine so far."""

    num_steps: float = 0
    num_late: float = 0
    """Steps that ended late, since the host took longer than the emulated GPU."""
    emulated_s: float = 0.0
    """Time that all steps are to last."""
    late_s: float = 0.0
    """Time by which late steps lasted longer."""
    computed_s: float = 0.0
    """Time that the host computed."""

    @property
    def late_share(self) -> float:
        return self.num_late / self.num_steps if self.num_steps else 0.0

    def plus(self, other: "Counts", sign: int = 1) -> "Counts":
        return Counts(*(a + sign * b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def minus(self, other: "Counts") -> "Counts":
        return self.plus(other, -1)


_FORMAT = f"<{len(fields(Counts))}d"


class CountsFile:
    """Counts that another process may read at any time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self.write(Counts())

    def close(self) -> None:
        self._file.close()

    def write(self, counts: Counts) -> None:
        os.pwrite(self._file.fileno(), struct.pack(_FORMAT, *astuple(counts)), 0)


def read_counts(folder: Path, roles: Iterable[Writer]) -> Mapping[Writer, Counts]:
    """Counts of all engines of each role, from files `ROLE-*.counts`."""
    totals = {}
    for role in roles:
        totals[role] = Counts()
        for path in folder.glob(f"{role}-*.counts"):
            totals[role] = totals[role].plus(Counts(*struct.unpack(_FORMAT, path.read_bytes())))
    return totals
