"""Estimates of a run: time from a pilot on a few questions and a few timed steps, disk from the models' sizes."""

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
from semspec.training.data.labels import Labels, labels_from_rows
from semspec.training.data.pair import Pair
from semspec.training.data.questions import Question
from semspec.training.data.stages import ClustersStage
from semspec.training.data.writers import DeadlinePassed
from semspec.training.trainer.fit import fit
from semspec.training.trainer.probes import Variant, Variants, training_of
from semspec.training.trainer.recipe import FitRecipe, Role
from semspec.training.trainer.states import FeatureSource, StateStore
from semspec.types import Writer

LEAST_S = 60.0
"""A pilot runs for at least this many seconds, so that long and short questions even out."""
TIMED_ROWS = 1024
"""Segments that parts of a fit are timed on."""

Kind = bool
"""True for questions that are for the report only, which have another number of samples."""


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
        """Return the estimate for this share of the questions."""
        stage_s = {name: share * seconds for name, seconds in self.stage_s.items()}
        counts = round(share * self.num_questions), round(share * self.num_contexts)
        states_bytes = round(share * self.states_bytes)
        return Estimate(*counts, stage_s, states_bytes, self.free_bytes, self.is_lower_bound)

    @property
    def time(self) -> str:
        """Return the time of the whole run in words."""
        return f"{'at least' if self.is_lower_bound else 'about'} {duration(self.total_s)}"

    @property
    def total_s(self) -> float:
        return sum(self.stage_s.values())


def state_row_bytes(pair: Pair, config: PipelineConfig) -> int:
    """Return the bytes of the states of one context with N target-written and N draft-written segments."""
    infos = {writer: model.lm.info for writer, model in pair.models.items()}
    sizes = {writer: (info.num_layers + 1) * info.hidden_size for writer, info in infos.items()}
    return context_bytes(config.samples, sizes[Writer.TARGET], sizes[Writer.DRAFT])


def context_bytes(samples: SamplesConfig, target_size: int, draft_size: int) -> int:
    """Return the bytes of the states of one context; `target_size`, `draft_size`: numbers in a segment's states."""
    return samples.num_samples * 2 * (2 * target_size + draft_size)


class PilotOverdue(Exception):
    """The pilot reached its limit of time."""

    def __init__(self, num_begun: int, seconds: float) -> None:
        """`num_begun`: questions that the pilot finished or began; `seconds`: time that they took."""
        super().__init__(num_begun, seconds)
        self.num_begun, self.seconds = num_begun, seconds


@dataclass(frozen=True, slots=True)
class PilotResult:
    """Measurements of the pilot, scaled to all questions."""

    stage_s: dict[str, float]
    contexts: dict[Kind, float]
    """Contexts a question."""
    states_bytes: float
    labels: Labels
    work: Path


def group_questions(questions: Sequence[Question], size: int) -> list[list[Question]]:
    """Group the questions by `size` of one kind, both kinds in turn, in a fixed random order. Groups are smaller if
    there are fewer questions of a kind; remaining questions are in no group."""
    order = np.random.default_rng(0).permutation(len(questions))
    kinds = [
        [questions[i] for i in order if (questions[i].split == "test") is is_test]
        for is_test in (False, True)
    ]
    size = min([size, *(len(members) for members in kinds if members)])
    cut = [
        [members[i : i + size] for i in range(0, len(members) - size + 1, size)]
        for members in kinds
    ]
    return [members[i] for i in range(max(map(len, cut))) for members in cut if i < len(members)]


def run_pilot(
    clusters: ClustersStage,
    groups: Sequence[Sequence[Question]],
    questions: Sequence[Question],
    reporter: Reporter,
) -> PilotResult:
    """Run the stages on `groups`, each a shard, until each kind had one and `LEAST_S` seconds have passed. The stages'
    folders must be empty, and the models loaded. Raises: PilotOverdue when their writers raise DeadlinePassed."""
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
        times = ", ".join(f"{stage.name} {duration(found[stage.name])}" for stage in stages)
        reporter.say(
            f"pilot: {num_done * len(group)} of {len(questions)} questions, those {kind}: {times}"
        )
    of_kind = Counter(question.split == "test" for question in questions)

    def whole(name: str) -> float:
        return sum(
            found[name] * of_kind[kind] / found["questions"] for kind, found in totals.items()
        )

    rows = [row for number in range(num_done) for row in clusters.labels(number)]
    return PilotResult(
        {stage.name: whole(stage.name) for stage in stages},
        {kind: found["num_contexts"] / found["questions"] for kind, found in totals.items()},
        whole("bytes"),
        labels_from_rows(rows, clusters.contexts.questions.all),
        clusters.folder.path.parent,
    )


def fit_seconds(
    config: PipelineConfig, piloted: PilotResult, questions: Sequence[Question], reporter: Reporter
) -> float:
    """Estimate the seconds of fitting all probes: the served pair, and those that the report compares with it. Each
    kind of probe is fitted to rows of the pilot, whose store has the shapes of the whole run's."""
    store, times, total = (
        StateStore(piloted.work / "samples"),
        dict[Any, tuple[float, float]](),
        0.0,
    )
    for role, variant in planned_probes(config, questions):
        recipe, num_train = variant.recipe, num_rows(config, role, variant, piloted, questions)
        key = (role, *recipe.inputs(role), recipe.loss)
        if key not in times:
            with reporter.busy(f"pilot: {len(times) + 1}. kind of probe ({variant.name}, {role})"):
                times[key] = _fit_times(role, recipe, piloted.labels, store, num_train)
        once_s, epoch_s = times[key]
        num_epochs = min(recipe.num_epochs, recipe.num_epochs / 2 + recipe.patience)
        total += num_train * (once_s + num_epochs * epoch_s)
    return total


def planned_probes(
    config: PipelineConfig, questions: Sequence[Question]
) -> list[tuple[Role, Variant]]:
    """Return role and variant of each probe that a run fits; a probe that several variants share is listed once."""
    domains = sorted({question.domain for question in questions if question.split == "train"})
    roles: tuple[Role, ...] = ("draft", "target")
    found: dict[str, tuple[Role, Variant]] = {}
    for variant, role in product(Variants.of(config, domains).all, roles):
        found.setdefault(json.dumps([role, training_of(config, role, variant)]), (role, variant))
    return list(found.values())


def num_rows(
    config: PipelineConfig,
    role: Role,
    variant: Variant,
    piloted: PilotResult,
    questions: Sequence[Question],
) -> float:
    """Return the number of segments that a probe is trained on in the whole run."""
    chosen = [
        question
        for question in questions
        if question.split == "train" and variant.domain in (None, question.domain)
    ]
    writers = 1 if role == "draft" or variant.recipe.labels == "own" else 2
    return (
        variant.share
        * len(chosen)
        * piloted.contexts.get(False, 0)
        * writers
        * config.samples.num_samples
    )


def _fit_times(
    role: Role, recipe: FitRecipe, labels: Labels, store: StateStore, num_train: float
) -> tuple[float, float]:
    """Return the seconds per segment of a fit's fixed work and of an epoch, from short fits to rows of the pilot, which
    are repeated if there are too few. Reduced features are cached only if those of `num_train` segments would be."""
    source = FeatureSource(store, role, *recipe.inputs(role))
    mask = labels.by_draft if role == "draft" else np.ones(len(labels), dtype=np.bool_)
    rows = np.resize(np.flatnonzero(mask), TIMED_ROWS)
    targets = np.linspace(0, 1, len(labels), dtype=np.float32)
    memory_gib = recipe.memory_gib * min(1, TIMED_ROWS / max(1, num_train))

    def fit_s(num_epochs: int) -> float:
        short = {"num_epochs": num_epochs, "patience": num_epochs, "memory_gib": memory_gib}
        held_out = rows[: TIMED_ROWS // 8]
        return timed(
            lambda: fit(source, targets, labels, rows, held_out, recipe.model_copy(update=short))
        )[1]

    one_s, three_s = fit_s(1), fit_s(3)
    epoch_s = max(0.0, three_s - one_s) / 2
    return max(0.0, one_s - epoch_s) / TIMED_ROWS, epoch_s / TIMED_ROWS
