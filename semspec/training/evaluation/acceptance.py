"""Effects of an acceptance rule on draft-written segments, its estimated speed-up, and the recommended rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from semspec.decoding.likelihood.calibration import LEAST_SEGMENTS
from semspec.reporting.files import plain
from semspec.training.evaluation.metrics import Floats, Mask, Resampling, upper_limit
from semspec.types import Acceptance, shares_ordinary_tokens

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 21))
"""Thresholds of the candidate rules, in addition to `sample`."""
DENSE_THRESHOLDS = (0.0, *np.geomspace(0.03, 30, 61).round(4).tolist())
"""Thresholds of the plotted curves."""
LEAST_SPEED_UP = 1.1
"""Least estimated speed-up over the target alone with which a lossy strategy is a release's default."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of a segment at batch size 1, as when served."""

    draft_ms_per_token: float
    target_ms_per_token: float
    read_ms: float
    judge_ms: float

    def speed_up(self, num_tokens: float, acceptance: float) -> float:
        """Return the speed-up of a round over the target writing the same tokens, without draft-ahead and network."""
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

    @property
    def is_too_few(self) -> bool:
        """Return whether there are fewer than `LEAST_SEGMENTS` right or wrong segments."""
        return min(self.num_right, self.num_wrong) < LEAST_SEGMENTS


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
    """Compute the effects of accepting iff the ratio reaches `threshold`, or with probability min(1, ratio) if None."""
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
    """Return the probability that each segment is accepted."""
    return np.minimum(1, ratio) if threshold is None else (ratio >= threshold).astype(np.float64)


Basis = Literal["limit met", "limit missed", "too slow", "too few segments"]
"""Why there is a rule, or none."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A rule, chosen on other questions than those of the report's figures, or why there is none."""

    basis: Basis
    limit: float
    """Maximum share of wrong segments accepted, by the upper end of its 95% interval."""
    chosen: Outcome | None
    """The rule's effects on the validation and calibration questions, where it was chosen; None: there is no rule."""
    num_right: int
    num_wrong: int
    """Segments of those questions."""
    expected: Outcome | None
    """The rule's effects on the test questions."""
    curve: tuple[Outcome, ...]
    """All candidates on the test questions, from lenient to strict."""

    @property
    def shown(self) -> Outcome:
        """Return the rule's effects for the examples; without a rule, those of the strictest threshold."""
        return self.expected or self.curve[len(THRESHOLDS) - 1]


def served_rule(rule: Acceptance, gamma: int) -> dict[str, object]:
    """Return the rule in `pair.json`."""
    acceptance = {
        name: value
        for name, value in (("rule", rule.rule), ("threshold", rule.threshold))
        if value is not None
    }
    return {"strategy": "semantic", "gamma": gamma, "acceptance": acceptance}


def default_rule(
    semantic: Acceptance | None,
    likelihood_speed_up: float | None,
    gamma: int,
    draft_tokenizer: str,
    target_tokenizer: str,
) -> dict[str, object]:
    """Return the rule in `pair.json`: that of the probes if one is recommended, else `likelihood` if it is calibrated
    and estimated fast enough, else the first exact strategy that the pair supports."""
    if semantic is not None:
        return served_rule(semantic, gamma)
    if likelihood_speed_up is not None and likelihood_speed_up >= LEAST_SPEED_UP:
        return {"strategy": "likelihood", "gamma": gamma}
    shares = shares_ordinary_tokens(draft_tokenizer, target_tokenizer)
    return {"strategy": "token-level" if shares else "target"}


def recommend(chosen_on: Drafts, test: Drafts, cost: Cost, limit: float = 0.03) -> Recommendation:
    """Recommend the candidate with the highest expected speed-up, at least `LEAST_SPEED_UP`, whose share of wrong
    segments of `chosen_on` accepted is at most `limit` by the upper end of its 95% interval. `test` does not affect the
    choice.

    There is no rule where no candidate meets both, or `chosen_on` has too few right or wrong segments to tell.
    """
    basis, chosen = _choose(chosen_on, cost, limit)
    expected = None if chosen is None else outcome(test, chosen.threshold, cost)
    curve = tuple(outcome(test, threshold, cost) for threshold in (*THRESHOLDS, None))
    return Recommendation(
        basis, limit, chosen, chosen_on.num_right, chosen_on.num_wrong, expected, curve
    )


def _choose(drafts: Drafts, cost: Cost, limit: float) -> tuple[Basis, Outcome | None]:
    if drafts.is_too_few:
        return "too few segments", None
    resampling = Resampling.of(drafts.question)
    within = [
        outcome(drafts, threshold, cost)
        for threshold in (None, *THRESHOLDS)
        if _most_wrong_accepted(drafts, threshold, resampling) <= limit
    ]
    if not within:
        return "limit missed", None
    chosen = max(within, key=lambda candidate: (candidate.speed_up, -candidate.wrong_accepted))
    return ("limit met", chosen) if chosen.speed_up >= LEAST_SPEED_UP else ("too slow", None)


def _most_wrong_accepted(drafts: Drafts, threshold: float | None, resampling: Resampling) -> float:
    """Return the upper end of the 95% interval of the share of wrong segments accepted."""
    wrong = drafts.right == 0
    accepted = acceptance_of(drafts.ratio[wrong], threshold)

    def share(weight: Floats) -> float:
        return float(weight @ accepted / weight.sum()) if weight.sum() else nan

    return upper_limit(resampling.measured(share, drafts.question[wrong]), drafts.num_wrong)


def card_curve(curve: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the curve for strictness in a probe's card. A threshold of None is the rule `sample`; any other None is a
    number that could not be computed."""
    names = ("threshold", "acceptance", "right_accepted", "wrong_accepted", "speed_up")
    return [plain({name: getattr(point, name) for name in names}, 4) for point in curve]


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else nan
