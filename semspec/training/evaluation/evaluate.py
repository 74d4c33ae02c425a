"""Stage 7: evaluates a pair of probes on questions that no probe was trained on: are they good enough to serve?

A report has a verdict for each definition of "right". Real pairs have no ground truth, only "the target says it"; data
with a truth of its own, such as the demo's with its parser, gets both verdicts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from semspec.decoding.likelihood.calibration import LEAST_SEGMENTS
from semspec.reporting.files import plain
from semspec.reporting.numbers import decimal, share
from semspec.training.data.labels import Labels
from semspec.training.evaluation.acceptance import (
    LEAST_SPEED_UP,
    Cost,
    Drafts,
    Recommendation,
    recommend,
)
from semspec.training.evaluation.metrics import Resampling
from semspec.training.evaluation.verification import (
    CRITERIA,
    Criterion,
    DomainCell,
    LearningPoint,
    Predicted,
    ProbeUse,
    Variant,
    Verification,
    domain_matrix,
    drafts,
    evaluate_variant,
    learning_curve,
)

Tone = Literal["good", "doubtful", "bad"]


LEAST_AUROC = 0.985
MOST_WRONG_ACCEPTED = 0.03
"""Maximum share of wrong segments accepted where `LEAST_RIGHT_ACCEPTED` of the right ones are."""
LEAST_RIGHT_ACCEPTED = 0.95
MOST_ECE = 0.05
CRITERION_NAMES: Mapping[Criterion, str] = {
    "truth": "By the data's own truth",
    "target says it": 'By "the target says it", the criterion of pairs without a truth',
}
FEW_WRONG = 50
"""With fewer wrong segments, shares of them are unreliable."""
FEW_QUESTIONS = 30

_NAMES = {"error": "standard_error"}
"""Fields with other names in the report's file."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The inputs of a report."""

    name: str
    """Name of the pair."""
    labels: Labels
    served: Predicted
    cost: Cost
    variants: Sequence[Predicted] = ()
    """Variants to compare with."""
    learning_curve: Sequence[tuple[int, Predicted]] = ()
    """(number of training contexts, predictions of the probes trained on them)."""
    domains: Mapping[str, Predicted] = field(default_factory=dict)
    """Predictions of probes trained on a single domain, by that domain."""
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    """Facts about the probes' origin, printed unchanged: recipe, data digest, forwards of the entailment model."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of the data."""

    contexts: dict[str, int]
    """Number of contexts by split."""
    questions: dict[str, int]
    draft_segments: int
    """Number of draft-written segments of the test questions."""
    unknown: int
    """How many of these have no known truth; the shares of right and wrong exclude them."""
    target_wrong: float
    """Share of the target's own segments that are wrong, for comparison; 0 where the target defines the truth."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One criterion, and whether the served probes meet it."""

    name: str
    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """An assessment of the served probes by one definition of right."""

    criterion: Criterion
    standing: Tone
    """`doubtful`: every bar is cleared, on too little data."""
    headline: str
    claims: tuple[Claim, ...]
    remarks: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The headline with the definition of right that it holds for."""
        return f"{CRITERION_NAMES[self.criterion]}: {self.headline}"

    @property
    def text(self) -> str:
        """The sentence, then one with every claim."""
        claims = "; ".join(claim.text for claim in self.claims)
        return f"{self.sentence} {claims[0].upper()}{claims[1:]}."


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of a report; nan where a number cannot be computed."""

    name: str
    criterion: Criterion
    """The definition of right below, unless stated otherwise."""
    verdicts: tuple[Verdict, ...]
    """Verdict by `criterion`, then, where that is the truth, the one by "the target says it"."""
    remarks: tuple[str, ...]
    recommendation: Recommendation
    cost: Cost
    variants: tuple[Variant, ...]
    """The served one first."""
    learning_curve: tuple[LearningPoint, ...]
    domains: tuple[DomainCell, ...]
    counts: Counts
    facts: dict[str, str | int | float]

    @property
    def served(self) -> Variant:
        return self.variants[0]

    def as_json(self) -> dict[str, Any]:
        """Plain values, rounded; null for what could not be computed. `error` is named `standard_error`."""
        fields = asdict(
            self,
            dict_factory=lambda items: {_NAMES.get(name, name): value for name, value in items},
        )
        values: dict[str, Any] = plain(fields, 5)
        return values


def evaluate(
    evidence: Evidence, max_wrong_accepted: float = 0.03, num_resamples: int = 200
) -> Report:
    """Compute all numbers. `max_wrong_accepted` limits the recommended rule, which is chosen without test questions.
    Raises: InvalidRequest when predictions are missing for segments of questions that a probe was not trained on."""
    labels, served = evidence.labels, evidence.served
    criterion = choose_criterion(labels)
    test, chosen_on = labels.split == "test", np.isin(labels.split, ["validation", "calibration"])
    resampling = Resampling.of(labels.question[test], num_resamples)
    variants = tuple(
        evaluate_variant(labels, variant, evidence.cost, resampling)
        for variant in (served, *evidence.variants)
    )
    curve = learning_curve(labels, evidence.learning_curve, criterion, resampling)
    judged = drafts(labels, served, test, criterion)
    recommendation = recommend(
        drafts(labels, served, chosen_on, criterion), judged, evidence.cost, max_wrong_accepted
    )
    criteria = CRITERIA if criterion == "truth" else (criterion,)
    verdicts = tuple(judge(variants[0], each, len(resampling.questions)) for each in criteria)
    return Report(
        name=evidence.name,
        criterion=criterion,
        verdicts=verdicts,
        remarks=(_rule(recommendation),),
        recommendation=recommendation,
        cost=evidence.cost,
        variants=variants,
        learning_curve=curve,
        domains=domain_matrix(labels, evidence.domains, criterion, resampling),
        counts=_counts(labels, judged, criterion),
        facts=dict(evidence.facts),
    )


def choose_criterion(labels: Labels) -> Criterion:
    """The ground truth if it is known for right and for wrong segments, else whether the target's samples include it.

    Test questions do not influence the choice."""
    valid = labels.valid[labels.by_draft & np.isin(labels.split, ["validation", "calibration"])]
    return "truth" if (valid == 1).any() and (valid == 0).any() else "target says it"


def _counts(labels: Labels, judged: Drafts, criterion: Criterion) -> Counts:
    splits = [
        split
        for split in ("train", "validation", "calibration", "test")
        if (labels.split == split).any()
    ]
    written = labels.valid[(labels.split == "test") & ~labels.by_draft]
    written = written[~np.isnan(written)] if criterion == "truth" else np.ones(1)
    return Counts(
        contexts={split: len(np.unique(labels.context[labels.split == split])) for split in splits},
        questions={
            split: len(np.unique(labels.question[labels.split == split])) for split in splits
        },
        draft_segments=len(judged),
        unknown=len(judged) - int(judged.known.sum()),
        target_wrong=float((written == 0).mean()) if len(written) else float("nan"),
    )


def judge(served: Variant, criterion: Criterion, num_questions: int) -> Verdict:
    """Judge the served probes by `criterion` on `num_questions` test questions."""
    claims = tuple(_claims(served, criterion))
    cautions = tuple(_cautions(served.verifications[criterion], num_questions))
    standing: Tone = (
        "bad" if not all(claim.holds for claim in claims) else "doubtful" if cautions else "good"
    )
    headline = (
        _too_few(served.verifications[criterion])
        or {
            "good": "Good enough to serve.",
            "doubtful": "Every bar is cleared, on too few segments to rely on.",
            "bad": f"Not good enough to serve. Missed: {', '.join(claim.name for claim in claims if not claim.holds)}.",
        }[standing]
    )
    return Verdict(criterion, standing, headline, claims, cautions)


def _too_few(found: Verification) -> str:
    """Refuse to judge by too few segments; empty if there are enough."""
    if min(found.num_right, found.num_wrong) >= LEAST_SEGMENTS:
        return ""
    return (
        f"Not judged: the test questions have {found.num_right} right and {found.num_wrong} wrong draft-written "
        f"segments, at least {LEAST_SEGMENTS} of each are needed. Name more questions."
    )


def _claims(served: Variant, criterion: Criterion) -> Iterator[Claim]:
    verification = served.verifications[criterion]
    if _too_few(verification):
        yield Claim("too few segments", "nothing can be said of p/q", False)
    else:
        auroc, wrong = verification.auroc, verification.wrong_accepted
        text = f"the AUROC of p/q is {decimal(auroc)}, the bar is at least {LEAST_AUROC}"
        yield Claim("AUROC", text, auroc.value >= LEAST_AUROC)
        text = (
            f"{share(wrong)} of the wrong segments are accepted where {LEAST_RIGHT_ACCEPTED:.0%} of the right "
            f"ones are, the bar is at most {MOST_WRONG_ACCEPTED:.0%}"
        )
        yield Claim("wrong segments accepted", text, wrong.value <= MOST_WRONG_ACCEPTED)
    probes: dict[str, ProbeUse] = {"p": "target probe, draft-written", "q": "draft probe"}
    for name, use in probes.items():
        ece = served.ece[use]
        text = f"the ECE of {name} is {decimal(ece)}, the bar is at most {MOST_ECE}"
        yield Claim(f"ECE of {name}", text, ece.value <= MOST_ECE)


def _no_rule(recommendation: Recommendation) -> str:
    """Say why there is no rule, so that the release's default is exact."""
    reason = {
        "limit missed": f"none accepts at most {recommendation.limit:.0%} of the wrong segments with 95% confidence",
        "too slow": f"none within the limit is estimated at {LEAST_SPEED_UP:g} times the target's speed",
        "too few segments": f"at least {LEAST_SEGMENTS} of each are needed",
    }[recommendation.basis]
    return (
        f"No rule is recommended: on the {recommendation.num_right:,} right and {recommendation.num_wrong:,} wrong "
        f"segments of the validation and calibration questions {reason}."
    )


def _rule(recommendation: Recommendation) -> str:
    expected, limit = recommendation.expected, recommendation.limit
    if expected is None:
        return _no_rule(recommendation)
    least = expected.threshold
    name = (
        "accept with probability min(1, p/q)"
        if least is None
        else f"accept where p/q is at least {least:g}"
    )
    why = f"the fastest rule that accepts at most {limit:.0%} of the wrong segments with 95% confidence"
    above = " That is above the limit." if expected.wrong_accepted > limit else ""
    return (
        f"Recommended: {name} (on the validation and calibration questions {why}). "
        f"On the test questions it accepts {share(expected.acceptance)} of the draft's segments: "
        f"{share(expected.right_accepted)} of the right and {share(expected.wrong_accepted)} of the wrong ones.{above} "
        f"Of the accepted ones {share(expected.wrong_kept)} are wrong. "
        f"Estimated speed-up {decimal(expected.speed_up, 2)}x."
    )


def _cautions(found: Verification, num_questions: int) -> Iterator[str]:
    if num_questions < FEW_QUESTIONS:
        yield f"Only {num_questions} test questions: too few to rely on."
    if 0 < found.num_wrong < FEW_WRONG:
        yield f"Only {found.num_wrong} wrong segments among the test questions': shares of them mean little."
    wrong, margin = found.wrong_accepted.value, 1.96 * found.wrong_accepted.error
    if margin > MOST_WRONG_ACCEPTED > wrong - margin:
        yield (
            f"The share of wrong segments accepted is anywhere from {share(max(0, wrong - margin))} to "
            f"{share(min(1, wrong + margin))} (95%): too uncertain to serve on. More test questions narrow it."
        )
