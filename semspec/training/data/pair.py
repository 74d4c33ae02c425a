"""Stage 2: N next segments from each model of a pair at each context, with the models' states of them. The models are
loaded on first use."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from semspec.engine.causal_lm import CausalLM
from semspec.errors import InvalidRequest
from semspec.reporting.files import Row
from semspec.training.config import ModelConfig, PipelineConfig, ServerSampler
from semspec.training.data.contexts import ProbeContext
from semspec.training.data.writers import (
    CachedModel,
    EngineWriter,
    LimitedWriter,
    SegmentWriter,
    ServerWriter,
)
from semspec.types import GenerationParams, ModelInfo, Segment, Segmentation, Writer, derive_seed


def to_disk(states: Tensor) -> Tensor:
    """Convert `states` for the disk: to float16, which rounds finer than models in bfloat16 compute, or to float32 if
    one exceeds its range. Raises: InvalidRequest when they are not finite."""
    if not bool(states.isfinite().all()):
        raise InvalidRequest(
            "states are not finite", remedy="set dtype of both models to bfloat16 or float32"
        )
    kept = states.half()
    return kept if bool(kept.isfinite().all()) else states


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


class Pair:
    """Draft and target with their writers. Raises: Mismatch when a model cannot be loaded."""

    def __init__(self, config: PipelineConfig) -> None:
        self._config = config

    @cached_property
    def models(self) -> dict[Writer, CachedModel]:
        configs = {Writer.DRAFT: self._config.draft, Writer.TARGET: self._config.target}
        rows_at_once = self._config.samples.rows_at_once
        return {
            writer: CachedModel(load_model(config), rows_at_once)
            for writer, config in configs.items()
        }

    @cached_property
    def writers(self) -> dict[Writer, SegmentWriter]:
        return {writer: self._writer(writer) for writer in (Writer.DRAFT, Writer.TARGET)}

    @property
    def draft(self) -> CausalLM:
        return self.models[Writer.DRAFT].lm

    @property
    def target(self) -> CausalLM:
        return self.models[Writer.TARGET].lm

    def sample(self, context: ProbeContext) -> tuple[list[Row], dict[str, Tensor]]:
        """Return rows, the target's segments first, and tensors aligned with them: `target_states` [rows, layers + 1,
        hidden], `surprisal` [rows, features] fp32; `draft_states` of the draft's own segments only. `token_statistics`
        [tokens, 4] fp32 has `num_tokens` entries a row, of the target."""
        segments = {
            writer: self._written(context, writer) for writer in (Writer.TARGET, Writer.DRAFT)
        }
        all_segments = segments[Writer.TARGET] + segments[Writer.DRAFT]
        ids = self._ids(Writer.TARGET, context, all_segments)
        states, surprisal, statistics = self._read(Writer.TARGET, context, ids)
        draft_ids = self._ids(Writer.DRAFT, context, segments[Writer.DRAFT])
        draft_states, *_ = self._read(Writer.DRAFT, context, draft_ids)
        rows = [
            _row(context, segment, len(segment_ids))
            for segment, segment_ids in zip(all_segments, ids, strict=True)
        ]
        return rows, {
            "target_states": states,
            "surprisal": surprisal,
            "draft_states": draft_states,
            "token_statistics": statistics,
        }

    def _written(self, context: ProbeContext, writer: Writer) -> list[Segment]:
        config = self._config.samples
        base = derive_seed(config.seed, f"sample {writer} {context.question.id}", context.depth)
        num_samples = config.num_samples
        if writer is Writer.TARGET and context.question.split == "test":
            num_samples = config.num_test_samples or num_samples
        seeds = [derive_seed(base, "sample", index) for index in range(num_samples)]
        return self.writers[writer].generate(context.read_by(writer), seeds)

    def _ids(
        self, reader: Writer, context: ProbeContext, segments: Sequence[Segment]
    ) -> list[list[int]]:
        """Return alternatives after a context in the reader's tokens.

        An empty segment, which a server may send, becomes end-of-sequence.
        """
        tokenizer = self.models[reader].lm.tokenizer
        eos, before = [tokenizer.end_of_turn], context.read_by(reader).pieces[-1].text
        return [list(tokenizer.read_ids(segment, before)) or eos for segment in segments]

    def _read(
        self, reader: Writer, context: ProbeContext, segments: Sequence[list[int]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        model = self.models[reader]
        batch, size = model.at(context.read_by(reader)), model.rows_at_once
        parts = [batch.read(segments[i : i + size]) for i in range(0, len(segments), size)]
        states = to_disk(torch.cat([part.states for part in parts]).cpu())
        surprisal = torch.cat([part.surprisal for part in parts]).float().cpu()
        by_segment = [values for part in parts for values in part.token_statistics]
        return states, surprisal, torch.cat(by_segment).float().cpu()

    def until(self, deadline: float) -> "Pair":
        """Return the pair with writers that raise DeadlinePassed when `time.monotonic` is past `deadline`."""
        limited = Pair(self._config)
        limited.models = self.models
        limited.writers = {
            writer: LimitedWriter(segment_writer, deadline)
            for writer, segment_writer in self.writers.items()
        }
        return limited

    @property
    def is_loaded(self) -> bool:
        return "models" in self.__dict__

    def infos(self) -> dict[str, dict[str, Any]]:
        """Return both models' infos, for the manifests and the probes' cards."""
        return {writer.value: info_json(model.lm.info) for writer, model in self.models.items()}

    def forget(self) -> None:
        """Free the memory; the models are loaded again on their next use."""
        self.__dict__.pop("writers", None)
        self.__dict__.pop("models", None)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _writer(self, writer: Writer) -> SegmentWriter:
        config = self._config
        limit = config.max_segment_tokens
        params = GenerationParams(config.samples.sampling, config.segmentation, 1, limit, limit)
        sampler = (config.draft if writer is Writer.DRAFT else config.target).sampler
        if isinstance(sampler, ServerSampler):
            return ServerWriter(sampler, writer, params, self.models[writer].lm.tokenizer)
        return EngineWriter(self.models[writer], writer, params)


def load_model(config: ModelConfig) -> CausalLM:
    """Load a model. Raises: Mismatch when it cannot be loaded."""
    return CausalLM.load(config.model, config.revision, config.device, config.dtype)


def info_json(info: ModelInfo) -> dict[str, Any]:
    return asdict(info) | {
        "segmentations": [str(segmentation) for segmentation in info.segmentations]
    }


def info_of(fields: dict[str, Any]) -> ModelInfo:
    """Return the inverse of `info_json`."""
    return ModelInfo(
        **fields | {"segmentations": tuple(Segmentation(name) for name in fields["segmentations"])}
    )
