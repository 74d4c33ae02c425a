"""The calibration of the strategy `likelihood`: how probable it is that the target says what a drafted segment says, by
statistics of the target's log-probabilities over it, and the least such probability to accept.

`semspec train calibrate` makes the file, for a pair of models and one segmentation; the gateway reads it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import ceil, exp, isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from semspec.errors import Mismatch
from semspec.files import digest_of, first_error, read_json
from semspec.types import SURPRISAL_FEATURES, ModelInfo, OperatingPoint, Segmentation

CALIBRATION_FILE = "likelihood.json"
"""Its name in the folder of a pair's probes."""
CALIBRATION_FORMAT = 1
LEAST_QUESTIONS, LEAST_SEGMENTS = 20, 20
"""Least number of questions of a pilot, and of right and of wrong drafted segments to judge anything by."""
LEAST_BELOW = 2
"""Least number of the target's own segments below a threshold that is a quantile of their scores."""
_REMEDY = "make it again with `semspec train calibrate`"


@dataclass(frozen=True, slots=True)
class CalibratedModel:
    """A model of the pair, by what its service says of it."""

    model: str
    """Name or path."""
    fingerprint: str
    tokenizer: str

    @classmethod
    def of(cls, info: ModelInfo) -> "CalibratedModel":
        return cls(info.model, info.fingerprint, info.tokenizer)


@dataclass(frozen=True, slots=True)
class OwnSegments:
    """Basis of a threshold without labels: the scores of segments that the target wrote itself."""

    quantile: Annotated[float, Field(gt=0, lt=1)]
    """Share of the target's own segments whose probability is below the threshold."""
    num_segments: int
    num_drafts: int
    """Drafted segments, at the same contexts, that the curve's acceptance and speed are of."""
    temperature: float
    top_p: float
    draft_ms_per_token: float
    target_ms_per_token: float
    score_ms: float
    """Mean time in which the target scores a drafted segment."""
    speed_up: float
    """Expected speed-up over the target alone at the threshold."""
    quantiles: tuple[float, ...]
    """Quantile of each point of the curve."""


@dataclass(frozen=True)
class Calibration:
    """A logistic function of the statistics of a segment's score, and the threshold to accept from.

    The threshold comes from a pilot with labels, or without labels from the target's own segments (`own`).
    """

    draft: CalibratedModel
    target: CalibratedModel
    segmentation: Segmentation
    statistics: tuple[str, ...]
    """Names in `SURPRISAL_FEATURES`."""
    weights: tuple[float, ...]
    """One per statistic, none negative: what is likelier is never less probable to be right."""
    bias: float
    threshold: float
    """Least probability to accept: the one at which at most `max_wrong_accepted` of the wrong segments were, or the
    quantile of `own`."""
    num_questions: int
    curve: tuple[OperatingPoint, ...]
    """Effects of other thresholds, in a pilot with labels on each question by weights of the others."""
    data_digest: str
    max_wrong_accepted: float | None = None
    """None: without labels, as for the next two."""
    num_right: int | None = None
    """Drafted segments of the pilot that one of the target's samples at the same context means too."""
    num_wrong: int | None = None
    """Drafted segments of the pilot that none of the target's samples means."""
    own: OwnSegments | None = None
    """None: the pilot had labels."""
    format: int = CALIBRATION_FORMAT

    @cached_property
    def digest(self) -> str:
        """Return the digest of all fields that are not None, 16 hexadecimal digits."""
        return digest_of(_known(self))

    def probability(self, surprisal: Sequence[float]) -> float:
        """Return the probability that the target says the same, from a score aligned with `SURPRISAL_FEATURES`.

        It is 0 if a statistic is not finite, because the target cannot write one of the tokens.
        """
        values = [surprisal[SURPRISAL_FEATURES.index(name)] for name in self.statistics]
        score = self.bias + sum(
            weight * value for weight, value in zip(self.weights, values, strict=True)
        )
        return _logistic(score) if all(map(isfinite, values)) else 0.0


def too_small_reason(num_questions: int, num_right: int, num_wrong: int) -> str | None:
    """Return why a pilot of this size is too small to calibrate on; None if it is large enough."""
    if num_questions < LEAST_QUESTIONS:
        return f"the pilot has {num_questions} questions with labels, at least {LEAST_QUESTIONS} are needed"
    for kind, number in (("right", num_right), ("wrong", num_wrong)):
        if number < LEAST_SEGMENTS:
            return f"the pilot has {number} {kind} drafted segments, at least {LEAST_SEGMENTS} are needed"
    return None


def too_few_reason(num_segments: int, quantile: float) -> str | None:
    """Return why this many of the target's own segments are too few for a quantile; None if there are enough."""
    least = ceil(LEAST_BELOW / quantile)
    if num_segments >= least:
        return None
    return (
        f"the answers have {num_segments} whole segments of the target's own, at least {least} are needed for the "
        f"quantile {quantile:g}"
    )


def as_json(calibration: Calibration) -> dict[str, Any]:
    """Return the contents of its file."""
    return _known(calibration) | {"digest": calibration.digest}


def _known(calibration: Calibration) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in asdict(calibration).items() if value is not None}


_CALIBRATION = TypeAdapter(Calibration)


def load_calibration(path: Path) -> Calibration:
    """Read a file of `as_json`.

    Raises: Mismatch, with the remedy, when it is missing, damaged, of another format, or of too small a pilot.
    """
    try:
        fields = read_json(path)
        if isinstance(fields, dict) and (found := fields.get("format")) != CALIBRATION_FORMAT:
            raise Mismatch(
                f"likelihood calibration {path} has format {found!r}, not {CALIBRATION_FORMAT}",
                remedy=_REMEDY,
            )
        calibration = _CALIBRATION.validate_python(fields)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        if isinstance(error, ValidationError):
            reason = first_error(error, "all of it")
        raise Mismatch(
            f"cannot read likelihood calibration {path}: {reason}", remedy=_REMEDY
        ) from error
    if fields.get("digest") != calibration.digest:
        raise Mismatch(
            f"likelihood calibration {path} is damaged: its digest does not match", remedy=_REMEDY
        )
    if reason := _refusal_reason(calibration):
        raise Mismatch(
            f"likelihood calibration {path}: {reason}", remedy=f"{_REMEDY} on more questions"
        )
    return calibration


def _refusal_reason(calibration: Calibration) -> str | None:
    """Return why this build cannot use it, or why its threshold rests on too little data; None if it can be used."""
    if unknown := set(calibration.statistics) - set(SURPRISAL_FEATURES):
        return f"this build computes no statistic {', '.join(sorted(unknown))}"
    if len(calibration.weights) != len(calibration.statistics):
        return "there must be one weight for each statistic"
    if not all(map(isfinite, (*calibration.weights, calibration.bias, calibration.threshold))):
        return "weights, bias or threshold is not a finite number"
    if own := calibration.own:
        return too_few_reason(own.num_segments, own.quantile)
    right, wrong = calibration.num_right or 0, calibration.num_wrong or 0
    return too_small_reason(calibration.num_questions, right, wrong)


def _logistic(score: float) -> float:
    return 1 / (1 + exp(-score)) if score >= 0 else exp(score) / (1 + exp(score))
