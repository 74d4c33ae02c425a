"""The verifier: a default pair of probes for the states of two models, and named alternative pairs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semspec import __version__
from semspec.engine.device import device_of
from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import LEAST_PROBABILITY, Artifact, ProbeCard, assemble, load_probe, tensor_of
from semspec.types import Judgement, OperatingPoint, SegmentScore, States, VerifierInfo

MAX_MAGNITUDE = 1e9
"""Maximum absolute value of states and surprisal: far above those of any model, and far below what overflows."""


class ProbePair:
    """A draft probe and a target probe that were trained together.

    Draft probabilities are at least `LEAST_PROBABILITY`: the draft generated the segment, and p/q must stay bounded.
    """

    def __init__(self, draft: Artifact, target: Artifact, device: str = "cpu") -> None:
        """`device`: a torch device or "auto". Raises: Mismatch when the two do not belong together."""
        if draft.card.features != "states":
            raise Mismatch(
                f"the draft probe wants {draft.card.features!r}, but a draft sends states only; "
                "if the two probes are swapped give them the other way round, else train this one on states"
            )
        if draft.card.segmentations != target.card.segmentations:
            raise Mismatch("the two probes were trained on different segmentations; train them together")
        self.draft, self.target = draft, target
        self._device = device_of(device, "the probes")
        for artifact in (draft, target):
            artifact.probe.to(self._device)

    @classmethod
    def load(cls, draft_probe: Path, target_probe: Path, device: str = "cpu") -> "ProbePair":
        """Load two artifacts. Raises: Mismatch, with a remedy, when they cannot serve together."""
        return cls(load_probe(draft_probe), load_probe(target_probe), device)

    def judge(self, draft_states: Sequence[States], scores: Sequence[SegmentScore]) -> list[Judgement]:
        """One judgement per segment.

        Raises: Mismatch when the states come from other models; InvalidRequest when a value is no number or too large.
        """
        draft_features = _features(self.draft.card, "draft", draft_states, None)
        surprisal = torch.tensor([score.surprisal for score in scores])
        _check_values(surprisal, "readings[{}].surprisal")
        target_features = _features(self.target.card, "target", [score.states for score in scores], surprisal)
        with torch.inference_mode():
            draft_probabilities = (
                self.draft.probe(draft_features.to(self._device)).clamp_min(LEAST_PROBABILITY).tolist()
            )
            target_probabilities = self.target.probe(target_features.to(self._device)).tolist()
        return [Judgement(q, p) for q, p in zip(draft_probabilities, target_probabilities, strict=True)]


class ProbeVerifier:
    """A pure function from states to probabilities. See `semspec.decoding.protocols.Verifier`."""

    def __init__(self, own: ProbePair, alternatives: Mapping[str, ProbePair] | None = None) -> None:
        """Raises: Mismatch when an alternative has other models or segmentations than `own`, or the card of the target
        probe of `own` is malformed."""
        self._own, self._alternatives = own, dict(alternatives or {})
        self._operating_points = operating_points(own.target.card)
        for name, pair in self._alternatives.items():
            _check_alternative(name, pair, own)

    @classmethod
    def load(
        cls, draft_probe: Path, target_probe: Path, alternatives: Path | None = None, device: str = "cpu"
    ) -> "ProbeVerifier":
        """Load the default probes and, if a folder is given, those in `alternatives`/NAME/{draft,target}.safetensors.

        Raises: Mismatch, with a remedy, when they cannot serve.
        """
        own = ProbePair.load(draft_probe, target_probe, device)
        return cls(own, _load_alternatives(alternatives, device) if alternatives else None)

    async def info(self) -> VerifierInfo:
        draft, target = self._own.draft, self._own.target
        return VerifierInfo(
            draft_model=draft.card.fingerprint,
            target_model=target.card.fingerprint,
            state_convention=target.card.state_convention,
            segmentations=target.card.segmentations,
            draft_probe=draft.digest,
            target_probe=target.digest,
            build=__version__,
            alternatives=tuple(self._alternatives),
            operating_points=self._operating_points,
            draft_tokenizer=draft.card.tokenizer,
            target_tokenizer=target.card.tokenizer,
        )

    async def judge(
        self, draft_states: Sequence[States], scores: Sequence[SegmentScore], probes: str = ""
    ) -> list[Judgement]:
        if not draft_states or len(draft_states) != len(scores):
            raise InvalidRequest(
                f"{len(draft_states)} draft states and {len(scores)} scores; send one of each per segment",
                "draft_states",
            )
        return self._pair(probes).judge(draft_states, scores)

    def _pair(self, probes: str) -> ProbePair:
        if not probes:
            return self._own
        if probes not in self._alternatives:
            names = ", ".join(self._alternatives) or "none"
            raise InvalidRequest(
                f"there are no probes named {probes!r} beside the pair's own: {names}; "
                "name one of these, or add them to SEMSPEC_VERIFIER_ALTERNATIVES",
                "probes",
            )
        return self._alternatives[probes]


def _load_alternatives(folder: Path, device: str) -> dict[str, ProbePair]:
    """Alternative pairs by name. Hidden folders are ignored: a mounted volume may contain some."""
    paths = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not paths:
        raise Mismatch(f"{folder} holds no folder of probes; unset SEMSPEC_VERIFIER_ALTERNATIVES or put some there")
    return {path.name: _load_alternative(path, device) for path in paths}


def _load_alternative(folder: Path, device: str) -> ProbePair:
    try:
        return ProbePair.load(folder / "draft.safetensors", folder / "target.safetensors", device)
    except Mismatch as error:
        raise Mismatch(f"alternative probes {folder.name!r}: {error.message}") from error


def _check_alternative(name: str, pair: ProbePair, own: ProbePair) -> None:
    remedy = f"train the probes {name!r} with the pair's own, or take them out of SEMSPEC_VERIFIER_ALTERNATIVES"
    for role, card, expected in (
        ("draft", pair.draft.card, own.draft.card),
        ("target", pair.target.card, own.target.card),
    ):
        if card.fingerprint != expected.fingerprint:
            raise Mismatch(
                f"alternative probes {name!r}: the {role} probe was trained on {card.model} ({card.fingerprint}), "
                f"the pair's own on {expected.model} ({expected.fingerprint}); {remedy}"
            )
    if pair.target.card.segmentations != own.target.card.segmentations:
        raise Mismatch(f"alternative probes {name!r} were trained on other segmentations than the pair's own; {remedy}")


def _features(card: ProbeCard, role: str, states: Sequence[States], surprisal: Tensor | None) -> Tensor:
    for state in states:
        if state.model != card.fingerprint:
            raise Mismatch(
                f"the {role} probe was trained on {card.model} ({card.fingerprint}), the states are of {state.model}; "
                "serve that model or train a probe for this one"
            )
        if state.shape != card.shape:
            raise Mismatch(f"{role} states have shape {state.shape}, the probe wants {card.shape}")
    values = tensor_of([state.data for state in states], card.shape)
    _check_values(values, "draft_states[{}].pooled" if role == "draft" else "readings[{}].states.pooled")
    return assemble(card.features, card.layers, values, surprisal)


def _check_values(values: Tensor, field: str) -> None:
    """`values`: `[num_segments, ...]`. Raises: InvalidRequest for NaN, infinity, and what is above `MAX_MAGNITUDE`."""
    is_valid = (values.abs() <= MAX_MAGNITUDE).flatten(1).all(1).tolist()
    if not all(is_valid):
        field = field.format(is_valid.index(False))
        raise InvalidRequest(f"{field}: holds a value that is not a number or above {MAX_MAGNITUDE:g}", field)


def operating_points(card: ProbeCard) -> tuple[OperatingPoint, ...]:
    """Results of acceptance rules from the report in the card: by rising threshold, the rule `sample` last.

    Empty if the report has none.

    The last row is the rule `sample` if it has no threshold. Other rows without threshold, and rows without acceptance,
    are skipped. Raises: Mismatch when the rows cannot be parsed.
    """
    try:
        rows = list(card.metrics.get("strictness") or ())
        points = [_point(row) for row in rows if _is_known(row, row is rows[-1])]
    except (AttributeError, TypeError, ValueError) as error:
        raise Mismatch(
            f"cannot read metrics.strictness in the card of the probe of {card.model}: {error}; "
            "train the probes again, or take it out"
        ) from error
    return tuple(sorted(points, key=_strictness))


def _is_known(row: dict[str, Any], is_last: bool) -> bool:
    return row.get("acceptance") is not None and (is_last or row.get("threshold") is not None)


def _point(row: dict[str, Any]) -> OperatingPoint:
    return OperatingPoint(
        threshold=_number(row, "threshold"),
        acceptance=_number(row, "acceptance") or 0.0,
        right_accepted=_number(row, "right_accepted"),
        wrong_accepted=_number(row, "wrong_accepted"),
        speed_up=_number(row, "speed_up"),
    )


def _number(row: dict[str, Any], name: str) -> float | None:
    if row.get(name) is None:
        return None
    number = float(row[name])
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}")
    return number


def _strictness(point: OperatingPoint) -> float:
    return float("inf") if point.threshold is None else point.threshold
