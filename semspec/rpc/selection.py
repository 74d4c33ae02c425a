"""The choice of a replica for each call.

Rendezvous hashing (Thaler and Ravishankar 1998) ranks the replicas for every session. The first replica gets the
session's calls, so its KV cache holds the session's prefix. An overloaded replica is skipped (consistent hashing with
bounded loads, Mirrokni et al. 2016). Adding or removing a replica moves only the sessions that rank it first.
"""

import hashlib
import random
from collections.abc import Sequence
from math import ceil
from statistics import fmean
from typing import Protocol, TypeVar

from semspec.rpc.replica import Health

BALANCE = 1.25
"""Maximum load of a replica, relative to the mean, up to which its sessions stay on it."""


class Candidate(Protocol):
    """The properties of a replica that the selection uses."""

    address: str
    health: Health
    num_in_flight: int

    @property
    def is_overloaded(self) -> bool:
        """Return whether it raised Overloaded recently."""


K = TypeVar("K", bound=Candidate)


def best(candidates: Sequence[K], session: str) -> K:
    """Choose the replica for the next call of `session`.

    Among the replicas with the best health: the first in the session's ranking that is below `capacity`; without a
    session, the one with the fewest calls in flight. Raises: ValueError when there are no candidates.
    """
    healthiest = min(candidate.health for candidate in candidates)
    equals = [candidate for candidate in candidates if candidate.health is healthiest]
    if len(equals) == 1:
        return equals[0]
    if not session:
        return min(
            equals,
            key=lambda candidate: (
                candidate.is_overloaded,
                candidate.num_in_flight,
                random.random(),
            ),
        )
    limit = capacity([candidate.num_in_flight for candidate in equals])
    return min(
        equals,
        key=lambda candidate: (
            candidate.is_overloaded or candidate.num_in_flight >= limit,
            -weight(session, candidate.address),
        ),
    )


def capacity(loads: Sequence[int]) -> int:
    """Return the most calls in flight at one replica, with the next call, for these loads; one is always below it."""
    return ceil(BALANCE * fmean(loads)) + 1


def weight(session: str, address: str) -> int:
    """Return the rendezvous weight of a replica for a session: uniform in [0, 2^64)."""
    name = f"{session}\0{address}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
