"""A samples folder as the stage `samples` leaves it, small and with something to learn in it."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from semspec.probes.probe import Probe
from semspec.training.data.labels import Labels
from semspec.training.trainer.fit import fit, predict
from semspec.training.trainer.recipe import FitRecipe, Role
from semspec.training.trainer.states import FeatureSource, Indices, StateStore
from semspec.types import SURPRISAL_FEATURES

NUM_LAYERS, HIDDEN_SIZE, DRAFT_SHAPE = 5, 16, (3, 12)
SAMPLES = 4
"""A context from each model."""

QUICK = FitRecipe(num_epochs=3, batch_size=32, hidden_sizes=(16, 8), device="cpu")
WIDTH = 6


def write_samples(
    folder: Path, num_contexts: int = 60, num_shards: int = 3, dtype: torch.dtype = torch.bfloat16
) -> Labels:
    """Shards of unequal numbers, and labels that a few numbers of the states determine; shuffled over the splits."""
    generator = torch.Generator().manual_seed(5)
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[tuple[torch.Tensor, ...]] = []
    for number, contexts in enumerate(np.array_split(np.arange(num_contexts), num_shards)):
        size = len(contexts) * 2 * SAMPLES
        target = torch.randn(size, NUM_LAYERS, HIDDEN_SIZE, generator=generator) * 3 + 1
        draft = torch.randn(size // 2, *DRAFT_SHAPE, generator=generator)
        surprisal = torch.randn(size, len(SURPRISAL_FEATURES), generator=generator)
        tensors = {
            "target_states": target.to(dtype),
            "draft_states": draft.to(dtype),
            "surprisal": surprisal,
        }
        save_file(tensors, folder / f"{2 * number:05d}.safetensors")
        by_draft = (torch.arange(size) // SAMPLES) % 2 == 1
        draft_row = torch.where(by_draft, by_draft.cumsum(0) - 1, -1)
        p = torch.sigmoid((target[:, 0, 0] + target[:, 2, 3] - 2) / 2 + 0.3 * surprisal[:, 0])
        q = torch.where(by_draft, torch.sigmoid(draft[draft_row, 0, 0] - draft[draft_row, 2, 1]), 0)
        context = torch.from_numpy(contexts).repeat_interleave(2 * SAMPLES)
        parts.append(
            (
                torch.full((size,), 2 * number),
                torch.arange(size),
                draft_row,
                by_draft,
                p,
                q,
                context,
            )
        )
    columns = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
    (
        all_shards,
        all_rows,
        draft_rows,
        drafted,
        target_probability,
        draft_probability,
        all_contexts,
    ) = columns
    splits = np.array(["train", "train", "train", "validation", "calibration", "test"])
    return Labels(
        context=all_contexts,
        question=all_contexts,
        domain=np.full(len(all_contexts), "all"),
        split=splits[all_contexts % len(splits)],
        by_draft=drafted,
        target_probability=target_probability,
        draft_probability=draft_probability,
        valid=np.full(len(all_contexts), np.nan, dtype=np.float32),
        num_tokens=np.ones_like(all_contexts),
        shard=all_shards,
        row=all_rows,
        draft_row=draft_rows,
    )


class Data:
    """A samples folder and its labels."""

    def __init__(self, folder: Path, num_contexts: int = 60) -> None:
        self.labels: Labels = write_samples(folder, num_contexts)
        self.store = StateStore(folder)

    def source(self, recipe: FitRecipe = QUICK, role: Role = "target") -> FeatureSource:
        return FeatureSource(self.store, role, *recipe.inputs(role))

    def rows(self, split: str, role: Role = "target") -> NDArray[np.int64]:
        mask = self.labels.split == split
        return np.flatnonzero(mask & self.labels.by_draft if role == "draft" else mask)

    def wanted(self, role: Role = "target") -> NDArray[np.float32]:
        return self.labels.target_probability if role == "target" else self.labels.draft_probability

    def fit(
        self, recipe: FitRecipe = QUICK, role: Role = "target", **options: Any
    ) -> tuple[Probe, list[float]]:
        train, validation = (self.rows(split, role) for split in ("train", "validation"))
        source = self.source(recipe, role)
        return fit(source, self.wanted(role), self.labels, train, validation, recipe, **options)

    def predict(
        self, probe: Probe, recipe: FitRecipe, split: str = "test", role: Role = "target"
    ) -> NDArray[np.float32]:
        return predict(
            probe, self.source(recipe, role=role), self.labels, self.rows(split, role), "cpu"
        )


class Watched(FeatureSource):
    """Counts the segments whose features are held."""

    held = most = 0

    def read(self, labels: Labels, indices: Indices) -> Tensor:
        rows = super().read(labels, indices)
        self.held += len(indices)
        self.most = max(self.most, self.held)
        weakref.finalize(rows, self._let_go, len(indices))
        return rows

    def _let_go(self, size: int) -> None:
        self.held -= size
