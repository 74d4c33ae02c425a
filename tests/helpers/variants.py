"""The strategies under test, those of experiments included, and their variants by a name each."""

from dataclasses import fields, replace
from typing import Any

from semspec.decoding import STRATEGIES as PRODUCT
from semspec.decoding import Generation, Options
from semspec_bench.strategies import STRATEGIES

__all__ = ["OF_PRODUCT", "PLAIN", "STRATEGIES", "VARIANTS", "alone", "changed"]

PLAIN = STRATEGIES["target"](Options())
"""The strategy of generations that `changed` gives another."""

VARIANTS: dict[str, dict[str, Any]] = {name: {"strategy": name} for name in STRATEGIES} | {
    "semantic+token-level": {"strategy": "semantic", "rewrite": "token-level"},
    "semantic+retrieval": {"strategy": "semantic", "rewrite": "retrieval"},
    "last-hidden": {"strategy": "semantic", "probes": "last-hidden"},
    "surprisal": {"strategy": "semantic", "probes": "surprisal"},
}
"""Name -> fields of a request's `semspec` object."""
OF_PRODUCT = [name for name, variant in VARIANTS.items() if variant["strategy"] in PRODUCT]
_OPTIONS = {field.name for field in fields(Options)}


def changed(generation: Generation, strategy: str = "", **changes: Any) -> Generation:
    """`generation` by another variant, with fields of it or of its strategy's options replaced."""
    changes = (VARIANTS[strategy] if strategy else {}) | changes
    given = {name: changes.pop(name) for name in _OPTIONS & changes.keys()}
    options = replace(generation.strategy.options, **given)
    own = STRATEGIES[changes.pop("strategy", generation.strategy.name)](options)
    if "answer_strategy" in changes:
        changes["answer_strategy"] = STRATEGIES[changes["answer_strategy"]](options)
    return replace(generation, strategy=own, **changes)


def alone(generation: Generation) -> Generation:
    """`generation` by the target alone."""
    return replace(generation, strategy=PLAIN, answer_strategy=None)
