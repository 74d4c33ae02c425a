"""The two models of the pair, loaded when first needed; stage 2: N next segments a context from each, with each model's
scores of them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from semspec.engine.causal_lm import CausalLM
from semspec.errors import InvalidRequest
from semspec.training.config import ModelConfig, PipelineConfig, ServerSampler
from semspec.training.data.contexts import ProbeContext
from semspec.training.data.writers import EngineWriter, ModelDesk, SegmentWriter, ServerWriter, WritingRecipe
from semspec.training.files import Row
from semspec.types import Context, ModelInfo, Segment, Segmentation, Writer, derive_seed


class Sampler:
    """Both models at work on one context after another."""

    def __init__(
        self,
        desks: dict[Writer, ModelDesk],
        writers: dict[Writer, SegmentWriter],
        num_samples: int,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        self._desks, self._writers = desks, writers
        self._num_samples, self._seed, self._dtype = num_samples, seed, dtype

    def sample(self, context: ProbeContext) -> tuple[list[Row], dict[str, Tensor]]:
        """Rows, the target's segments first, and aligned with them:

        `target_states` [rows, layers + 1, hidden], `surprisal` [rows, features] fp32; `draft_states` of the draft's
        own segments only.
        """
        segments = {writer: self._written(context, writer) for writer in (Writer.TARGET, Writer.DRAFT)}
        everyone = segments[Writer.TARGET] + segments[Writer.DRAFT]
        ids = self._ids(Writer.TARGET, everyone)
        states, surprisal = self._read(Writer.TARGET, context.context, ids)
        draft_ids = self._ids(Writer.DRAFT, segments[Writer.DRAFT])
        draft_states, _ = self._read(Writer.DRAFT, context.context, draft_ids)
        rows = [_row(context, segment, len(own)) for segment, own in zip(everyone, ids, strict=True)]
        return rows, {"target_states": states, "surprisal": surprisal, "draft_states": draft_states}

    def _written(self, context: ProbeContext, writer: Writer) -> list[Segment]:
        base = derive_seed(self._seed, f"sample {writer} {context.question.id}", context.depth)
        seeds = [derive_seed(base, "sample", index) for index in range(self._num_samples)]
        return self._writers[writer].generate(context.context, seeds)

    def _ids(self, reader: Writer, segments: Sequence[Segment]) -> list[list[int]]:
        """Segments in the reader's tokens; of one without a word, which a server may send, end-of-sequence."""
        tokenizer = self._desks[reader].lm.tokenizer
        return [list(tokenizer.read_ids(one, is_first=False)) or [min(tokenizer.eos_ids)] for one in segments]

    def _read(self, reader: Writer, context: Context, segments: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        desk = self._desks[reader]
        batch, at_once = desk.at(context), desk.rows_at_once
        parts = [batch.read(segments[i : i + at_once]) for i in range(0, len(segments), at_once)]
        states = torch.cat([part.states for part in parts]).to("cpu", self._dtype)
        if not bool(states.isfinite().all()):
            raise InvalidRequest(
                f"states overflow {str(self._dtype).removeprefix('torch.')}; set samples.states_dtype to bfloat16",
                "samples.states_dtype",
            )
        return states, torch.cat([part.surprisal for part in parts]).float().cpu()


def _row(context: ProbeContext, segment: Segment, num_tokens: int) -> Row:
    return {
        "context": context.id,
        "depth": context.depth,
        "writer": segment.writer.value,
        "text": segment.text,
        "token_ids": list(segment.token_ids),
        "num_tokens": num_tokens,
        "end": segment.end.value,
    }


def stacked(parts: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of several contexts as those of a shard."""
    gathered = list(parts)
    return {name: torch.cat([part[name] for part in gathered]) for name in gathered[0]}


def states_dtype(name: str, model_dtype: torch.dtype) -> torch.dtype:
    """How states are kept on disk."""
    if name == "auto":
        return torch.float16 if model_dtype is torch.float32 else model_dtype
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


class Pair:
    """Draft and target with their desks and writers. Raises: Mismatch when a model cannot be loaded."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    @cached_property
    def desks(self) -> dict[Writer, ModelDesk]:
        models = {Writer.DRAFT: self._config.draft, Writer.TARGET: self._config.target}
        rows_at_once = self._config.samples.rows_at_once
        return {writer: ModelDesk(_load(model), rows_at_once) for writer, model in models.items()}

    @cached_property
    def writers(self) -> dict[Writer, SegmentWriter]:
        return {writer: self._writer(writer) for writer in (Writer.DRAFT, Writer.TARGET)}

    @property
    def target(self) -> CausalLM:
        return self.desks[Writer.TARGET].lm

    def sampler(self) -> Sampler:
        samples = self._config.samples
        dtype = states_dtype(samples.states_dtype, self.target.model.dtype)
        return Sampler(self.desks, self.writers, samples.num_samples, samples.seed, dtype)

    def infos(self) -> dict[str, dict[str, Any]]:
        """What both models say of themselves, for the manifests and the probes' cards."""
        return {writer.value: info_json(desk.lm.info) for writer, desk in self.desks.items()}

    def forget(self) -> None:
        """Give the memory back; the models are loaded again when needed."""
        self.__dict__.pop("writers", None)
        self.__dict__.pop("desks", None)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _writer(self, writer: Writer) -> SegmentWriter:
        config = self._config
        recipe = WritingRecipe(config.samples.sampling, config.segmentation, config.max_segment_tokens)
        sampler = (config.draft if writer is Writer.DRAFT else config.target).sampler
        if isinstance(sampler, ServerSampler):
            return ServerWriter(sampler, writer, recipe, self.desks[writer].lm.tokenizer)
        return EngineWriter(self.desks[writer], writer, recipe)


def _load(config: ModelConfig) -> CausalLM:
    return CausalLM.load(config.model, config.revision, config.device, config.dtype)


def info_json(info: ModelInfo) -> dict[str, Any]:
    return asdict(info) | {"segmentations": [str(one) for one in info.segmentations]}


def info_of(fields: dict[str, Any]) -> ModelInfo:
    """The inverse of `info_json`."""
    return ModelInfo(**fields | {"segmentations": tuple(Segmentation(name) for name in fields["segmentations"])})
