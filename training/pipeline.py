"""Runs all stages from a model pair to probes, each resumable, and estimates a run from a pilot of a few questions."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from semspec.clustering.equivalence import Equivalence
from semspec.clustering.loading import load_equivalence
from semspec.errors import InvalidRequest, Unavailable
from semspec.probes.probe import layer_indices
from semspec.training import pilot as pilots
from semspec.training.checks import check_models, check_output
from semspec.training.config import DatastoreConfig, PipelineConfig
from semspec.training.data.collected import check_collections
from semspec.training.data.labels import Labels, gather_labels, label, read_labels, write_labels
from semspec.training.data.pair import Pair
from semspec.training.data.questions import Question, gather
from semspec.training.data.stages import ClustersStage, ContextsStage, Questions, SamplesStage, Stage
from semspec.training.estimate import Estimate, fit_seconds, gigabytes, state_row_bytes
from semspec.training.export import Export
from semspec.training.files import Row, StageFolder, check_format, write_json, write_rows
from semspec.training.progress import Reporter
from semspec.training.trainer.recipe import Role
from semspec.types import Writer

SHARDED = ("contexts", "samples", "clusters")
WHOLE = ("labels", "probes", "report")


def stored_questions(work: Path, config: PipelineConfig | DatastoreConfig, reporter: Reporter) -> list[Question]:
    """The questions of `config`, gathered at the first call; later ones and other workers read the stored ones."""
    folder = StageFolder(work / "questions")
    folder.claim(_questions_recipe(config))
    if not folder.is_done(0):
        found, dropped = gather(config.questions, config.evaluation_sets, config.shares)
        write_rows(folder.file(0, ".parquet"), [asdict(question) for question in found])
        write_json(folder.path / "dropped.json", [asdict(one) for one in dropped])
        folder.commit(0, [".parquet"], num_questions=len(found), num_dropped=len(dropped))
        reporter.say(f"{len(found)} questions; {len(dropped)} dropped, listed in {folder.path}/dropped.json")
    return [Question(**row) for row in folder.rows(0)]


def _questions_recipe(config: PipelineConfig | DatastoreConfig) -> Row:
    recipe = config.model_dump(mode="json", include={"questions", "evaluation_sets", "shares"})
    for source in (*recipe["questions"], *recipe["evaluation_sets"]):
        if source["collection"] is None:  # as work folders have it that were begun before there were collections
            del source["collection"]
    return recipe


class Pipeline:
    """Runs one configuration in one work folder, on one worker's share of the shards."""

    def __init__(
        self, config: PipelineConfig, work: Path, shard: tuple[int, int] = (0, 1), reporter: Reporter | None = None
    ) -> None:
        """Raises: Mismatch when `work` has another format."""
        check_format(work)
        self.config, self.work, self._shard = config, work, shard
        self.reporter = reporter or Reporter(quiet=True)

    @cached_property
    def questions(self) -> Questions:
        """The questions, gathered once; later runs and other workers read the stored ones.

        Raises: Mismatch when a collection is not of this configuration's pair.
        """
        if not StageFolder(self.work / "questions").is_done(0):
            check_collections(self.config, self.pair)
        return Questions(stored_questions(self.work, self.config, self.reporter), self.config.shard_questions)

    def _questions_recipe(self) -> Row:
        return _questions_recipe(self.config)

    @cached_property
    def pair(self) -> Pair:
        return Pair(self.config)

    @cached_property
    def contexts(self) -> ContextsStage:
        return ContextsStage(StageFolder(self.work / "contexts"), self.config, self.questions, self.pair)

    @cached_property
    def samples(self) -> SamplesStage:
        return SamplesStage(StageFolder(self.work / "samples"), self.config, self.contexts, self.pair)

    @cached_property
    def clusters(self) -> ClustersStage:
        folder = StageFolder(self.work / "clusters")
        return ClustersStage(folder, self.config, self.contexts, self.samples, self._load_equivalence)

    def run(self) -> None:
        """Run every stage; a worker with a share of the shards runs only the sharded stages."""
        self.check_start()
        for name in SHARDED:
            if name == "clusters":
                self.pair.forget()
            self.make(name)
        if self._shard[1] > 1:
            self.reporter.say("this worker's shards are done; when all are, run the same command without --shard")
            return
        for name in WHOLE:
            self.make(name)

    def calibrate(self) -> None:
        """Calibrate `likelihood` on the pilot's shards, which a later run keeps; other workers' shares as in `run`.

        Raises: InvalidRequest when the pilot is too small, or the draft is always right or always wrong there.
        """
        pilot = self.questions.pilot(self.config.likelihood.num_questions)
        self.check_start(pilot)
        for name in SHARDED:
            self._make_shards(self.stage(name), [number for number in self._mine if number in pilot])
        if self._shard[1] > 1:
            self.reporter.say("this worker's shards are done; when all are, run the same command without --shard")
            return
        self._verify(pilot)
        labels = gather_labels(map(self._labels_of, pilot), self.questions.all)
        Export(self.config, self.work, labels, self.contexts, self.samples, self.clusters, self.reporter).calibrate(
            self.pair, pilot
        )

    def check_start(self, numbers: Sequence[int] | None = None) -> None:
        """Load and check what later stages need before sampling, so that a long run does not fail at its end.

        `numbers`: the shards that will be made; None: all of this worker.

        Raises: InvalidRequest, Mismatch when models, equivalence or output cannot do what the configuration asks for.
        """
        check_output(self.config.output)
        self.clusters  # noqa: B018  (its functions are found)
        if all(self.samples.folder.manifest(number) for number in (self._mine if numbers is None else numbers)):
            return
        self._load_equivalence()
        tokenizers = {writer: model.lm.tokenizer for writer, model in self.pair.models.items()}
        check_models(self.config, tokenizers, self.questions.all)
        roles: tuple[Role, ...] = ("draft", "target")
        for role in roles:
            layers = self.config.probes.inputs(role)[1]
            layer_indices(layers, tokenizers[Writer(role)].info.num_layers + 1)
        if len({tokenizer.info.tokenizer for tokenizer in tokenizers.values()}) > 1:
            self.reporter.say("the tokenizers differ: each model reads the other's segments as text, as when served")

    @property
    def _mine(self) -> range:
        """This worker's shards."""
        return range(self._shard[0], len(self.questions), self._shard[1])

    def make(self, name: str) -> None:
        """Run one stage, or its missing part."""
        if name in SHARDED:
            self._make_shards(self.stage(name), self._mine)
        else:
            {"labels": self._make_labels, "probes": self._make_probes, "report": self._make_report}[name]()

    def stage(self, name: str) -> Stage:
        stages: dict[str, Stage] = {"contexts": self.contexts, "samples": self.samples, "clusters": self.clusters}
        return stages[name]

    def _make_shards(self, stage: Stage, numbers: Sequence[int]) -> None:
        stage.folder.claim(stage.recipe())
        missing = [number for number in numbers if not stage.folder.is_done(number, stage.inputs(number))]
        if not missing:
            return
        num_done = sum(stage.size(number) for number in numbers if number not in missing)
        num_missing = sum(stage.size(number) for number in missing)
        if stage is self.samples:
            self._check_disk_space(num_missing)
        title = stage.folder.path.name
        with self.reporter.bar(title, num_done + num_missing, stage.unit, num_done) as advance:
            for number in missing:
                stage.make(number, advance)

    def _check_disk_space(self, num_contexts: int) -> None:
        wanted, free = num_contexts * state_row_bytes(self.pair, self.config), shutil.disk_usage(self.work).free
        self.reporter.say(f"states of {num_contexts} contexts: {gigabytes(wanted)} ({gigabytes(free)} free)")
        if wanted > free:
            raise Unavailable(
                f"the samples want {gigabytes(wanted)} in {self.work}, {gigabytes(free)} are free: make room, "
                "give another --work, or take fewer contexts (contexts.per_question)"
            )

    def _complete(self, stage: Stage) -> list[int]:
        """All shard numbers. Raises: InvalidRequest when some shards are missing."""
        numbers = range(len(self.questions))
        if missing := [number for number in numbers if not stage.folder.is_done(number, stage.inputs(number))]:
            raise InvalidRequest(
                f"{len(missing)} of {len(numbers)} shards of {stage.folder.path.name} are missing, the first is "
                f"{missing[0]:05d}: run `semspec train run` with the shares that lack them"
            )
        return list(numbers)

    def _make_labels(self) -> None:
        folder, inputs = StageFolder(self.work / "labels"), self.clusters.folder.digest
        numbers = self._complete(self.clusters)
        if not folder.is_done(0, inputs):
            self._verify(numbers)
            labels = gather_labels(map(self._labels_of, numbers), self.questions.all)
            write_labels(folder.file(0, ".parquet"), labels)
            folder.commit(0, [".parquet"], inputs, num_segments=len(labels))
            counted = self.clusters.counted()
            self.reporter.say(
                f"{len(labels)} segments have labels; without one are {counted['num_cut']} cut by max_segment_tokens "
                f"and {counted['num_too_long']} too long for the entailment model"
            )

    def _verify(self, numbers: Sequence[int]) -> None:
        """Read all that labels, probes and report are made from. Raises: Mismatch when a file is damaged."""
        with self.reporter.bar("check", len(numbers), "shards") as advance:
            for number in numbers:
                self.contexts.folder.verify(number, (".parquet",))
                self.samples.folder.verify(number, (".parquet", ".safetensors"))
                self.clusters.folder.verify(number, (".parquet",))
                advance(1)

    def labels_of(self, number: int, ids: dict[str, int]) -> Iterator[Row]:
        """The labels of a shard, one row a segment; `ids` maps a question's id to its number."""
        rows, clusters = (stage.folder.rows(number) for stage in (self.samples, self.clusters))
        return label(rows, clusters, number, ids)

    def _labels_of(self, number: int) -> Iterator[Row]:
        ids = {self.questions.all[index].id: index for index in self.questions.numbers(number)}
        return self.labels_of(number, ids)

    @cached_property
    def labels(self) -> Labels:
        self._make_labels()
        folder = StageFolder(self.work / "labels")
        folder.verify(0, (".parquet",))
        return read_labels(folder.file(0, ".parquet"))

    @cached_property
    def _export(self) -> Export:
        return Export(self.config, self.work, self.labels, self.contexts, self.samples, self.clusters, self.reporter)

    def _make_probes(self) -> None:
        self._export.fit()

    def _make_report(self) -> None:
        self._export.report(self.pair)

    def estimate(self, num_questions: int = 2, least_s: float | None = None) -> Estimate:
        """Estimate the whole run, from a pilot in a temporary folder.

        `num_questions`: of each kind at a time, to train on and for the report; the pilot takes more of them until
        `least_s` seconds are over; None: `pilot.LEAST_S`.
        """
        every = self.questions.all
        with tempfile.TemporaryDirectory() as folder:
            pilot = Pipeline(self.config, Path(folder))
            pilot.pair = self.pair
            self.pair.models  # noqa: B018  (load before timing)
            piloted = pilots.run_pilot(
                pilot, every, num_questions, pilots.LEAST_S if least_s is None else least_s, SHARDED, self.reporter
            )
            fits = fit_seconds(self.config, piloted, every, self.reporter)
        contexts = sum(piloted.contexts[question.split == "test"] for question in every)
        free = shutil.disk_usage(self.work if self.work.exists() else Path()).free
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
        folders = [StageFolder(self.work / name) for name in ("questions", *SHARDED, "labels")]
        differing = [
            f"{self.work / name / 'recipe.json'}: {difference}"
            for name, recipe in self._recipes().items()
            for difference in StageFolder(self.work / name).differing(recipe)
        ]
        return differing + [
            f"{folder.path}/{name}"
            for folder in folders
            for number in folder.numbers()
            for name in folder.damaged(number)
        ]

    def _recipes(self) -> dict[str, Row]:
        """The recipes of the stages that have begun, without the questions, which may be damaged."""
        bare = Pipeline(self.config, self.work)
        bare.questions = Questions([], 1)
        recipes = {name: bare.stage(name).recipe() for name in SHARDED} | {"questions": self._questions_recipe()}
        return {name: recipe for name, recipe in recipes.items() if (self.work / name / "recipe.json").exists()}

    def _load_equivalence(self) -> Equivalence:
        return load_equivalence(self.config.equivalence, self.config.max_segment_tokens)
