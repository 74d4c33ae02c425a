"""Writers of next segments: a model in this process, or an inference server."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import aclosing
from time import monotonic
from typing import Protocol

from semspec.engine.batch import ContextBatch
from semspec.engine.causal_lm import CausalLM
from semspec.engine.segmentation import ended_by_look_ahead
from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import InvalidRequest, Unavailable
from semspec.remote.client import Completion, CompletionClient, Server
from semspec.remote.connect import connect
from semspec.remote.segmenter import TextSegmenter
from semspec.training.config import ServerSampler
from semspec.types import Context, GenerationParams, Segment, Writer


class SegmentWriter(Protocol):
    """Generates next segments."""

    def generate(self, context: Context, seeds: Sequence[int]) -> list[Segment]:
        """Write one next segment per seed, in the order of `seeds`."""
        ...


class CachedModel:
    """A model with the KV cache of its current context, so that the contexts of a trace together prefill it once."""

    def __init__(self, lm: CausalLM, rows_at_once: int) -> None:
        self.lm, self.rows_at_once = lm, rows_at_once
        self._context: Context | None = None
        self._batch: ContextBatch | None = None

    def at(self, context: Context) -> ContextBatch:
        if self._batch is not None and context == self._context:  # not tokenized again
            return self._batch
        tokens, self._context = self.lm.tokenizer.context_ids(context), None
        if self._batch is None or not self._batch.extend(tokens):
            self._batch = None  # free its memory first
            self._batch = ContextBatch(self.lm, tokens)
        self._context = context
        return self._batch


class EngineWriter:
    """Generates segments with a model in this process, token for token as the serving engine does."""

    def __init__(self, model: "CachedModel", writer: Writer, params: GenerationParams) -> None:
        self._model, self._writer, self._params = model, writer, params

    def generate(self, context: Context, seeds: Sequence[int]) -> list[Segment]:
        batch, params, lm = self._model.at(context), self._params, self._model.lm
        rule, limit = params.segmentation, params.max_segment_tokens
        is_after_end = ended_by_look_ahead(context, rule)
        segments: list[Segment] = []
        for start in range(0, len(seeds), self._model.rows_at_once):
            part = seeds[start : start + self._model.rows_at_once]
            for written in batch.sample(params.sampling, part, rule, limit, is_after_end):
                text = batch.text_of(written.token_ids)
                segments.append(
                    Segment(
                        text, tuple(written.token_ids), lm.info.tokenizer, self._writer, written.end
                    )
                )
        return segments


class ServerWriter:
    """Generates segments with a remote completion stream, which is closed as soon as the segment is complete. The
    server returns text only, which is tokenized here, so it needs no feature beyond streaming."""

    def __init__(
        self,
        config: ServerSampler,
        writer: Writer,
        params: GenerationParams,
        tokenizer: ModelTokenizer,
    ) -> None:
        """`tokenizer`: that of the local copy of the same model, which reads the server's text."""
        self._config, self._writer, self._params, self._tokenizer = (
            config,
            writer,
            params,
            tokenizer,
        )
        self._server = Server(
            config.backend,
            config.base_url,
            config.model,
            _key(config),
            config.timeout_s,
            config.max_retries,
            remedy="check sampler.base_url, model and key, then run the same command again",
        )

    def generate(self, context: Context, seeds: Sequence[int]) -> list[Segment]:
        """Raises: Unavailable, DeadlineExceeded, Overloaded, Mismatch when the server fails."""
        prompt = self._tokenizer.without_bos("".join(piece.text for piece in context.pieces))
        sampling, limit = self._params.sampling, self._params.max_segment_tokens
        return asyncio.run(
            self._segments([Completion(prompt, sampling, limit, seed % 2**31) for seed in seeds])
        )

    async def _segments(self, completions: Sequence[Completion]) -> list[Segment]:
        semaphore = asyncio.Semaphore(self._config.concurrency)
        async with aclosing(connect(self._server)) as client:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._segment(client, item, semaphore))
                        for item in completions
                    ]
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None  # it has cancelled the other tasks
        return [task.result() for task in tasks]

    async def _segment(
        self, client: CompletionClient, completion: Completion, semaphore: asyncio.Semaphore
    ) -> Segment:
        segmenter = TextSegmenter(self._tokenizer, self._writer, self._params, 0, completion.prompt)
        async with semaphore, aclosing(client.stream(completion)) as deltas:
            async for delta in deltas:
                for segment in segmenter.take(delta.text, delta.end):
                    return segment
        raise Unavailable(
            f"{self._config.base_url} closed the stream without an end",
            remedy="run the same command again",
        )


def _key(config: ServerSampler) -> str | None:
    if config.api_key_env is None:
        return None
    if config.api_key_env not in os.environ:
        raise InvalidRequest(
            f"sampler.api_key_env: {config.api_key_env} is not set in the environment"
        )
    return os.environ[config.api_key_env]


class DeadlinePassed(Exception):
    """The time to write segments is over."""


class LimitedWriter:
    """A writer that begins no segment after a deadline."""

    def __init__(self, writer: SegmentWriter, deadline: float) -> None:
        self._writer, self._deadline = writer, deadline

    def generate(self, context: Context, seeds: Sequence[int]) -> list[Segment]:
        """Raises: DeadlinePassed; what the writer raises."""
        if monotonic() > self._deadline:
            raise DeadlinePassed
        return self._writer.generate(context, seeds)
