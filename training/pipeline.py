"""Runs all stages from a model pair to probes, each resumable, and estimates a run from a pilot of a few questions."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch

from semspec.errors import InvalidRequest, Unavailable
from semspec.probes.probe import Probe, layer_indices, num_features
from semspec.training.checks import check_models, check_output
from semspec.training.clustering.entailment import EntailmentEquivalence
from semspec.training.clustering.equivalence import Equivalence
from semspec.training.config import EntailmentEquivalenceConfig, PipelineConfig
from semspec.training.data.labels import Labels, gather_labels, label, read_labels, write_labels
from semspec.training.data.pair import Pair, states_dtype
from semspec.training.data.questions import Question, gather, question_row, resolve
from semspec.training.data.stages import ClustersStage, ContextsStage, Questions, SamplesStage, Stage
from semspec.training.export import Export
from semspec.training.files import Row, StageFolder, check_format, read_rows, write_json, write_rows
from semspec.training.progress import Reporter, duration
from semspec.training.trainer.recipe import Role
from semspec.types import Writer

NUM_TIMED_STEPS = 3
SHARDED = ("contexts", "samples", "clusters")
WHOLE = ("labels", "probes", "report")


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
        lines += [
            f"{'together':<9} {duration(sum(self.stage_s.values()))} on one worker; --shard i/n divides the first three"
        ]
        lines += [f"{'disk':<9} {gigabytes(self.states_bytes)} for the states ({gigabytes(self.free_bytes)} free)"]
        return "\n".join(lines)


def state_row_bytes(pair: Pair, config: PipelineConfig) -> int:
    """Size of the states of one context with N target-written and N draft-written segments, in bytes."""
    dtype = states_dtype(config.samples.states_dtype, pair.target.model.dtype)
    infos = {writer: model.lm.info for writer, model in pair.models.items()}
    sizes = {writer: (info.num_layers + 1) * info.hidden_size for writer, info in infos.items()}
    return config.samples.num_samples * dtype.itemsize * (2 * sizes[Writer.TARGET] + sizes[Writer.DRAFT])


def fit_seconds(config: PipelineConfig, pair: Pair, num_rows: int) -> float:
    """Estimated seconds per epoch of fitting the target's probe, from a few timed steps on its device."""
    recipe, info = config.probes, pair.target.info
    width = num_features(recipe.features, recipe.layers, (info.num_layers + 1, info.hidden_size))
    if recipe.projection:
        width = (info.num_layers + 1) * recipe.projection.width
    device = "cuda" if torch.cuda.is_available() and recipe.device != "cpu" else "cpu"
    probe, batch = Probe(width).to(device), torch.randn(recipe.batch_size, width, device=device)
    optimizer = torch.optim.AdamW(probe.parameters())

    def step() -> None:
        probe(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    step()
    start = time.perf_counter()
    for _ in range(NUM_TIMED_STEPS):
        step()
    return (time.perf_counter() - start) / NUM_TIMED_STEPS * num_rows / recipe.batch_size


def timed(work: Callable[[], object]) -> float:
    """Duration of `work` in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"


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
        """The questions, gathered once; later runs and other workers read the stored ones."""
        folder = StageFolder(self.work / "questions")
        wanted = self.config.model_dump(mode="json", include={"questions", "evaluation_sets", "shares"})
        folder.claim(wanted)
        if not folder.is_done(0):
            found, dropped = gather(self.config.questions, self.config.evaluation_sets, self.config.shares)
            write_rows(folder.file(0, ".parquet"), [question_row(question) for question in found])
            write_json(folder.path / "dropped.json", [asdict(one) for one in dropped])
            folder.commit(0, [".parquet"], num_questions=len(found), num_dropped=len(dropped))
            self.reporter.say(f"{len(found)} questions; {len(dropped)} dropped, listed in {folder.path}/dropped.json")
        rows = read_rows(folder.file(0, ".parquet"))
        return Questions([Question(**row) for row in rows], self.config.shard_questions)

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

    def check_start(self) -> None:
        """Load and check what later stages need before sampling, so that a long run does not fail at its end.

        Raises: InvalidRequest, Mismatch when models, equivalence or output cannot do what the configuration asks for.
        """
        check_output(self.config.output)
        self.clusters  # noqa: B018  (its functions are found)
        if all(self.samples.folder.manifest(number) for number in self._mine):
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
            self._make_shards(self._stage(name))
        else:
            {"labels": self._make_labels, "probes": self._make_probes, "report": self._make_report}[name]()

    def _stage(self, name: str) -> Stage:
        stages: dict[str, Stage] = {"contexts": self.contexts, "samples": self.samples, "clusters": self.clusters}
        return stages[name]

    def _make_shards(self, stage: Stage) -> None:
        stage.folder.claim(stage.recipe())
        missing = [number for number in self._mine if not stage.folder.is_done(number, stage.inputs(number))]
        if not missing:
            return
        num_done = sum(stage.size(number) for number in self._mine if number not in missing)
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
            labels = gather_labels(map(self._labels_of, numbers), self.questions.all)
            write_labels(folder.file(0, ".parquet"), labels)
            folder.commit(0, [".parquet"], inputs, num_segments=len(labels))
            counted, num_all = self.clusters.counted(), 2 * self.config.samples.num_samples
            self.reporter.say(
                f"{len(labels)} of {num_all * counted['num_contexts']} segments have labels; {counted['num_cut']} are "
                f"cut by max_segment_tokens, {counted['num_too_long']} too long for the entailment model"
            )

    def _labels_of(self, number: int) -> Iterator[Row]:
        rows, clusters = (read_rows(stage.folder.file(number, ".parquet")) for stage in (self.samples, self.clusters))
        ids = {self.questions.all[index].id: index for index in self.questions.numbers(number)}
        return label(rows, clusters, number, ids)

    @cached_property
    def labels(self) -> Labels:
        self._make_labels()
        return read_labels(self.work / "labels" / "00000.parquet")

    @cached_property
    def _export(self) -> Export:
        return Export(self.config, self.work, self.labels, self.contexts, self.samples, self.clusters, self.reporter)

    def _make_probes(self) -> None:
        self._export.fit()

    def _make_report(self) -> None:
        self._export.report(self.pair)

    def estimate(self, num_questions: int) -> Estimate:
        """Estimate the whole run, from a pilot of `num_questions` questions in a temporary folder."""
        every = self.questions.all
        with tempfile.TemporaryDirectory() as folder:
            pilot = Pipeline(self.config, Path(folder))
            pilot.questions = Questions(every[:num_questions], num_questions)
            pilot.pair = self.pair
            self.pair.models  # noqa: B018  (load before timing)
            pilot.clusters.load()
            seconds = {name: timed(lambda name=name: pilot.make(name)) for name in SHARDED}  # type: ignore[misc]
            num_contexts = pilot.contexts.num_contexts(0) * len(every) // num_questions
            row_bytes = state_row_bytes(self.pair, self.config)
            num_rows = 2 * self.config.samples.num_samples * num_contexts
            fits = fit_seconds(self.config, self.pair, num_rows) * self.config.probes.num_epochs
        seconds = {name: one * len(every) / num_questions for name, one in seconds.items()}
        free = shutil.disk_usage(self.work).free
        return Estimate(len(every), num_contexts, seconds | {"fit": fits}, num_contexts * row_bytes, free)

    def status(self) -> list[str]:
        """One line per stage with its number of finished shards."""
        return [
            f"{name:<9} {len(StageFolder(self.work / name).numbers())} of {len(self.questions)} shards"
            for name in SHARDED
        ]

    def damaged(self) -> list[str]:
        """Files that differ from their manifests."""
        folders = [StageFolder(self.work / name) for name in ("questions", *SHARDED, "labels")]
        return [
            f"{folder.path}/{name}"
            for folder in folders
            for number in folder.numbers()
            for name in folder.damaged(number)
        ]

    def _load_equivalence(self) -> Equivalence:
        config = self.config.equivalence
        if isinstance(config, EntailmentEquivalenceConfig):
            return EntailmentEquivalence.load(config, self.config.max_segment_tokens)
        equivalence: Equivalence = resolve(config.object)()
        return equivalence
