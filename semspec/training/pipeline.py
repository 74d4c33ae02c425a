"""Runs all stages from a model pair to probes, each resumable, and estimates a run from a pilot of a few questions."""

import shutil
import tempfile
import time
from collections.abc import Sequence
from functools import cached_property
from math import inf
from pathlib import Path

from semspec.clustering.loading import load_equivalence
from semspec.engine.hub import format_bytes
from semspec.errors import InvalidRequest, Unavailable
from semspec.probes.probe import layer_indices
from semspec.reporting.progress import Reporter
from semspec.training.checks import check_models, check_output
from semspec.training.config import PipelineConfig
from semspec.training.data.labels import Labels, gather_labels, read_labels, write_labels
from semspec.training.data.pair import Pair
from semspec.training.data.questions import questions_recipe, stored_questions
from semspec.training.data.stages import (
    ClustersStage,
    ContextsStage,
    Questions,
    SamplesStage,
    Stage,
)
from semspec.training.estimate import (
    Estimate,
    PilotOverdue,
    fit_seconds,
    group_questions,
    run_pilot,
    state_row_bytes,
)
from semspec.training.export import Export
from semspec.training.files import StageFolder, check_format
from semspec.types import Writer

SHARDED = ("contexts", "samples", "clusters")
PILOT_QUESTIONS = 2


class Pipeline:
    """Runs one configuration in one work folder, on one worker's share of the shards."""

    def __init__(
        self,
        config: PipelineConfig,
        work: Path,
        shard: tuple[int, int] = (0, 1),
        reporter: Reporter | None = None,
    ) -> None:
        """Raises: Mismatch when `work` has another format."""
        check_format(work)
        self.config, self.work, self._shard = config, work, shard
        self.reporter = reporter or Reporter(quiet=True)

    @cached_property
    def questions(self) -> Questions:
        """The questions, gathered once; later runs and other workers read the stored ones."""
        return Questions(
            stored_questions(self.work, self.config, self.reporter), self.config.shard_questions
        )

    @cached_property
    def pair(self) -> Pair:
        return Pair(self.config)

    @cached_property
    def contexts(self) -> ContextsStage:
        return ContextsStage(self.work, self.config, self.questions, self.pair)

    @cached_property
    def samples(self) -> SamplesStage:
        return SamplesStage(self.work, self.config, self.contexts, self.pair)

    @cached_property
    def clusters(self) -> ClustersStage:
        return ClustersStage(self.work, self.config, self.samples)

    @property
    def stages(self) -> dict[str, Stage]:
        return {stage.name: stage for stage in (self.contexts, self.samples, self.clusters)}

    def run(self) -> None:
        """Run every stage; a worker with a share of the shards runs only the sharded stages."""
        check_output(self.config.output)
        self.check_start(self._mine)
        for name in SHARDED:
            if name == "clusters":
                self.pair.forget()
            self.make(name)
        if not self._is_share():
            self._export.fit()  # makes the labels first
            self._export.report(self.pair)

    def calibrate(self) -> None:
        """Calibrate `likelihood` on the pilot's shards, which a later run keeps; other workers' shares as in `run`.
        Raises: InvalidRequest when the pilot is too small, or the draft is always right or always wrong there."""
        check_output(self.config.output)
        pilot = self.questions.pilot(self.config.likelihood.num_questions)
        mine = [number for number in self._mine if number in pilot]
        self.check_start(mine)
        for name in SHARDED:
            self.make(name, mine)
        if not self._is_share():
            self._verify(pilot)
            labels = gather_labels(map(self.clusters.labels, pilot), self.questions.all)
            Export(self.config, self.work, labels, self.clusters, self.reporter).calibrate(
                self.pair, pilot
            )

    def check_start(self, numbers: Sequence[int]) -> None:
        """Load and check what later stages need before sampling, so that a long run does not fail at its end. Raises:
        InvalidRequest, Mismatch when models or equivalence cannot do what the configuration asks for."""
        self.clusters  # noqa: B018  (its functions are found)
        if all(self.samples.folder.manifest(number) for number in numbers):
            return
        with self.reporter.busy("loading the models"):
            load_equivalence(self.config.equivalence, self.config.max_segment_tokens)
            tokenizers = {writer: model.lm.tokenizer for writer, model in self.pair.models.items()}
        check_models(self.config, tokenizers, self.questions.all)
        inputs = {
            Writer.DRAFT: self.config.probes.inputs("draft"),
            Writer.TARGET: self.config.probes.inputs("target"),
        }
        for writer, (_, layers) in inputs.items():
            layer_indices(layers, tokenizers[writer].info.num_layers + 1)
        if len({tokenizer.info.tokenizer for tokenizer in tokenizers.values()}) > 1:
            self.reporter.say(
                "the tokenizers differ: each model reads the other's segments as text, as when served"
            )

    @property
    def _mine(self) -> range:
        """This worker's shards."""
        return range(self._shard[0], len(self.questions), self._shard[1])

    def _is_share(self) -> bool:
        if self._shard[1] > 1:
            self.reporter.say(
                "this worker's shards are done; when all are, run the same command without --shard"
            )
        return self._shard[1] > 1

    def make(self, name: str, numbers: Sequence[int] | None = None) -> None:
        """Make the missing shards of a stage. `numbers`: those of the shards; None: all of this worker."""
        numbers = self._mine if numbers is None else numbers
        if name == "samples":
            self._check_disk_space(numbers)
        self.stages[name].make(numbers, self.reporter)

    def _check_disk_space(self, numbers: Sequence[int]) -> None:
        if not (num_contexts := sum(map(self.samples.size, self.samples.missing(numbers)))):
            return
        needed, free = (
            num_contexts * state_row_bytes(self.pair, self.config),
            shutil.disk_usage(self.work).free,
        )
        self.reporter.say(
            f"states of {num_contexts} contexts: {format_bytes(needed)} ({format_bytes(free)} free)"
        )
        if needed > free:
            raise Unavailable(
                f"the samples need {format_bytes(needed)} in {self.work}, {format_bytes(free)} are free: make room, "
                "give another --work, or take fewer contexts (contexts.per_question)"
            )

    @cached_property
    def labels(self) -> Labels:
        """Made at the first call, kept in the work folder. Raises: InvalidRequest when some shards are missing."""
        folder, numbers = StageFolder(self.work / "labels"), range(len(self.questions))
        inputs = self.clusters.folder.digest
        if missing := self.clusters.missing(numbers):
            raise InvalidRequest(
                f"{len(missing)} of {len(numbers)} shards of clusters are missing, the first is {missing[0]:05d}: "
                "run `semspec train run` with the shares that lack them"
            )
        if not folder.is_done(0, inputs):
            self._verify(numbers)
            labels = gather_labels(map(self.clusters.labels, numbers), self.questions.all)
            write_labels(folder.file(0, ".parquet"), labels)
            folder.commit(0, [".parquet"], inputs, num_segments=len(labels))
            counted = self.clusters.counted()
            self.reporter.say(
                f"{len(labels)} segments have labels; without one are {counted['num_cut']} cut by max_segment_tokens "
                f"and {counted['num_too_long']} too long for the entailment model"
            )
        folder.verify(0, (".parquet",))
        return read_labels(folder.file(0, ".parquet"))

    def _verify(self, numbers: Sequence[int]) -> None:
        """Read all that labels, probes and report are made from. Raises: Mismatch when a file is damaged."""
        with self.reporter.bar("check", len(numbers), "shards") as advance:
            for number in numbers:
                for stage in self.stages.values():
                    stage.folder.verify(number, stage.suffixes)
                advance(1)

    @cached_property
    def _export(self) -> Export:
        return Export(self.config, self.work, self.labels, self.clusters, self.reporter)

    def estimate(self, limit_s: float = inf) -> Estimate:
        """Estimate the whole run from a pilot in a temporary folder, on `PILOT_QUESTIONS` at a time to train on and as
        many for the report. After `limit_s` seconds of writing, a lower bound from the questions begun until then."""
        questions = self.questions.all
        groups = group_questions(questions, PILOT_QUESTIONS)
        if not self.pair.is_loaded:
            with self.reporter.busy("loading the models"):
                self.pair.models  # noqa: B018  (load before timing)
        free = shutil.disk_usage(self.work if self.work.exists() else Path()).free
        with tempfile.TemporaryDirectory() as folder:
            pilot = Pipeline(self.config, Path(folder))
            pilot.pair = self.pair.until(time.monotonic() + limit_s)
            pilot.questions = Questions(
                [question for group in groups for question in group], len(groups[0])
            )
            try:
                piloted = run_pilot(pilot.clusters, groups, questions, self.reporter)
            except PilotOverdue as overdue:
                seconds = overdue.seconds * len(questions) / overdue.num_begun
                return Estimate(len(questions), 0, {"pilot": seconds}, 0, free, is_lower_bound=True)
            fits = fit_seconds(self.config, piloted, questions, self.reporter)
        contexts = sum(piloted.contexts[question.split == "test"] for question in questions)
        stages = piloted.stage_s | {"probes": fits}
        return Estimate(len(questions), round(contexts), stages, round(piloted.states_bytes), free)

    def status(self) -> list[str]:
        """Return one line per stage with its number of finished shards."""
        return [
            f"{name:<9} {len(StageFolder(self.work / name).numbers())} of {len(self.questions)} shards"
            for name in SHARDED
        ]

    def damaged(self) -> list[str]:
        """List files that differ from their manifests, and recipes that differ from the configuration."""
        bare = Pipeline(self.config, self.work)
        bare.questions = Questions([], 1)  # the stored ones may be damaged
        recipes = {"questions": questions_recipe(self.config)}
        recipes |= {name: stage.recipe() for name, stage in bare.stages.items()}
        found: list[str] = []
        for folder in (StageFolder(self.work / name) for name in (*recipes, "labels")):
            if folder.recipe.exists():
                found += [
                    f"{folder.recipe}: {name}"
                    for name in folder.differing(recipes[folder.path.name])
                ]
            found += [
                f"{folder.path}/{name}"
                for number in folder.numbers()
                for name in folder.damaged(number)
            ]
        return found
