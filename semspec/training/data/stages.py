"""The stages that work shard by shard: contexts, samples, clusters. A shard has the same questions in each stage."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import torch

from semspec.clustering.equivalence import (
    WHOLE,
    Alternatives,
    Equivalence,
    clusters_of_whole,
    import_object,
)
from semspec.clustering.loading import load_equivalence
from semspec.files import digest_of
from semspec.reporting.files import Row
from semspec.reporting.progress import Reporter
from semspec.training.config import PipelineConfig
from semspec.training.data.contexts import (
    ProbeContext,
    choose_depths,
    contexts_of,
    data_trace,
    mixed_trace,
    prompts,
    trace_row,
)
from semspec.training.data.labels import label
from semspec.training.data.pair import Pair
from semspec.training.data.questions import Question
from semspec.training.files import StageFolder, write_rows, write_tensors
from semspec.types import Context, Piece, SegmentEnd

Advance = Callable[[int], None]
"""Advances the progress bar by a number of contexts (of questions in the first stage)."""

Truth = Callable[[str, str, str], bool | None]
"""(question id, reasoning, segment) -> whether the segment is right; None where that is unknown."""


class Stage(ABC):
    """Makes one stage's shards from those of the previous stage; a finished shard is kept."""

    name: ClassVar[str]
    unit: ClassVar[str] = "contexts"
    suffixes: ClassVar[Sequence[str]] = (".parquet",)
    before: "Stage"
    """The previous stage; the first stage overrides the methods that use it."""

    def __init__(self, work: Path, config: PipelineConfig) -> None:
        self.folder, self._config = StageFolder(work / self.name), config

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """Return the settings that its shards depend on."""

    def inputs(self, number: int) -> str:
        """Return the digest of the inputs of shard `number`: by default the previous stage's shard."""
        manifest = self.before.folder.manifest(number)
        return manifest.digest if manifest else ""

    def size(self, number: int) -> int:
        """Return the number of units of work in shard `number`."""
        return self.before.size(number)

    @abstractmethod
    def write(self, number: int, advance: Advance) -> dict[str, Any]:
        """Write the files of shard `number`. Returns facts for its manifest."""

    def missing(self, numbers: Sequence[int]) -> list[int]:
        """Return the `numbers` whose shards are missing, or made from other inputs."""
        return [
            number for number in numbers if not self.folder.is_done(number, self.inputs(number))
        ]

    def make(self, numbers: Sequence[int], reporter: Reporter) -> None:
        """Make the missing shards among `numbers`. Raises: Mismatch when others were made with other settings."""
        self.folder.claim(self.recipe())
        if not (missing := self.missing(numbers)):
            return
        num_all, num_missing = (sum(map(self.size, shards)) for shards in (numbers, missing))
        with reporter.bar(self.name, num_all, self.unit, num_all - num_missing) as advance:
            for number in missing:
                facts = self.write(number, advance)
                self.folder.commit(number, self.suffixes, self.inputs(number), **facts)


class Questions:
    """The questions, shard by shard."""

    def __init__(self, questions: Sequence[Question], shard_questions: int) -> None:
        self.all, self._per_shard = questions, shard_questions

    def __len__(self) -> int:
        """Number of shards."""
        return -(-len(self.all) // self._per_shard)

    def pilot(self, num_questions: int) -> list[int]:
        """Return the numbers of the shards with the first `num_questions` questions outside the split `test`."""
        others = [number for number, question in enumerate(self.all) if question.split != "test"][
            :num_questions
        ]
        return sorted({number // self._per_shard for number in others})

    def numbers(self, shard: int) -> range:
        """Return the numbers of the questions in a shard."""
        return range(shard * self._per_shard, min((shard + 1) * self._per_shard, len(self.all)))


class ContextsStage(Stage):
    """Questions -> traces and the depths to sample at."""

    name, unit = "contexts", "questions"

    def __init__(
        self, work: Path, config: PipelineConfig, questions: Questions, pair: Pair
    ) -> None:
        super().__init__(work, config)
        self.questions, self._pair = questions, pair

    def recipe(self) -> dict[str, Any]:
        names = {
            "draft",
            "target",
            "prompt",
            "segmentation",
            "max_segment_tokens",
            "contexts",
            "shard_questions",
        }
        recipe = self._config.model_dump(mode="json", include=names)
        return _without_devices(recipe) | {"samples": _sampling(self._config)}

    def inputs(self, number: int) -> str:
        return digest_of(
            [asdict(self.questions.all[index]) for index in self.questions.numbers(number)]
        )

    def size(self, number: int) -> int:
        return len(self.questions.numbers(number))

    def write(self, number: int, advance: Advance) -> dict[str, Any]:
        rows = []
        for index in self.questions.numbers(number):
            rows.append(self._trace(index))
            advance(1)
        write_rows(self.folder.file(number, ".parquet"), rows)
        return {"num_contexts": sum(len(row["depths"]) for row in rows)}

    def _trace(self, index: int) -> Row:
        question, contexts = self.questions.all[index], self._config.contexts
        target = self._pair.target.tokenizer
        pieces, draft_prompt = self._pieces(question)
        while (
            len(pieces) > 1
            and len(target.context_ids(Context(tuple(pieces)))) > contexts.max_tokens
        ):
            pieces.pop()
        depths = choose_depths(
            len(pieces) - 1, contexts, f"{self._config.samples.seed} {question.id}"
        )
        return trace_row(index, pieces, depths, draft_prompt)

    def _pieces(self, question: Question) -> tuple[list[Piece], Piece | None]:
        """Return the target's prompt and the segments of a trace, and the draft's prompt if it differs."""
        config, contexts, target = self._config, self._config.contexts, self._pair.target.tokenizer
        start = prompts(question, config.prompt, target, self._pair.draft.tokenizer)
        if contexts.traces == "data":
            return data_trace(
                question, start.target, target, config.segmentation, contexts.max_segments
            ), start.draft
        return mixed_trace(
            question, start, self._pair.writers, contexts, config.samples.seed
        ), start.draft

    def contexts(self, number: int) -> list[ProbeContext]:
        """Read the contexts of a finished shard."""
        rows = self.folder.rows(number)
        return [
            context
            for row in rows
            for context in contexts_of(row, self.questions.all[row["question"]])
        ]

    def num_contexts(self, number: int) -> int:
        manifest = self.folder.manifest(number)
        return int(manifest.facts["num_contexts"]) if manifest else 0


class SamplesStage(Stage):
    """Contexts -> segments and states."""

    name, suffixes = "samples", (".parquet", ".safetensors")

    def __init__(
        self, work: Path, config: PipelineConfig, contexts: ContextsStage, pair: Pair
    ) -> None:
        super().__init__(work, config)
        self.before = self.contexts = contexts
        self._pair = pair

    def recipe(self) -> dict[str, Any]:
        names = {"draft", "target", "segmentation", "max_segment_tokens"}
        recipe = self._config.model_dump(mode="json", include=names)
        return _without_devices(recipe) | {"samples": _sampling(self._config)}

    def size(self, number: int) -> int:
        return self.contexts.num_contexts(number)

    def write(self, number: int, advance: Advance) -> dict[str, Any]:
        rows, tensors = [], []
        for context in self.contexts.contexts(number):
            context_rows, context_tensors = self._pair.sample(context)
            rows += context_rows
            tensors.append(context_tensors)
            advance(1)
        stacked = {name: torch.cat([part[name] for part in tensors]) for name in tensors[0]}
        write_tensors(self.folder.file(number, ".safetensors"), stacked)
        write_rows(self.folder.file(number, ".parquet"), rows)
        return {"num_rows": len(rows), "models": self._pair.infos()}


class ClustersStage(Stage):
    """Segments -> clusters of the same meaning, and, where the ground truth is known, which are right."""

    name = "clusters"

    def __init__(self, work: Path, config: PipelineConfig, samples: SamplesStage) -> None:
        super().__init__(work, config)
        self.before = self.samples = samples
        self.contexts = samples.contexts
        self._equivalence: Equivalence | None = None
        self._truth: Truth | None = import_object(config.truth) if config.truth else None

    def recipe(self) -> dict[str, Any]:
        recipe = self._config.model_dump(mode="json", include={"equivalence", "truth"})
        for name in ("device", "dtype", "batch_size"):
            recipe["equivalence"].pop(name, None)
        return recipe

    def load(self) -> Equivalence:
        """Load the equivalence once."""
        if self._equivalence is None:
            self._equivalence = load_equivalence(
                self._config.equivalence, self._config.max_segment_tokens
            )
        return self._equivalence

    def write(self, number: int, advance: Advance) -> dict[str, Any]:
        equivalence = self.load()
        groups, ends = self._groups(number)
        clusters = clusters_of_whole(equivalence, groups, ends)
        rows = [
            {"cluster": cluster, "valid": self._is_valid(group, segment, end)}
            for group, group_ends, group_clusters in zip(groups, ends, clusters, strict=True)
            for segment, end, cluster in zip(
                group.segments, group_ends, group_clusters, strict=True
            )
        ]
        write_rows(self.folder.file(number, ".parquet"), rows)
        advance(len(groups))
        facts = {
            "num_clusters": sum(len(set(group_clusters) - {None}) for group_clusters in clusters),
            "num_contexts": len(groups),
            "num_cut": sum(end not in WHOLE for group_ends in ends for end in group_ends),
        }
        take_counts = getattr(equivalence, "take_counts", dict)  # an NLI model's forward passes
        return facts | take_counts()

    def labels(self, number: int) -> Iterator[Row]:
        """Yield the labels of a finished shard, one row a segment."""
        questions = self.contexts.questions
        ids = {questions.all[index].id: index for index in questions.numbers(number)}
        return label(self.samples.folder.rows(number), self.folder.rows(number), number, ids)

    def counted(self) -> Counter[str]:
        """Add up the facts of all finished shards."""
        counted = Counter[str]()
        for manifest in self.folder.manifests(self.folder.numbers()):
            counted.update(manifest.facts)
        return counted

    def _groups(self, number: int) -> tuple[list[Alternatives], list[list[SegmentEnd]]]:
        """Return the segments of each context, and how they end."""
        contexts = {context.id: context for context in self.contexts.contexts(number)}
        rows = self.samples.folder.rows(number)
        groups, ends = [], []
        for name, group in groupby(rows, key=lambda row: row["context"]):
            context, members = contexts[name], list(group)
            texts = tuple(str(row["text"]) for row in members)
            groups.append(
                Alternatives(context.question.id, context.question.text, context.reasoning, texts)
            )
            ends.append([SegmentEnd(row["end"]) for row in members])
        return groups, ends

    def _is_valid(self, group: Alternatives, segment: str, end: SegmentEnd) -> bool | None:
        if self._truth is None or end not in WHOLE:
            return None
        return self._truth(group.question_id, group.reasoning, segment)


def _sampling(config: PipelineConfig) -> dict[str, Any]:
    return config.samples.model_dump(mode="json", exclude={"rows_at_once"})


def _without_devices(recipe: dict[str, Any]) -> dict[str, Any]:
    """Remove settings that do not change the output from the recipe: devices and request parameters."""
    for role in ("draft", "target"):
        recipe[role].pop("device", None)
        for name in ("base_url", "concurrency", "timeout_s", "max_retries", "api_key_env"):
            recipe[role]["sampler"].pop(name, None)
    return recipe
