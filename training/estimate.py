"""What a run will take: time from a pilot and a few timed steps, disk from the models' sizes."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from semspec.training.config import PipelineConfig, ProbesConfig, SamplesConfig
from semspec.training.data.pair import Pair, states_dtype
from semspec.training.data.questions import Question
from semspec.training.pilot import Piloted
from semspec.training.progress import Reporter, duration
from semspec.training.trainer.descent import Descent
from semspec.training.trainer.fit import device_of
from semspec.training.trainer.probes import SERVED, Variant, compared, curve, of_domains, training_of
from semspec.training.trainer.recipe import Role
from semspec.training.trainer.reduction import Examples, fit_reduction
from semspec.training.trainer.states import FeatureSource, StateStore
from semspec.types import Writer

T = TypeVar("T")
TIMED_ROWS = 1024
"""Segments that parts of a fit are timed on."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated time and disk space of a whole run on one worker."""

    num_questions: int
    num_contexts: int
    stage_s: dict[str, float]
    states_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        lines = [f"{self.num_questions} questions, about {self.num_contexts} contexts"]
        lines += [f"{name:<9} {duration(seconds)}" for name, seconds in self.stage_s.items()]
        lines += [f"{'together':<9} {duration(self.total_s)} on one worker; --shard i/n divides the first three"]
        lines += [f"{'disk':<9} {gigabytes(self.states_bytes)} for the states ({gigabytes(self.free_bytes)} free)"]
        return "\n".join(lines)

    @property
    def total_s(self) -> float:
        return sum(self.stage_s.values())


def state_row_bytes(pair: Pair, config: PipelineConfig) -> int:
    """Size of the states of one context with N target-written and N draft-written segments, in bytes."""
    dtype = states_dtype(config.samples.states_dtype, pair.target.model.dtype)
    infos = {writer: model.lm.info for writer, model in pair.models.items()}
    sizes = {writer: (info.num_layers + 1) * info.hidden_size for writer, info in infos.items()}
    return context_bytes(config.samples, sizes[Writer.TARGET], sizes[Writer.DRAFT], dtype.itemsize)


def context_bytes(samples: SamplesConfig, target_size: int, draft_size: int, itemsize: int) -> int:
    """Size of the states of one context in bytes; `target_size`, `draft_size`: numbers in a segment's states."""
    return samples.num_samples * itemsize * (2 * target_size + draft_size)


def fit_seconds(config: PipelineConfig, piloted: Piloted, every: Sequence[Question], reporter: Reporter) -> float:
    """Estimated seconds of fitting all probes: the served pair, and those that the report compares with it.

    Each kind of probe is fitted for an epoch to rows of the pilot, in a store of the same shapes as the whole run's.
    """
    device = device_of(config.probes.device)
    store, times, total = StateStore(piloted.work / "samples"), dict[Any, FitTimes](), 0.0
    probes = planned_probes(config, every)
    for role, variant in probes:
        recipe = variant.recipe
        key = (role, *recipe.inputs(role), recipe.loss, recipe.seeds)
        if key not in times:
            reporter.say(f"pilot: {len(times) + 1}. kind of probe ({variant.name}, {role})")
            times[key] = _fit_times(config, role, variant, piloted, store, device)
        rows = {split: num_rows(config, role, variant, piloted, every, split) for split in ("train", "validation")}
        total += times[key].seconds(recipe, rows["train"], rows["validation"])
    return total


def planned_probes(config: PipelineConfig, every: Sequence[Question]) -> list[tuple[Role, Variant]]:
    """Role and variant of each probe that a run fits; those that several variants share, once."""
    domains = sorted({question.domain for question in every if question.split == "train"})
    variants = [
        Variant(SERVED, config.probes),
        *(compared(config.probes) if config.report.variants else ()),
        *curve(config),
        *of_domains(config, domains),
    ]
    roles: tuple[Role, ...] = ("draft", "target")
    found: dict[str, tuple[Role, Variant]] = {}
    for variant in variants:
        for role in roles:
            found.setdefault(json.dumps([role, training_of(config, role, variant)]), (role, variant))
    return list(found.values())


def num_rows(
    config: PipelineConfig, role: Role, variant: Variant, piloted: Piloted, every: Sequence[Question], split: str
) -> float:
    """Segments of a split that a probe learns from in the whole run."""
    own = [one for one in every if one.split == split and variant.domain in (None, one.domain)]
    writers = 1 if role == "draft" or variant.recipe.labels == "own" else 2
    share = variant.share if split == "train" else 1.0
    return share * len(own) * piloted.contexts.get(False, 0) * writers * config.samples.num_samples


@dataclass(frozen=True, slots=True)
class FitTimes:
    """Seconds of the parts of a fit, each a segment; the reduction's with what it takes for any number of them."""

    reduction_s: float
    reduction_row_s: float
    caching_row_s: float
    """Of reducing each segment once, where the reduced ones are kept in memory."""
    train_row_s: float
    validate_row_s: float

    def seconds(self, recipe: ProbesConfig, num_train: float, num_validation: float) -> float:
        """Of a whole fit, its predictions of the held-out segments left out."""
        seen = min(num_train, recipe.statistics_rows)
        epochs = len(recipe.seeds) * min(recipe.num_epochs, recipe.num_epochs / 2 + recipe.patience)
        once = self.reduction_s + seen * self.reduction_row_s + (num_train + num_validation) * self.caching_row_s
        return once + epochs * (num_train * self.train_row_s + num_validation * self.validate_row_s)


def _fit_times(
    config: PipelineConfig, role: Role, variant: Variant, piloted: Piloted, store: StateStore, device: torch.device
) -> FitTimes:
    """Measure a fit on rows of the pilot, repeated where there are too few.

    Features stay on disk, and reduced ones in memory, as in the whole run.
    """
    recipe, labels = variant.recipe, piloted.labels
    memory = recipe.memory_gib * 2**30
    source = FeatureSource(store, role, *recipe.inputs(role))
    num_bytes = source.num_bytes * piloted.states_bytes / max(1, _size(store))
    source.memory_bytes = source.num_bytes if num_bytes <= memory else 0
    mask = labels.by_draft if role == "draft" else np.ones(len(labels), dtype=np.bool_)
    least = max(TIMED_ROWS, 4 * recipe.projection.width if recipe.projection else 0)
    some = np.resize(labels.where(mask), 2 * least)
    source.read(labels, some[:1])  # resident ones are loaded now
    few_s, reduction = _timed(lambda: fit_reduction(source, labels, some[:least], recipe.projection, device))
    many_s, _ = _timed(lambda: fit_reduction(source, labels, some, recipe.projection, device))
    row_s = max(0.0, many_s - few_s) / least
    targets = labels.target_probability if role == "target" else labels.draft_probability
    free = memory - (num_bytes if num_bytes <= memory else 0)
    cached_bytes = 2 * reduction.num_outputs * piloted.contexts.get(False, 0) * config.samples.num_samples
    caching_s, examples = _timed(
        lambda: Examples(source, labels, targets, some, reduction, 1 << 62 if cached_bytes <= free else 0)
    )
    descent = Descent(reduction.num_outputs, recipe, recipe.seeds[0], device)
    train_s, _ = _timed(lambda: descent.epoch(examples, lambda share: None))
    validate_s, _ = _timed(lambda: descent.validate(examples))
    num = len(some)
    return FitTimes(max(0.0, few_s - least * row_s), row_s, caching_s / num, train_s / num, validate_s / num)


def _size(store: StateStore) -> int:
    return sum(path.stat().st_size for path in store.folder.glob("*.safetensors"))


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    """Duration of `work` in seconds, and its result."""
    start = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
