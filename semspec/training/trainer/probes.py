"""Stage 5: the served pair of probes, and the variants that the report compares with it."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit
from torch import nn

from semspec.errors import InvalidRequest
from semspec.files import digest_of
from semspec.probes.probe import Artifact, CalibrationKind, Probe, ProbeCard, load_probe, save_probe
from semspec.reporting.progress import Reporter
from semspec.training.config import PipelineConfig
from semspec.training.data.labels import Labels
from semspec.training.evaluation.verification import Predicted
from semspec.training.trainer.fit import Probabilities, fit, predict
from semspec.training.trainer.recipe import FitRecipe, Role
from semspec.training.trainer.states import FeatureSource, StateStore
from semspec.types import ModelInfo

SERVED = "served"
LABEL_VARIANTS = {"labels of both writers": "cross", "the paper's labels": "own"}
"""Variants that differ from the served one in `probes.labels` alone, and its value there."""

SCALE_LIMIT = 20.0
"""Bound on the scale's factor; beyond it, the calibration split has almost no information about the probe."""

ALTERNATIVES = {"last layer": "last-hidden", "surprisal alone": "surprisal"}
"""Variants that are exported next to the served probes as baselines, and their names there."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to make a pair of probes."""

    name: str
    recipe: FitRecipe
    share: float = 1.0
    """Share of the training questions to use."""
    domain: str | None = None
    """The only domain to train on, if set."""


@dataclass(frozen=True, slots=True)
class Variants:
    """All pairs of probes of a run."""

    served: Variant
    compared: tuple[Variant, ...]
    """Each differs from the served one in one respect, or follows the paper."""
    curve: tuple[Variant, ...]
    """The served recipe on shares of the training questions."""
    domains: tuple[Variant, ...]
    """The served recipe on each of several domains."""

    @classmethod
    def of(cls, config: PipelineConfig, domains: Sequence[str]) -> "Variants":
        """Return the pairs of probes that `config` asks for; `domains`: those with questions to train on."""
        recipe, report = config.probes, config.report
        changes: dict[str, dict[str, Any]] = {
            "paper recipe": {
                "features": "states", "layers": "all", "draft_layers": None, "labels": "own", "loss": "mse",
                "projection": None, "calibration": "none",
            },
            **{name: {"labels": rule} for name, rule in LABEL_VARIANTS.items() if rule != recipe.labels},
            "states alone": {"features": "states"},
            "last layer": {"features": "states", "layers": "last"},
            "surprisal alone": {"features": "surprisal"},
        }  # fmt: skip
        compared, domain = changes.items() if report.variants else (), recipe.domain
        if domain not in (None, *domains):
            raise InvalidRequest(
                f"probes.domain: {domain}: no questions to train on",
                remedy=f"there are {', '.join(domains)}",
            )
        return cls(
            Variant(SERVED, recipe, domain=domain),
            tuple(
                Variant(name, recipe.model_copy(update=update), domain=domain)
                for name, update in compared
            ),
            tuple(
                Variant(f"{share:.1%} of the questions", recipe, share, domain)
                for share in report.learning_curve
            ),
            tuple(Variant(f"only {name}", recipe, domain=name) for name in domains)
            if domains[1:]
            else (),
        )

    @property
    def all(self) -> tuple[Variant, ...]:
        return (self.served, *self.compared, *self.curve, *self.domains)


def training_of(config: PipelineConfig, role: Role, variant: Variant) -> dict[str, Any]:
    """Return all settings that determine a probe, for its card; two variants may share a probe."""
    left_out = {"features", "layers", "draft_layers", "device", "memory_gib"}
    features, layers = variant.recipe.inputs(role)
    training = variant.recipe.model_dump(mode="json", exclude=left_out)
    training |= {
        "features": features,
        "layers": layers,
        "share": variant.share,
        "domain": variant.domain,
    }
    return dict[str, Any](
        json.loads(
            json.dumps(training | {"equivalence": config.equivalence.model_dump(mode="json")})
        )
    )


@dataclass(slots=True)
class Fitter:
    """Fits variants on one set of labels; a probe that is already in `folder` is not fitted again."""

    config: PipelineConfig
    labels: Labels
    store: StateStore
    infos: dict[str, ModelInfo]
    """Infos of both models, by role."""
    data_digest: str
    folder: Path
    reporter: Reporter
    _predicted: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def predicted(self, variant: Variant) -> Predicted:
        """Return the variant's predictions for all segments outside the training split."""
        held_out = self.labels.split != "train"
        return Predicted(
            variant.name,
            target_probability=self._probabilities("target", variant, held_out),
            draft_probability=self._probabilities(
                "draft", variant, held_out & self.labels.by_draft
            ),
        )

    def fitted(self, role: Role, variant: Variant) -> Artifact:
        """Return the variant's probe for one role's states, in the precision it is served with."""
        training = training_of(self.config, role, variant)
        path = self._path(role, training)
        if path.exists():
            return load_probe(path)
        save_probe(
            self._fit(role, variant), self._card(role, variant, training), path, torch.float16
        )
        return self.fitted(role, variant)

    def _fit(self, role: Role, variant: Variant) -> Probe:
        source, labels, recipe = self._source(role, variant), self.labels, variant.recipe
        targets = labels.target_probability if role == "target" else labels.draft_probability
        if recipe.labels == "own":
            targets = with_own(targets, self.config.samples.num_samples)
        train, validation, calibration = (
            self._rows(role, variant, split) for split in ("train", "validation", "calibration")
        )
        with self.reporter.bar(f"{variant.name}, {role}", 100, "%") as advance:
            done = 0.0

            def progress(share: float) -> None:
                nonlocal done
                advance(100 * share - done)
                done = 100 * share

            probe, _ = fit(source, targets, labels, train, validation, recipe, progress)
        if not len(calibration):
            return probe
        predicted = predict(probe, source, labels, calibration, recipe.device)
        return calibrate(probe, predicted, targets[calibration], recipe.calibration)

    def _probabilities(
        self, role: Role, variant: Variant, mask: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        name = self._path(role, training_of(self.config, role, variant)).stem
        if name not in self._predicted:
            rows = np.flatnonzero(mask)
            values = np.full(len(self.labels), np.nan, dtype=np.float32)
            probe = self.fitted(role, variant).probe
            source = self._source(role, variant)
            values[rows] = predict(probe, source, self.labels, rows, variant.recipe.device)
            self._predicted[name] = values
        return self._predicted[name]

    def _source(self, role: Role, variant: Variant) -> FeatureSource:
        return FeatureSource(self.store, role, *variant.recipe.inputs(role))

    def _rows(self, role: Role, variant: Variant, split: str) -> NDArray[np.int64]:
        """Return the segments of a split that a probe is trained, early-stopped or calibrated on."""
        labels = self.labels
        mask = labels.split == split
        if role == "draft":
            mask &= labels.by_draft
        elif variant.recipe.labels == "own":
            mask &= ~labels.by_draft
        if variant.domain is not None:
            mask &= labels.domain == variant.domain
        if split == "train" and variant.share < 1:
            questions = np.random.default_rng(0).permutation(
                np.unique(labels.question[labels.split == "train"])
            )
            mask &= np.isin(
                labels.question, questions[: max(1, round(variant.share * len(questions)))]
            )
        return np.flatnonzero(mask)

    def num_contexts(self, variant: Variant) -> int:
        """Return the number of contexts that the variant's target probe is trained on."""
        return len(np.unique(self.labels.context[self._rows("target", variant, "train")]))

    def _path(self, role: Role, training: dict[str, Any]) -> Path:
        return self.folder / f"{role}-{digest_of([training, self.data_digest])}.safetensors"

    def _card(self, role: Role, variant: Variant, training: dict[str, Any]) -> ProbeCard:
        info = self.infos[role]
        features, layers = variant.recipe.inputs(role)
        return ProbeCard(
            model=info.model,
            fingerprint=info.fingerprint,
            tokenizer=info.tokenizer,
            shape=(info.num_layers + 1, info.hidden_size),
            features=features,
            layers=layers,
            segmentations=(self.config.segmentation,),
            recipe=variant.recipe.labels if role == "target" else "own",
            data_digest=self.data_digest,
            calibration=variant.recipe.calibration
            if len(self._rows(role, variant, "calibration"))
            else "none",
            training=training,
        )


def with_own(shares: NDArray[np.float32], num_samples: int) -> NDArray[np.float32]:
    """Return the paper's |C|/N of N samples, from the shares of the other N - 1."""
    return ((shares * (num_samples - 1) + 1) / num_samples).astype(np.float32)


def calibrate(
    probe: Probe, predicted: Probabilities, label: Probabilities, kind: CalibrationKind
) -> Probe:
    """Return a copy of `probe`, calibrated on its predictions for the calibration split and the labels there.

    "temperature": scale and shift of the logit (Platt, 1999) with the least cross-entropy, folded into the last layer.
    The scale is positive, so the order of segments is preserved.

    Raises: InvalidRequest, with the remedy, when there is nothing to calibrate on.
    """
    if kind == "none":
        return probe
    if len(label) < 2 or label.min() == label.max():
        raise InvalidRequest(
            f"{len(label)} calibration segments with {len(np.unique(label))} different labels: add questions, raise "
            "shares.calibration, or set probes.calibration to none"
        )
    calibrated = copy.deepcopy(probe)
    scale, shift = _platt(predicted, label)
    last = cast(nn.Linear, calibrated.network[-1])
    with torch.no_grad():
        last.weight.mul_(scale)
        last.bias.mul_(scale).add_(shift)
    return calibrated


def _platt(predicted: Probabilities, label: Probabilities) -> tuple[float, float]:
    """Return the scale and shift of the logit that minimise the cross-entropy against soft labels."""
    logits = logit(predicted.astype(np.float64).clip(1e-7, 1 - 1e-7))
    targets = label.astype(np.float64)

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scale, shift = np.exp(parameters[0]), parameters[1]
        scaled = scale * logits + shift
        slope = (expit(scaled) - targets) / len(targets)
        gradient = np.array([(slope * logits).sum() * scale, slope.sum()])
        return float((np.logaddexp(0, scaled) - targets * scaled).mean()), gradient

    limit = np.log(SCALE_LIMIT)
    result: Any = minimize(
        loss,
        np.zeros(2),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-limit, limit), (-SCALE_LIMIT, SCALE_LIMIT)],
    )
    return float(np.exp(result.x[0])), float(result.x[1])
