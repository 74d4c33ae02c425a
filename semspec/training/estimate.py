"""What a run will take: time from a pilot on a few questions and a few timed steps, disk from the models' sizes."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from semspec.engine.hub import format_bytes
from semspec.reporting.progress import Reporter, duration, timed
from semspec.training.config import PipelineConfig, SamplesConfig
from semspec.training.data.labels import Labels, arranged
from semspec.training.data.pair import DeadlinePassed, Pair
from semspec.training.data.questions import Question
from semspec.training.data.stages import ClustersStage
from semspec.training.trainer.fit import fit
from semspec.training.trainer.probes import Variant, Variants, training_of
from semspec.training.trainer.recipe import FitRecipe, Role
from semspec.training.trainer.states import FeatureSource, StateStore
from semspec.types import Writer

LEAST_S = 60.0
"""A pilot goes on for at least so many seconds, so that long and short questions even out."""
TIMED_ROWS = 1024
"""Segments that parts of a fit are timed on."""

Kind = bool
"""Whether a question is for the report only: such have samples of their own number."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated time and disk space of a whole run on one worker."""

    num_questions: int
    num_contexts: int
    stage_s: dict[str, float]
    states_bytes: int
    free_bytes: int
    is_lower_bound: bool = False
    """Whether the pilot reached its limit of time, so that only the least time is known."""

    def __str__(self) -> str:
        if self.is_lower_bound:
            return f"{self.num_questions} questions: {self.time}, as the pilot reached its limit of time"
        lines = [f"{self.num_questions} questions, about {self.num_contexts} contexts"]
        lines += [f"{name:<9} {duration(seconds)}" for name, seconds in self.stage_s.items()]
        lines += [
            f"{'together':<9} {duration(self.total_s)} on one worker; --shard i/n divides the first three"
        ]
        lines += [
            f"{'disk':<9} {format_bytes(self.states_bytes)} for the states ({format_bytes(self.free_bytes)} free)"
        ]
        return "\n".join(lines)

    def times(self, share: float) -> "Estimate":
        """The estimate for this share of the questions."""
        stage_s = {name: share * seconds for name, seconds in self.stage_s.items()}
        counts = round(share * self.num_questions), round(share * self.num_contexts)
        states_bytes = round(share * self.states_bytes)
        return Estimate(*counts, stage_s, states_bytes, self.free_bytes, self.is_lower_bound)

    @property
    def time(self) -> str:
        """The time of the whole run in words."""
        return f"{'at least' if self.is_lower_bound else 'about'} {duration(self.total_s)}"

    @property
    def total_s(self) -> float:
        return sum(self.stage_s.values())


def state_row_bytes(pair: Pair, config: PipelineConfig) -> int:
    """Size of the states of one context with N target-written and N draft-written segments, in bytes."""
    infos = {writer: model.lm.info for writer, model in pair.models.items()}
    sizes = {writer: (info.num_layers + 1) * info.hidden_size for writer, info in infos.items()}
    return context_bytes(config.samples, sizes[Writer.TARGET], sizes[Writer.DRAFT])


def context_bytes(samples: SamplesConfig, target_size: int, draft_size: int) -> int:
    """Size of the states of one context in bytes; `target_size`, `draft_size`: numbers in a segment's states."""
    return samples.num_samples * 2 * (2 * target_size + draft_size)


class PilotOverdue(Exception):
    """The pilot reached its limit of time."""

    def __init__(self, num_begun: int, seconds: float) -> None:
        """`num_begun`: questions that the pilot finished or had begun; `seconds`: what they took."""
        super().__init__(num_begun, seconds)
        self.num_begun, self.seconds = num_begun, seconds


@dataclass(frozen=True, slots=True)
class Piloted:
    """What the pilot measured, as for all questions."""

    stage_s: dict[str, float]
    contexts: dict[Kind, float]
    """Contexts a question."""
    states_bytes: float
    labels: Labels
    work: Path


def groups_of(every: Sequence[Question], size: int) -> list[list[Question]]:
    """The questions in groups of `size` of one kind, both kinds in turn, in an order that is drawn once. A group is
    smaller where there are fewer questions of a kind; those left over are in none."""
    order = np.random.default_rng(0).permutation(len(every))
    kinds = [
        [every[i] for i in order if (every[i].split == "test") is is_test]
        for is_test in (False, True)
    ]
    size = min([size, *(len(own) for own in kinds if own)])
    cut = [[own[i : i + size] for i in range(0, len(own) - size + 1, size)] for own in kinds]
    return [own[i] for i in range(max(map(len, cut))) for own in cut if i < len(own)]


def run_pilot(
    clusters: ClustersStage,
    groups: Sequence[Sequence[Question]],
    every: Sequence[Question],
    reporter: Reporter,
) -> Piloted:
    """Run the stages on `groups`, a shard each, until each kind had one and `LEAST_S` seconds are over. The stages'
    folders are empty, and the models are loaded. Raises: PilotOverdue when their writers raise DeadlinePassed."""
    clusters.load()
    stages, bars = (clusters.contexts, clusters.samples, clusters), reporter.passing()
    totals = {group[0].split == "test": defaultdict[str, float](float) for group in groups}
    started, num_done = perf_counter(), 0
    for number, group in enumerate(groups):
        if all(totals.values()) and perf_counter() - started >= LEAST_S:
            break
        is_test = group[0].split == "test"
        found = totals[is_test]
        try:
            for stage in stages:
                found[stage.name] += timed(partial(stage.make, [number], bars))[1]
        except DeadlinePassed:
            num_begun = sum(map(len, groups[: number + 1]))
            raise PilotOverdue(num_begun, perf_counter() - started) from None
        found["questions"] += len(group)
        found["num_contexts"] += clusters.contexts.num_contexts(number)
        found["bytes"] += clusters.samples.folder.file(number, ".safetensors").stat().st_size
        num_done += 1
        kind = "for the report" if is_test else "to train on"
        told = ", ".join(f"{stage.name} {duration(found[stage.name])}" for stage in stages)
        reporter.say(
            f"pilot: {num_done * len(group)} of {len(every)} questions, those {kind}: {told}"
        )
    of_kind = Counter(question.split == "test" for question in every)

    def whole(name: str) -> float:
        return sum(
            found[name] * of_kind[kind] / found["questions"] for kind, found in totals.items()
        )

    rows = [row for number in range(num_done) for row in clusters.labels(number)]
    return Piloted(
        {stage.name: whole(stage.name) for stage in stages},
        {kind: found["num_contexts"] / found["questions"] for kind, found in totals.items()},
        whole("bytes"),
        arranged(rows, clusters.contexts.questions.all),
        clusters.folder.path.parent,
    )


def fit_seconds(
    config: PipelineConfig, piloted: Piloted, every: Sequence[Question], reporter: Reporter
) -> float:
    """Estimated seconds of fitting all probes: the served pair, and those that the report compares with it. Each kind
    of probe is fitted to rows of the pilot, in a store of the same shapes as the whole run's."""
    store, times, total = (
        StateStore(piloted.work / "samples"),
        dict[Any, tuple[float, float]](),
        0.0,
    )
    for role, variant in planned_probes(config, every):
        recipe, num_train = variant.recipe, num_rows(config, role, variant, piloted, every)
        key = (role, *recipe.inputs(role), recipe.loss)
        if key not in times:
            with reporter.busy(f"pilot: {len(times) + 1}. kind of probe ({variant.name}, {role})"):
                times[key] = _fit_times(role, recipe, piloted.labels, store, num_train)
        once_s, epoch_s = times[key]
        num_epochs = min(recipe.num_epochs, recipe.num_epochs / 2 + recipe.patience)
        total += num_train * (once_s + num_epochs * epoch_s)
    return total


def planned_probes(config: PipelineConfig, every: Sequence[Question]) -> list[tuple[Role, Variant]]:
    """Role and variant of each probe that a run fits; those that several variants share, once."""
    domains = sorted({question.domain for question in every if question.split == "train"})
    roles: tuple[Role, ...] = ("draft", "target")
    found: dict[str, tuple[Role, Variant]] = {}
    for variant, role in product(Variants.of(config, domains).all, roles):
        found.setdefault(json.dumps([role, training_of(config, role, variant)]), (role, variant))
    return list(found.values())


def num_rows(
    config: PipelineConfig,
    role: Role,
    variant: Variant,
    piloted: Piloted,
    every: Sequence[Question],
) -> float:
    """Segments that a probe is trained on in the whole run."""
    own = [one for one in every if one.split == "train" and variant.domain in (None, one.domain)]
    writers = 1 if role == "draft" or variant.recipe.labels == "own" else 2
    return (
        variant.share
        * len(own)
        * piloted.contexts.get(False, 0)
        * writers
        * config.samples.num_samples
    )


def _fit_times(
    role: Role, recipe: FitRecipe, labels: Labels, store: StateStore, num_train: float
) -> tuple[float, float]:
    """Seconds a segment of what a fit does once, and of an epoch: of short fits to rows of the pilot, repeated where
    there are too few. Reduced features are kept in memory only if those of `num_train` segments fit there."""
    source = FeatureSource(store, role, *recipe.inputs(role))
    mask = labels.by_draft if role == "draft" else np.ones(len(labels), dtype=np.bool_)
    some = np.resize(np.flatnonzero(mask), TIMED_ROWS)
    wanted = np.linspace(0, 1, len(labels), dtype=np.float32)
    memory_gib = recipe.memory_gib * min(1, TIMED_ROWS / max(1, num_train))

    def fit_s(num_epochs: int) -> float:
        short = {"num_epochs": num_epochs, "patience": num_epochs, "memory_gib": memory_gib}
        few = some[: TIMED_ROWS // 8]
        return timed(
            lambda: fit(source, wanted, labels, some, few, recipe.model_copy(update=short))
        )[1]

    one_s, three_s = fit_s(1), fit_s(3)
    epoch_s = max(0.0, three_s - one_s) / 2
    return max(0.0, one_s - epoch_s) / TIMED_ROWS, epoch_s / TIMED_ROWS
