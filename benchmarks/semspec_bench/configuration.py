"""Configurations to compare: a strategy or a peer's method, its options, and its runner."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from semspec.decoding.generation import RewriteName
from semspec.errors import InvalidRequest
from semspec.types import AcceptanceRule, RetrievalSource, Segmentation
from semspec_bench.strategies import STRATEGIES

RunnerName = Literal["gateway", "in-process", "transformers", "vllm", "server"]

PEER_METHODS: Mapping[RunnerName, tuple[str, ...]] = {
    "transformers": ("target", "assisted", "lookup"),
    "vllm": ("target", "draft_model", "ngram"),
}
"""Methods of other engines for the same pair: the target alone, with a draft model, and with prompt lookup."""


def _one_of(*names: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return text

    return convert


_KNOBS: Mapping[str, Callable[[str], Any]] = {
    "gamma": int,
    "num_candidates": int,
    "num_speculative_tokens": int,
    "rewrite": _one_of(*get_args(RewriteName)),
    "probes": str,
    "segmentation": _one_of(*Segmentation),
    "rule": _one_of(*get_args(AcceptanceRule)),
    "threshold": float,
    "source": _one_of(*get_args(RetrievalSource)),
    "exact_answer": _one_of("on"),
}
_OPERATORS: Mapping[str, Callable[[str], Any]] = {
    "ahead": _one_of("on", "off"),
    "repeats": _one_of("refused", "allowed"),
}
"""Options that a request cannot set, only the runner in this process. `repeats`: see `semspec.decoding.repeats`."""
_PEER_KNOBS: Mapping[str, Callable[[str], Any]] = {"tokens": int}


@dataclass(frozen=True, slots=True)
class Configuration:
    """One row of a bench: `target`, `semantic:threshold=0.3:gamma=2`, `in-process/semantic`, `vllm/ngram`."""

    label: str
    runner: RunnerName
    method: str
    """A strategy, one of the peer's methods, or a server's name."""
    knobs: Mapping[str, Any]
    """The options in the label; all others have the pair's or the peer's defaults."""

    @property
    def options(self) -> dict[str, Any]:
        """Return the request's `semspec` object, with only the label's options."""
        options: dict[str, Any] = {"strategy": self.method}
        for name, value in self.knobs.items():
            if name in ("rule", "threshold"):
                options.setdefault("acceptance", {})[name] = value
            elif name == "source":
                options["retrieval"] = {name: value}
            elif name == "exact_answer":
                options[name] = True
            elif name in _KNOBS:
                options[name] = value
        return options

    @property
    def operators(self) -> dict[str, Any]:
        """Return the label's options among the operator's defaults."""
        return {"draft_ahead": self.knobs.get("ahead", "on") == "on"}


def parse(text: str) -> Configuration:
    """Parse a label. Raises: InvalidRequest naming the invalid part and the valid values."""
    head, *items = text.strip().split(":")
    runner, _, method = head.rpartition("/")
    _check(text, "runner", runner or "gateway", get_args(RunnerName))
    name = cast(RunnerName, runner or "gateway")
    if name == "server":
        if items or not re.fullmatch(r"[\w.-]+", method):
            raise InvalidRequest(f"{text}: a server has no knobs", remedy="name it server/NAME")
        return Configuration(text.strip(), name, method, {})
    _check(text, "strategy" if name not in PEER_METHODS else "method", method, _methods(name))
    usual = {**_KNOBS, **_OPERATORS} if name == "in-process" else _KNOBS
    knobs = dict(
        _knob(text, item, _PEER_KNOBS if name in PEER_METHODS else usual) for item in items
    )
    if knobs.get("rule") == "sample" and "threshold" in knobs:
        raise InvalidRequest(
            f"{text}: the rule 'sample' takes no threshold", remedy="leave one of them out"
        )
    return Configuration(text.strip(), name, method, knobs)


def _methods(runner: RunnerName) -> tuple[str, ...]:
    return PEER_METHODS.get(runner, tuple(STRATEGIES))


def _knob(text: str, item: str, known: Mapping[str, Callable[[str], Any]]) -> tuple[str, Any]:
    name, _, value = item.partition("=")
    _check(text, "knob", name, tuple(known))
    try:
        return name, known[name](value)
    except ValueError as error:
        raise InvalidRequest(f"{text}: {name}={value!r} is not valid: {error}") from None


def _check(text: str, kind: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise InvalidRequest(
            f"{text}: unknown {kind} {name!r}", remedy=f"choose from {', '.join(known)}"
        )
