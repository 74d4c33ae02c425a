"""One generation as the bench keeps it: a line of `records.jsonl`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """What one configuration did with one problem."""

    label: str
    seed: int
    """Of the problem and of the request."""
    is_right: bool
    latency_s: float
    """At the client, from the request to the whole answer."""
    num_tokens: int
    num_target_tokens: int
    num_accepted: int
    num_rejected: int
    stages_ms: Mapping[str, float]
    """Wall time by stage, summed over the trace."""
    text_digest: str
    """Equal digests are equal answers."""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> "Record":
        return cls(**row)
