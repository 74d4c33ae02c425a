"""What is compared: a strategy with its knobs, and the road the question takes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from semspec.core import Acceptance, Strategy

Road = Literal["gateway", "in-process"]

_KNOBS: dict[str, Callable[[str], Any]] = {
    "gamma": int,
    "rule": str,
    "threshold": float,
    "ahead": lambda text: text == "on",
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """One row of a bench, parsed from a label such as `target`, `semantic:rule=threshold,threshold=0.5` or
    `in-process/semantic:gamma=2,ahead=off`."""

    label: str
    road: Road
    strategy: Strategy
    gamma: int = 1
    acceptance: Acceptance = field(default_factory=Acceptance)
    draft_ahead: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """As the request's `semspec` object."""
        acceptance: dict[str, object] = {"rule": self.acceptance.rule}
        if self.acceptance.rule == "threshold":
            acceptance["threshold"] = self.acceptance.threshold
        return {
            "strategy": self.strategy,
            "gamma": self.gamma,
            "acceptance": acceptance,
            "draft_ahead": self.draft_ahead,
            "trace": True,
        }


def parse(text: str) -> Configuration:
    """The configuration a label describes. Raises: ValueError that names what is wrong and what is known."""
    head, _, tail = text.partition(":")
    road, _, strategy = head.rpartition("/")
    if (road or "gateway") not in get_args(Road):
        raise ValueError(f"{text}: unknown road {road!r}; choose from {', '.join(get_args(Road))}")
    if strategy not in get_args(Strategy):
        raise ValueError(f"{text}: unknown strategy {strategy!r}; choose from {', '.join(get_args(Strategy))}")
    knobs: dict[str, Any] = {}
    for item in filter(None, tail.split(",")):
        name, _, value = item.partition("=")
        if name not in _KNOBS:
            raise ValueError(f"{text}: unknown knob {name!r}; choose from {', '.join(_KNOBS)}")
        knobs[name] = _KNOBS[name](value)
    acceptance = Acceptance(knobs.get("rule", "sample"), knobs.get("threshold", 0.5))
    return Configuration(
        label=text,
        road=cast(Road, road or "gateway"),
        strategy=cast(Strategy, strategy),
        gamma=knobs.get("gamma", 1),
        acceptance=acceptance,
        draft_ahead=knobs.get("ahead", True),
    )
