"""Strategies that decide who writes each segment: pure async algorithms over three protocols."""

from collections.abc import AsyncGenerator, Callable
from functools import partial

from semspec.decoding import auto, semantic, single, spec_reason, spec_thinking, token_level
from semspec.decoding.costs import Costs
from semspec.decoding.fallback import events
from semspec.decoding.progress import Progress, Step
from semspec.decoding.protocols import Backends, Drafter, Target, Verifier
from semspec.decoding.single import by_target
from semspec.types import Event, Generation, Strategy, Writer

__all__ = ["STRATEGIES", "Backends", "Costs", "Drafter", "Target", "Verifier", "decode"]


def decode(generation: Generation, backends: Backends, costs: Costs | None = None) -> AsyncGenerator[Event, None]:
    """Run `generation` by its strategy: records of kept segments in order, then `Finished`.

    With `show_drafts`, `Drafted` goes before the records that decide on what it holds; segments of it that no record
    mentions were dropped. `costs` is what `auto` knows from generations before, and adds to.

    Closing the generator cancels whatever the models do for it. The same generation on equivalent roles yields the same
    segments, whatever was cached, retried or resumed; but `token-level`, when sampled and resumed, yields others of
    the same distribution, and `auto` goes by the time things take.

    Raises: what the target raises; the loss of the drafter or the verifier only makes the target write alone.
    """
    progress = Progress(generation, generation.context)
    rounds = STRATEGIES[generation.strategy]
    if rounds is auto.rounds:
        rounds = partial(auto.rounds, costs=costs)
    return events(progress, rounds(progress, backends), backends.target)


Rounds = Callable[[Progress, Backends], AsyncGenerator[Step, None]]
"""A strategy: the segments that follow, until the end. Raises: BackendUnavailable, and what the target raises."""


def _by_meaning(progress: Progress, backends: Backends, probes: str = "") -> AsyncGenerator[Step, None]:
    return semantic.rounds(
        progress, backends, semantic.by_probes(backends.verifier, probes), by_target(backends.target)
    )


def _hybrid(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    return semantic.rounds(progress, backends, semantic.by_probes(backends.verifier), token_level.with_draft(backends))


def _at_random(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    judge = semantic.at_random(progress.generation.sampling.seed)
    return semantic.rounds(progress, backends, judge, by_target(backends.target))


def _spec_reason(progress: Progress, backends: Backends) -> AsyncGenerator[Step, None]:
    return spec_reason.rounds(progress, backends, by_target(backends.target))


STRATEGIES: dict[Strategy, Rounds] = {
    "semantic": _by_meaning,
    "auto": auto.rounds,
    "semantic+token-level": _hybrid,
    "token-level": token_level.rounds,
    "spec-reason": _spec_reason,
    "spec-thinking": spec_thinking.rounds,
    "last-hidden": partial(_by_meaning, probes="last-hidden"),
    "surprisal": partial(_by_meaning, probes="surprisal"),
    "random": _at_random,
    "target": partial(single.rounds, writer=Writer.TARGET),
    "draft": partial(single.rounds, writer=Writer.DRAFT),
}
