"""Which replica gets a call: pure functions over what is known of each.

Rendezvous hashing (Thaler and Ravishankar 1998) gives every session an order of the replicas of its own. The first one
gets its calls, and so holds its keys and values, unless it has too much to do (consistent hashing with bounded loads,
Mirrokni et al. 2016). A replica that comes or goes moves the sessions that have it first, and no others.
"""

import hashlib
import random
from collections.abc import Sequence
from enum import IntEnum
from math import ceil
from statistics import fmean
from typing import Protocol, TypeVar

BALANCE = 1.25
"""How far above the mean a replica's load may rise for the sake of its sessions."""


class Health(IntEnum):
    """What is known of a replica, the best first."""

    SERVING = 0
    UNKNOWN = 1
    """Not asked yet, or a call has failed since."""
    NOT_SERVING = 2
    """Loading, draining, or not there: it answers at once, though hardly with what was wanted."""
    UNREACHABLE = 3
    """It does not answer. No call is given to it, and none is left waiting for it."""


class Candidate(Protocol):
    """What a choice goes by."""

    @property
    def address(self) -> str: ...

    @property
    def health(self) -> Health: ...

    @property
    def num_in_flight(self) -> int: ...

    @property
    def is_overloaded(self) -> bool:
        """Whether it said so a moment ago."""
        ...


C = TypeVar("C", bound=Candidate)


def best(candidates: Sequence[C], session: str) -> C:
    """Who gets the next call of `session`: of the healthiest, the first in the session's order with room; without a
    session, the one with the fewest calls under way. Raises: ValueError when there are no candidates."""
    healthiest = min(candidate.health for candidate in candidates)
    equals = [candidate for candidate in candidates if candidate.health is healthiest]
    if not session:
        return min(equals, key=lambda one: (one.is_overloaded, one.num_in_flight, random.random()))
    room = capacity([one.num_in_flight for one in equals])
    return min(equals, key=lambda one: (one.is_overloaded or one.num_in_flight >= room, -weight(session, one.address)))


def capacity(loads: Sequence[int]) -> int:
    """Most calls under way at one replica, the next one included, given those at each. At least one has room."""
    return ceil(BALANCE * fmean(loads)) + 1


def weight(session: str, address: str) -> int:
    """How much a session is drawn to a replica: uniform in [0, 2^64)."""
    name = f"{session}\0{address}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
