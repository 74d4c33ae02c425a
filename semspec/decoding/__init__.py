"""Strategies that decide who writes each segment: pure async algorithms over three protocols."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from semspec.core import Event, Generation, Strategy
from semspec.decoding import semantic, single
from semspec.decoding.protocols import Drafter, Target, Verifier

__all__ = ["STRATEGIES", "Drafter", "Roles", "Target", "Verifier", "decode"]


@dataclass(frozen=True, slots=True)
class Roles:
    """Who plays the three roles."""

    drafter: Drafter
    target: Target
    verifier: Verifier


def decode(generation: Generation, roles: Roles) -> AsyncGenerator[Event, None]:
    """Run `generation` by its strategy: records of kept segments in order, then `Finished`.

    Closing the generator cancels whatever the models do for it. The same generation on equivalent roles yields the same
    segments, whatever was cached, retried or resumed.

    Raises: what the target raises; the loss of the drafter or the verifier only makes the target write alone.
    """
    return STRATEGIES[generation.strategy](generation, roles)


def _semantic(generation: Generation, roles: Roles) -> AsyncGenerator[Event, None]:
    judge = semantic.by_probes(roles.verifier)
    return semantic.run(generation, roles.drafter, roles.target, judge)


def _random(generation: Generation, roles: Roles) -> AsyncGenerator[Event, None]:
    judge = semantic.at_random(generation.sampling.seed)
    return semantic.run(generation, roles.drafter, roles.target, judge)


def _target(generation: Generation, roles: Roles) -> AsyncGenerator[Event, None]:
    return single.run(generation, roles.target, purpose="target")


def _draft(generation: Generation, roles: Roles) -> AsyncGenerator[Event, None]:
    return single.run(generation, roles.drafter, purpose="draft")


STRATEGIES: dict[Strategy, Callable[[Generation, Roles], AsyncGenerator[Event, None]]] = {
    "semantic": _semantic,
    "random": _random,
    "target": _target,
    "draft": _draft,
}
