"""Fits the probes of every cell to one set of samples, and makes pairs of them to serve."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from semspec.probes.probe import LayerSet, Probe, save_probe
from semspec.stack import BUNDLED_PAIR
from semspec.training.config import PipelineConfig
from semspec.training.data.labels import Labels
from semspec.training.data.pair import info_of
from semspec.training.evaluation.acceptance import Cost, recommend, served_rule
from semspec.training.evaluation.verification import Predicted, drafts
from semspec.training.files import StageFolder, write_json
from semspec.training.pipeline import Pipeline
from semspec.training.progress import Reporter
from semspec.training.trainer.probes import Fitter, Variant
from semspec.training.trainer.recipe import Role
from semspec.training.trainer.states import StateStore
from semspec.types import Acceptance
from studies.factorial.cells import RECIPES, Cell

ROLES: tuple[Role, ...] = ("draft", "target")


class Factorial:
    """The samples in `work`, and the probes that are fitted to them; each fitted probe is kept there."""

    def __init__(self, config: PipelineConfig, work: Path, reporter: Reporter) -> None:
        """Raises: InvalidRequest when shards are missing."""
        self._config = config
        pipeline = Pipeline(config, work, reporter=reporter)
        self.labels: Labels = pipeline.labels
        self._infos = {role: info_of(fields) for role, fields in pipeline.pair.infos().items()}
        digest = StageFolder(work / "labels").digest
        store = StateStore(work / "samples")
        self._fitter = Fitter(config, self.labels, store, self._infos, digest, work / "cells", reporter)

    def variant(self, cell: Cell, seed: int) -> Variant:
        layers: dict[str, LayerSet]
        if cell.layers == "middle":
            layers = {role: (round(info.num_layers / 2),) for role, info in self._infos.items()}
        else:
            layers = dict.fromkeys(ROLES, "all" if cell.layers == "all" else "last")
        changed = {
            **RECIPES[cell.recipe], "layers": layers["target"], "draft_layers": layers["draft"],
            "features": cell.features, "seed": seed,
        }  # fmt: skip
        return Variant(f"{cell.name}, seed {seed}", self._config.probes.model_copy(update=changed))

    def predicted(self, cell: Cell, seed: int) -> Predicted:
        found = self._fitter.predicted(self.variant(cell, seed))
        if cell.has_states:
            return found
        return replace(found, draft_probability=np.full_like(found.draft_probability, self.constant_q))

    @property
    def constant_q(self) -> float:
        """The mean of the labels that the draft's probe learns from."""
        learnt = self.labels.by_draft & (self.labels.split == "train")
        return float(self.labels.draft_probability[learnt].mean())

    def save_pair(
        self,
        cell: Cell,
        seed: int,
        folder: Path,
        domain: str | None = None,
        share: float = 1.0,
        cost: Cost | None = None,
    ) -> None:
        """A pair to serve: links to the models, the probes, and serving.json with the paper's rule; with a `cost`, the
        rule that `semspec train` would recommend.

        The probes are trained on one `domain` only, if it is given, or on a `share` of the training questions.
        """
        variant = replace(self.variant(cell, seed), domain=domain, share=share)
        (folder / "probes").mkdir(parents=True)
        for role in ROLES:
            (folder / role).symlink_to((BUNDLED_PAIR / role).resolve())
            fitted = self._fitter.fitted(role, variant)
            if role == "draft" and not cell.has_states:
                _make_constant(fitted.probe, self.constant_q)
            save_probe(fitted.probe, fitted.card, folder / "probes" / f"{role}.safetensors", torch.float16)
        rule = (
            Acceptance("sample") if cost is None else self._recommended(self._fitter.predicted(variant), domain, cost)
        )
        write_json(folder / "probes" / "serving.json", served_rule(rule, self._config.report.gamma))

    def _recommended(self, predicted: Predicted, domain: str | None, cost: Cost) -> Acceptance:
        """The rule chosen on the questions held out for that, of the `domain` alone if there is one."""
        held_out = np.isin(self.labels.split, ["validation", "calibration"])
        if domain is not None:
            held_out &= self.labels.domain == domain
        judged = drafts(self.labels, predicted, held_out, "truth")
        return recommend(judged, judged, cost, self._config.report.max_wrong_accepted).rule


def _make_constant(probe: Probe, probability: float) -> None:
    """Make `probe` return `probability` for any features."""
    last = probe.network[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.constant_(last.bias, float(np.log(probability / (1 - probability))))
