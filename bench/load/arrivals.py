"""Who comes when: Poisson arrivals of two owners, one of them greedy."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Owner = Literal["greedy", "modest"]
OWNERS: tuple[Owner, Owner] = ("greedy", "modest")
GREEDY_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Stage:
    """A load, and how its clients take a refusal."""

    name: str
    load: float
    """Arrivals, as a share of what the stack can answer."""
    is_patient: bool = True
    """Whether a refused client waits as long as it is told, or asks again at once."""


STAGES = (Stage("0.5x", 0.5), Stage("1x", 1.0), Stage("2x", 2.0), Stage("2x, impatient", 2.0, is_patient=False))


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    owner: Owner


def arrivals(rate: float, duration_s: float, rng: random.Random) -> Iterator[Arrival]:
    """`rate` a second on average, each after a wait that knows nothing of the last one."""
    at_s = rng.expovariate(rate)
    while at_s < duration_s:
        yield Arrival(at_s, "greedy" if rng.random() < GREEDY_SHARE else "modest")
        at_s += rng.expovariate(rate)
