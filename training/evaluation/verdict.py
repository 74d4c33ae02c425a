"""The verdict in sentences: whether the probes are good enough to serve, and what would improve them at least cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from semspec.training.evaluation.acceptance import Recommendation
from semspec.training.evaluation.verification import Criterion, LearningPoint, ProbeUse, Variant
from semspec.training.report.numbers import decimal, measured_decimal, measured_share, share

LEAST_AUROC = 0.985
LEAST_RIGHT_ACCEPTED = 0.95
MOST_WRONG_ACCEPTED = 0.03
MOST_ECE = 0.05
FEW_WRONG = 50
"""With fewer wrong segments, shares of them are unreliable."""
FEW_QUESTIONS = 30


@dataclass(frozen=True, slots=True)
class Claim:
    """One criterion, and whether the served probes meet it."""

    name: str
    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """An assessment of the report's numbers."""

    good_enough: bool
    headline: str
    claims: tuple[Claim, ...]
    remarks: tuple[str, ...]


def judge(
    served: Variant,
    criterion: Criterion,
    recommendation: Recommendation,
    curve: Sequence[LearningPoint],
    num_questions: int,
) -> Verdict:
    """The verdict on the served probes from `num_questions` test questions."""
    claims = tuple(_claims(served, criterion))
    good_enough = all(claim.holds for claim in claims)
    cautions = list(_cautions(served.verifications[criterion].num_wrong, num_questions))
    remarks = [
        *cautions,
        *([] if good_enough else [_gain(curve)]),
        _rule(recommendation),
        *_about_calibration(claims, recommendation),
    ]
    return Verdict(good_enough, _headline(claims, doubtful=bool(cautions)), claims, tuple(remarks))


def _headline(claims: Sequence[Claim], *, doubtful: bool) -> str:
    if failed := [claim.name for claim in claims if not claim.holds]:
        return f"Not good enough to serve. Missed: {', '.join(failed)}."
    return "Every bar is cleared, on too few segments to rely on." if doubtful else "Good enough to serve."


def _claims(served: Variant, criterion: Criterion) -> Iterator[Claim]:
    verification = served.verifications[criterion]
    if not verification.num_right or not verification.num_wrong:
        known = f"{verification.num_right} right and {verification.num_wrong} wrong"
        text = f"the test questions have {known} draft-written segments, so nothing can be said of p/q"
        yield Claim("nothing to judge by", text, False)
    else:
        auroc, wrong = verification.auroc, verification.wrong_accepted
        text = f"the AUROC of p/q is {measured_decimal(auroc)}, the bar is at least {LEAST_AUROC}"
        yield Claim("AUROC", text, auroc.value >= LEAST_AUROC)
        text = (
            f"{measured_share(wrong)} of the wrong segments are accepted where {LEAST_RIGHT_ACCEPTED:.0%} of the right "
            f"ones are, the bar is at most {MOST_WRONG_ACCEPTED:.0%}"
        )
        yield Claim("wrong segments accepted", text, wrong.value <= MOST_WRONG_ACCEPTED)
    probes: dict[str, ProbeUse] = {"p": "target probe, draft-written", "q": "draft probe"}
    for name, use in probes.items():
        ece = served.ece[use]
        text = f"the ECE of {name} is {measured_decimal(ece)}, the bar is at most {MOST_ECE}"
        yield Claim(f"ECE of {name}", text, ece.value <= MOST_ECE)


def _rule(recommendation: Recommendation) -> str:
    expected, limit, least = recommendation.expected, recommendation.limit, recommendation.expected.threshold
    name = "accept with probability min(1, p/q)" if least is None else f"accept where p/q is at least {least:g}"
    why = {
        "limit met": f"the fastest rule that accepted at most {limit:.0%} of the wrong segments",
        "limit missed": f"no rule accepted as few as {limit:.0%} of the wrong segments, this one the fewest",
        "nothing wrong to judge by": "no segment was wrong there, so the method's own rule stands",
    }[recommendation.basis]
    above = " That is above the limit." if expected.wrong_accepted > limit else ""
    return (
        f"Recommended: {name} (on the validation and calibration questions {why}). "
        f"On the test questions it accepts {share(expected.acceptance)} of the draft's segments: "
        f"{share(expected.right_accepted)} of the right and {share(expected.wrong_accepted)} of the wrong ones.{above} "
        f"Of the accepted ones {share(expected.wrong_kept)} are wrong. "
        f"Estimated speed-up {decimal(expected.speed_up, 2)}x."
    )


def _gain(curve: Sequence[LearningPoint]) -> str:
    """Whether more contexts would help, by the last step of the learning curve."""
    if len(curve) < 2:
        return "There is no learning curve to say whether more contexts would help."
    before, after = curve[-2:]
    auroc = f"{decimal(before.auroc.value)} to {decimal(after.auroc.value)}"
    wrong = f"{share(before.wrong_accepted.value)} to {share(after.wrong_accepted.value)}"
    step = (
        f"from {before.num_contexts} to {after.num_contexts} contexts the AUROC went from {auroc}, "
        f"the wrong segments accepted from {wrong}"
    )
    fewer_wrong = after.wrong_accepted.value < before.wrong_accepted.value - after.wrong_accepted.error
    if fewer_wrong or after.auroc.value > before.auroc.value + after.auroc.error:
        return f"More contexts is the cheapest gain: {step}."
    return f"More contexts alone may not do: {step}. Look at the clusters and at the examples."


def _about_calibration(claims: Sequence[Claim], recommendation: Recommendation) -> Iterator[str]:
    missed = any(claim.name.startswith("ECE") and not claim.holds for claim in claims)
    if missed and recommendation.rule.rule == "threshold":
        yield "The ECE matters to the rule min(1, p/q). A threshold wants the order only."


def _cautions(num_wrong: int, num_questions: int) -> Iterator[str]:
    if num_questions < FEW_QUESTIONS:
        yield f"Only {num_questions} test questions: too few to rely on."
    if 0 < num_wrong < FEW_WRONG:
        yield f"Only {num_wrong} wrong segments among the test questions': shares of them mean little."
