"""The two models of the pair, loaded when first needed."""

from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch

from semspec.engine.causal_lm import CausalLM
from semspec.types import ModelInfo, Segmentation, Writer
from training.config import ModelConfig, PipelineConfig, ServerSampler
from training.data.sample import Sampler, states_dtype
from training.data.writers import EngineWriter, ModelDesk, SegmentWriter, ServerWriter, WritingRecipe


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
