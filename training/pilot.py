"""A pilot run on a few questions, from which a whole run is estimated."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from semspec.training.data.labels import Labels, arranged
from semspec.training.data.questions import Question
from semspec.training.data.stages import Questions
from semspec.training.progress import Reporter, duration, timed

if TYPE_CHECKING:
    from semspec.training.pipeline import Pipeline

LEAST_S = 60.0
"""A pilot goes on for at least so many seconds, so that long and short questions even out."""

Kind = bool
"""Whether a question is for the report only: such have samples of their own number."""


@dataclass(frozen=True, slots=True)
class Piloted:
    """What the pilot measured, as for all questions."""

    stage_s: dict[str, float]
    contexts: dict[Kind, float]
    """Contexts a question."""
    states_bytes: float
    labels: Labels
    work: Path


def groups_of(every: Sequence[Question], size: int) -> list[tuple[Kind, list[Question]]]:
    """The questions in groups of `size` of one kind, both kinds in turn, in an order that is drawn once.

    A group is smaller where there are fewer questions of a kind; those left over are in none.
    """
    order = np.random.default_rng(0).permutation(len(every))
    kinds = {is_test: [every[i] for i in order if (every[i].split == "test") is is_test] for is_test in (False, True)}
    size = min([size, *(len(own) for own in kinds.values() if own)])
    cut = {kind: [own[i : i + size] for i in range(0, len(own) - size + 1, size)] for kind, own in kinds.items()}
    rounds = range(max(len(own) for own in cut.values()))
    return [(kind, own[i]) for i in rounds for kind, own in cut.items() if i < len(own)]


def run_pilot(
    pilot: "Pipeline", every: Sequence[Question], size: int, least_s: float, names: Sequence[str], reporter: Reporter
) -> Piloted:
    """Run the stages `names` on groups of `size` questions, until each kind had one and `least_s` seconds are over.

    `pilot` has an empty work folder and no stage yet, and its models are loaded.
    """
    groups = groups_of(every, size)
    pilot.questions = Questions([question for _, group in groups for question in group], len(groups[0][1]))
    pilot.clusters.load()
    totals = {kind: defaultdict[str, float](float) for kind, _ in groups}
    started, num_done = perf_counter(), 0
    for number, (kind, group) in enumerate(groups):
        if all(totals.values()) and perf_counter() - started >= least_s:
            break
        found = totals[kind]
        for name in names:
            found[name] += timed(partial(_shard, pilot, name, number, reporter))[1]
        found["questions"] += len(group)
        found["contexts"] += pilot.contexts.num_contexts(number)
        found["bytes"] += pilot.samples.folder.file(number, ".safetensors").stat().st_size
        num_done = number + 1
        told = ", ".join(f"{name} {duration(found[name])}" for name in names)
        reporter.say(f"pilot: {num_done * len(group)} of {len(every)} questions, those {_words(kind)}: {told}")
    of_kind = Counter(question.split == "test" for question in every)
    whole = {
        name: sum(found[name] * of_kind[kind] / found["questions"] for kind, found in totals.items())
        for name in (*names, "bytes")
    }
    ids = {question.id: index for index, question in enumerate(pilot.questions.all)}
    rows = [row for number in range(num_done) for row in pilot.labels_of(number, ids)]
    return Piloted(
        {name: whole[name] for name in names},
        {kind: found["contexts"] / found["questions"] for kind, found in totals.items()},
        whole["bytes"],
        arranged(rows, pilot.questions.all),
        pilot.work,
    )


def _shard(pilot: "Pipeline", name: str, number: int, reporter: Reporter) -> None:
    """One stage of a group, with a bar that stays only while it runs."""
    stage = pilot.stage(name)
    stage.folder.claim(stage.recipe())
    with reporter.bar(f"pilot, {name}", stage.size(number), stage.unit, is_passing=True) as advance:
        stage.make(number, advance)


def _words(kind: Kind) -> str:
    return "for the report" if kind else "to train on"
