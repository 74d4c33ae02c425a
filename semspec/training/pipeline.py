"""Runs all stages from a model pair to probes, each resumable, and estimates a run from a pilot of a few questions."""

import shutil
import sys
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
from semspec.reporting.files import read_json, write_json
from semspec.reporting.progress import Reporter, duration
from semspec.training.checks import check_models, check_output
from semspec.training.config import PipelineConfig, limited
from semspec.training.data.labels import Labels, gather_labels, read_labels, write_labels
from semspec.training.data.pair import Pair
from semspec.training.data.questions import gather, questions_recipe, stored_questions
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
    groups_of,
    run_pilot,
    state_row_bytes,
)
from semspec.training.export import Export
from semspec.training.files import StageFolder, check_format
from semspec.types import Writer

SHARDED = ("contexts", "samples", "clusters")
WHOLE = ("labels", "probes", "report")

BUDGET_S = 3600.0
PILOT_LIMIT_S = 300.0
"""Of the preset's pilot: a pair for which it takes longer is too slow for an hour."""
LEAST_QUESTIONS, MOST_QUESTIONS = 40, 480
"""Of the preset `laptop`: fewer are too few to calibrate on; the bundled probes learn from as many."""


def scaled(
    config: PipelineConfig, work: Path, reporter: Reporter, can_start: bool = True
) -> PipelineConfig:
    """`config` with as many questions as take `BUDGET_S` by the estimate, which is told and kept in `work`.
    Raises: InvalidRequest when `work` has none and this command, a worker or a look, cannot start the run."""
    kept = work / "preset.json"
    if not kept.exists():
        if not can_start:
            raise InvalidRequest(
                f"{work} has no run with this preset yet: `semspec train estimate --preset laptop` with the same "
                "--config and --work chooses its number of questions"
            )
        config = limited(config, MOST_QUESTIONS)
        pilot = Pipeline(config, work, reporter=reporter)
        every, _ = gather(config.questions, config.evaluation_sets, config.shares)
        pilot.questions = Questions(every, config.shard_questions)
        pilot.check_start(range(len(pilot.questions)))
        reporter.say(
            f"a pilot of a few questions, at most {duration(PILOT_LIMIT_S)}, estimates the time first; Ctrl-C stops, "
            "nothing is lost"
        )
        estimate = pilot.estimate(limit_s=PILOT_LIMIT_S)
        has_own_test = any(source.role == "test" for source in config.questions)
        num_all = sum(one.split != "test" or not has_own_test for one in every)
        num = min(num_all, max(LEAST_QUESTIONS, int(num_all * BUDGET_S / estimate.total_s)))
        scaled_estimate = estimate.times(num / num_all)
        reporter.say(str(scaled_estimate))
        write_json(kept, {"num_questions": num, "time": scaled_estimate.time, "is_agreed": False})
    return limited(config, read_json(kept)["num_questions"])


def told_estimate(work: Path) -> str:
    """The estimate that `scaled` kept in `work`, in a line."""
    kept = read_json(work / "preset.json")
    return f"{kept['num_questions']} questions: {kept.get('time', 'of unknown time')}"


def agree(work: Path, is_agreed: bool, reporter: Reporter) -> None:
    """Ask whether to begin the run whose estimate `scaled` kept in `work`, unless that was agreed before.

    Raises: InvalidRequest when the user declines, or there is no terminal to ask on.
    """
    kept = read_json(work / "preset.json")
    if kept.get("is_agreed", True):  # a run that was begun by an earlier version does not know it
        return
    if not is_agreed:
        others = "`semspec train calibrate --from-prompts` gives a rule in minutes"
        if not sys.stdin.isatty():
            raise InvalidRequest(
                f"the run takes {kept['time']}", remedy=f"say --yes to begin it; {others}"
            )
        reporter.say(f"The run takes {kept['time']}. Begin? [y/N]")
        if sys.stdin.readline().strip().casefold() not in ("y", "yes"):
            raise InvalidRequest("not begun", remedy=f"the same command asks again; {others}")
    reporter.say("Ctrl-C stops; the same command continues")
    write_json(work / "preset.json", kept | {"is_agreed": True})


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
            for name in WHOLE:
                self.make(name)

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
        """Run one stage, or its missing part. `numbers`: of the shards; None: all of this worker."""
        if name in SHARDED:
            numbers = self._mine if numbers is None else numbers
            if name == "samples":
                self._check_disk_space(numbers)
            self.stages[name].make(numbers, self.reporter)
            return
        export = self._export  # makes the labels
        if name == "probes":
            export.fit()
        elif name == "report":
            export.report(self.pair)

    def _check_disk_space(self, numbers: Sequence[int]) -> None:
        if not (num_contexts := sum(map(self.samples.size, self.samples.missing(numbers)))):
            return
        wanted, free = (
            num_contexts * state_row_bytes(self.pair, self.config),
            shutil.disk_usage(self.work).free,
        )
        self.reporter.say(
            f"states of {num_contexts} contexts: {format_bytes(wanted)} ({format_bytes(free)} free)"
        )
        if wanted > free:
            raise Unavailable(
                f"the samples want {format_bytes(wanted)} in {self.work}, {format_bytes(free)} are free: make room, "
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

    def estimate(self, num_questions: int = 2, limit_s: float = inf) -> Estimate:
        """Estimate the whole run, from a pilot in a temporary folder on `num_questions` at a time to train on, and as
        many for the report. After `limit_s` seconds of writing, a lower bound from the questions begun until then."""
        every = self.questions.all
        groups = groups_of(every, num_questions)
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
                piloted = run_pilot(pilot.clusters, groups, every, self.reporter)
            except PilotOverdue as overdue:
                seconds = overdue.seconds * len(every) / overdue.num_begun
                return Estimate(len(every), 0, {"pilot": seconds}, 0, free, is_lower_bound=True)
            fits = fit_seconds(self.config, piloted, every, self.reporter)
        contexts = sum(piloted.contexts[question.split == "test"] for question in every)
        stages = piloted.stage_s | {"probes": fits}
        return Estimate(len(every), round(contexts), stages, round(piloted.states_bytes), free)

    def status(self) -> list[str]:
        """One line per stage with its number of finished shards."""
        return [
            f"{name:<9} {len(StageFolder(self.work / name).numbers())} of {len(self.questions)} shards"
            for name in SHARDED
        ]

    def damaged(self) -> list[str]:
        """Files that differ from their manifests, and recipes that differ from the configuration."""
        bare = Pipeline(self.config, self.work)
        bare.questions = Questions([], 1)  # the stored ones may be damaged
        recipes = {"questions": questions_recipe(self.config)}
        recipes |= {name: stage.recipe() for name, stage in bare.stages.items()}
        found: list[str] = []
        for folder in (StageFolder(self.work / name) for name in (*recipes, "labels")):
            if folder.recipe.exists():
                found += [
                    f"{folder.recipe}: {one}" for one in folder.differing(recipes[folder.path.name])
                ]
            found += [
                f"{folder.path}/{one}"
                for number in folder.numbers()
                for one in folder.damaged(number)
            ]
        return found
