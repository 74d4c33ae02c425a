"""Effects of an acceptance rule on draft-written segments, its estimated speed-up, and the recommended rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from semspec.training.evaluation.metrics import Floats, Mask
from semspec.training.files import plain
from semspec.types import Acceptance, shares_ordinary_tokens

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 21))
"""Thresholds of the candidate rules, in addition to `sample`."""
DENSE_THRESHOLDS = (0.0, *np.geomspace(0.03, 30, 61).round(4).tolist())
"""Thresholds of the plotted curves."""
LEAST_SPEED_UP = 1.1
"""Least estimated speed-up over the target alone with which a lossy strategy is a release's default."""


def exact_rule(draft_tokenizer: str, target_tokenizer: str) -> dict[str, object]:
    """The rule in `pair.json` where nothing lossy is to be the default: the first exact strategy that fits the pair."""
    shares = shares_ordinary_tokens(draft_tokenizer, target_tokenizer)
    return {"strategy": "token-level" if shares else "target"}


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of a segment at batch size 1, as when served."""

    draft_ms_per_token: float
    target_ms_per_token: float
    read_ms: float
    judge_ms: float

    def speed_up(self, num_tokens: float, acceptance: float) -> float:
        """Speed-up of a round over the target writing the same tokens, without draft-ahead and network."""
        target_ms = self.target_ms_per_token * num_tokens
        round_ms = (
            self.draft_ms_per_token * num_tokens
            + self.read_ms
            + self.judge_ms
            + (1 - acceptance) * target_ms
        )
        return target_ms / round_ms if round_ms > 0 else nan


@dataclass(frozen=True, slots=True)
class Drafts:
    """Draft-written segments with one pair of probes' predictions."""

    ratio: Floats
    """target_probability / draft_probability (p/q)."""
    right: Floats
    """1 right, 0 wrong, nan unknown."""
    num_tokens: NDArray[np.int64]
    question: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ratio)

    @property
    def known(self) -> Mask:
        return ~np.isnan(self.right)

    @property
    def num_right(self) -> int:
        return int((self.right == 1).sum())

    @property
    def num_wrong(self) -> int:
        return int((self.right == 0).sum())


@dataclass(frozen=True, slots=True)
class Outcome:
    """Expected effects of a rule, over its random draws."""

    threshold: float | None
    """None: the rule `sample`."""
    acceptance: float
    """Share of draft segments that are accepted."""
    right_accepted: float
    """Share of right segments that are accepted."""
    wrong_accepted: float
    """Share of wrong segments that are accepted."""
    wrong_kept: float
    """Share of accepted segments that are wrong."""
    speed_up: float
    """An estimate: see `Cost.speed_up`."""

    @property
    def rule(self) -> Acceptance:
        return (
            Acceptance("sample")
            if self.threshold is None
            else Acceptance("threshold", self.threshold)
        )


def outcome(drafts: Drafts, threshold: float | None, cost: Cost) -> Outcome:
    """Effects of accepting iff the ratio reaches `threshold`, or with probability min(1, ratio) if it is None."""
    accepted = acceptance_of(drafts.ratio, threshold)
    right, wrong = drafts.right == 1, drafts.right == 0
    num_kept = float(accepted[drafts.known].sum())
    acceptance = _mean(accepted)
    return Outcome(
        threshold=threshold,
        acceptance=acceptance,
        right_accepted=_mean(accepted[right]),
        wrong_accepted=_mean(accepted[wrong]),
        wrong_kept=float(accepted[wrong].sum()) / num_kept if num_kept else nan,
        speed_up=cost.speed_up(_mean(drafts.num_tokens), acceptance),
    )


def acceptance_of(ratio: Floats, threshold: float | None) -> Floats:
    """The probability that each segment is accepted."""
    return np.minimum(1, ratio) if threshold is None else (ratio >= threshold).astype(np.float64)


Basis = Literal["limit met", "limit missed", "nothing wrong to judge by"]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A rule, chosen on other questions than those of the report's figures."""

    basis: Basis
    limit: float
    """Maximum share of wrong segments accepted."""
    chosen: Outcome
    """The rule's effects on the validation and calibration questions, where it was chosen."""
    num_right: int
    num_wrong: int
    """Segments of those questions."""
    expected: Outcome
    """The rule's effects on the test questions."""
    curve: tuple[Outcome, ...]
    """All candidates on the test questions, from lenient to strict."""


def served_rule(rule: Acceptance, gamma: int) -> dict[str, object]:
    """The rule in `pair.json`."""
    acceptance = {
        name: value
        for name, value in (("rule", rule.rule), ("threshold", rule.threshold))
        if value is not None
    }
    return {"strategy": "semantic", "gamma": gamma, "acceptance": acceptance}


def recommend(chosen_on: Drafts, test: Drafts, cost: Cost, limit: float = 0.03) -> Recommendation:
    """The candidate with the highest expected speed-up among those that accept at most `limit` of the wrong segments of
    `chosen_on`; if there is none, the one that accepts the fewest. `test` does not influence the choice.

    If `chosen_on` has no wrong segments, rules cannot be compared: the result is `sample`, SemanticSpec's rule.
    """
    candidates = [outcome(chosen_on, threshold, cost) for threshold in (None, *THRESHOLDS)]
    basis, chosen = _choose(candidates, limit)
    expected = outcome(test, chosen.threshold, cost)
    curve = tuple(outcome(test, threshold, cost) for threshold in (*THRESHOLDS, None))
    return Recommendation(
        basis, limit, chosen, chosen_on.num_right, chosen_on.num_wrong, expected, curve
    )


def _choose(candidates: Sequence[Outcome], limit: float) -> tuple[Basis, Outcome]:
    if isnan(candidates[0].wrong_accepted):
        return "nothing wrong to judge by", candidates[0]
    within = [candidate for candidate in candidates if candidate.wrong_accepted <= limit]
    if within:
        return "limit met", max(
            within, key=lambda candidate: (candidate.speed_up, -candidate.wrong_accepted)
        )
    return "limit missed", min(
        candidates, key=lambda candidate: (candidate.wrong_accepted, -candidate.speed_up)
    )


def card_curve(curve: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The curve for strictness in a probe's card. A threshold of None is the rule `sample`; any other None is a number
    that could not be computed."""
    names = ("threshold", "acceptance", "right_accepted", "wrong_accepted", "speed_up")
    return [plain({name: getattr(point, name) for name in names}, 4) for point in curve]


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else nan
