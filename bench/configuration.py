"""Configurations to compare: a strategy or a peer's method, its options, and its runner."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from semspec.decoding import STRATEGIES
from semspec.errors import InvalidRequest
from semspec.types import AcceptanceRule, RetrievalSource, ScoreMethod, Segmentation

RunnerName = Literal["gateway", "in-process", "transformers", "vllm", "arctic"]

PEER_METHODS: Mapping[RunnerName, tuple[str, ...]] = {
    "transformers": ("target", "assisted", "lookup"),
    "vllm": ("target", "draft_model", "ngram"),
    "arctic": ("suffix",),
}
"""Methods of other engines for the same pair: the target alone, with a draft model, and with prompt lookup; of Arctic
Inference, suffix decoding for our target."""


def _one_of(*names: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return text

    return convert


RETRIEVAL_KNOBS: Mapping[str, Callable[[str], Any]] = {
    "retrieval_tokens": int,
    "retrieval_source": _one_of(*get_args(RetrievalSource)),
    "gate": _one_of("exact", "soft"),
    "gate_entropy": float,
    "gate_floor": float,
    "gate_top_k": int,
    "gate_density": float,
    "gate_window": int,
}
_KNOBS: Mapping[str, Callable[[str], Any]] = {
    "gamma": int,
    "token_gamma": int,
    "num_drafts": int,
    "segmentation": _one_of(*Segmentation),
    "rule": _one_of(*get_args(AcceptanceRule)),
    "threshold": float,
    "likelihood_threshold": float,
    "score_method": _one_of(*get_args(ScoreMethod)),
    "score_threshold": float,
    **{name: _one_of("on", "off") for name in ("ahead", "retrieval_tree")},
    **RETRIEVAL_KNOBS,
}
_PEER_KNOBS: Mapping[str, Callable[[str], Any]] = {"tokens": int}


@dataclass(frozen=True, slots=True)
class Configuration:
    """One row of a bench: `target`, `semantic:threshold=0.3:gamma=2`, `in-process/semantic`, `vllm/ngram`."""

    label: str
    runner: RunnerName
    method: str
    """A strategy, or one of the peer's methods."""
    knobs: Mapping[str, Any]
    """The options in the label; all others have the pair's or the peer's defaults."""

    @property
    def options(self) -> dict[str, Any]:
        """The request's `semspec` object, with only the label's options."""
        named = {"gamma", "token_gamma", "num_drafts", "segmentation", "likelihood_threshold", *RETRIEVAL_KNOBS}
        flags = {"draft_ahead": "ahead", "retrieval_tree": "retrieval_tree"}
        options: dict[str, Any] = {"strategy": self.method}
        options |= {name: value for name, value in self.knobs.items() if name in named}
        options |= {name: self.knobs[knob] == "on" for name, knob in flags.items() if knob in self.knobs}
        if acceptance := self._acceptance():
            options["acceptance"] = acceptance
        if scoring := self._scoring():
            options["scoring"] = scoring
        return options

    def _acceptance(self) -> dict[str, Any]:
        """The acceptance rule; a threshold implies the rule `threshold`."""
        if "threshold" in self.knobs:
            return {"rule": "threshold", "threshold": self.knobs["threshold"]}
        return {"rule": self.knobs["rule"]} if "rule" in self.knobs else {}

    def _scoring(self) -> dict[str, Any]:
        return {name.removeprefix("score_"): value for name, value in self.knobs.items() if name.startswith("score_")}


def parse(text: str) -> Configuration:
    """The configuration that a label describes. Raises: InvalidRequest naming the invalid part and the valid values."""
    head, *items = text.strip().split(":")
    runner, _, method = head.rpartition("/")
    _check(text, "runner", runner or "gateway", get_args(RunnerName))
    name = cast(RunnerName, runner or "gateway")
    _check(text, "strategy" if name not in PEER_METHODS else "method", method, _methods(name))
    known = _PEER_KNOBS if name in PEER_METHODS else _KNOBS
    knobs = dict(_knob(text, item, known) for item in items)
    if knobs.get("rule") == "sample" and "threshold" in knobs:
        raise InvalidRequest(f"{text}: the rule 'sample' takes no threshold; leave one of them out", "strategy")
    return Configuration(text.strip(), name, method, knobs)


def _methods(runner: RunnerName) -> tuple[str, ...]:
    return PEER_METHODS.get(runner, tuple(STRATEGIES))


def _knob(text: str, item: str, known: Mapping[str, Callable[[str], Any]]) -> tuple[str, Any]:
    name, _, value = item.partition("=")
    _check(text, "knob", name, tuple(known))
    try:
        return name, known[name](value)
    except ValueError as error:
        raise InvalidRequest(f"{text}: {name}={value!r} is not valid: {error}", "strategy") from None


def _check(text: str, what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise InvalidRequest(f"{text}: unknown {what} {name!r}; choose from {', '.join(known)}", "strategy")
