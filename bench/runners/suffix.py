"""Runner of suffix decoding (arXiv 2411.04975): Arctic Inference's suffix trees propose, our target verifies.

The library is no dependency; docs/benchmarks.md says how to install it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from semspec.bench.runners.in_process import InProcessRunner
from semspec.bench.runners.protocol import Ask, Outcome, RunnerError
from semspec.decoding import Backends
from semspec.decoding.protocols import WithoutProbes
from semspec.decoding.retrieval.datastore import Datastore
from semspec.engine.transformers_engine import TransformersEngine
from semspec.gateway.options import Defaults
from semspec.stack import StackConfig
from semspec.types import (
    Context,
    Distribution,
    GeneratedSegment,
    GenerationParams,
    ModelInfo,
    Piece,
    Prompt,
    Proposal,
    Writer,
)

MAX_DEPTH = 64
"""Depth of the trees in tokens, the library's default."""
LEAST_PROBABILITY = 0.1
"""Least estimated probability of a proposed token, the library's default."""


class SuffixDraft:
    """Proposes from the suffix trees of one prompt and of all answers so far. For one generation at a time."""

    def __init__(self, tokenizer: str, answers: Sequence[Sequence[int]]) -> None:
        """`answers`: known from the start. Raises: RunnerError when the library is missing."""
        self._tokenizer, self._cache = tokenizer, _cache()
        self._session, self._num_known = "", 0
        for number, answer in enumerate(answers):
            self._begin(str(number), [])
            self._cache.add_active_response(self._session, _array(answer))

    async def info(self) -> ModelInfo:
        return ModelInfo("", "", self._tokenizer, 0, 0, 0, datastore="suffix trees")

    async def encode(self, prompt: Prompt) -> Piece:
        raise RunnerError("there is no draft model")

    def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        raise RunnerError("there is no draft model")

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        start = perf_counter()
        prompt, *segments = context.pieces
        answer = [*chain.from_iterable(segment.token_ids for segment in segments), *open_ids]
        if params.session != self._session or len(answer) < self._num_known:
            self._begin(params.session, prompt.token_ids)
        if len(answer) > self._num_known:
            self._cache.add_active_response(self._session, _array(answer[self._num_known :]))
            self._num_known = len(answer)
        ending = _array([*prompt.token_ids, *answer][-MAX_DEPTH:])
        found = self._cache.speculate(self._session, ending, num_tokens, min_token_prob=LEAST_PROBABILITY)
        token_ids = tuple(found.token_ids[:num_tokens])
        duration_ms = (perf_counter() - start) * 1e3
        return Proposal(token_ids, tuple(map(Distribution.certain, token_ids)), self._tokenizer, duration_ms)

    def _begin(self, session: str, prompt: Sequence[int]) -> None:
        if self._session:
            self._cache.stop_request(self._session)
        self._session, self._num_known = session, 0
        self._cache.start_request(session, _array(prompt))


class SuffixRunner:
    """See `semspec.bench.runners.protocol.Runner`."""

    def __init__(self, backends: Backends) -> None:
        self._inner = InProcessRunner(backends, Defaults())

    async def ask(self, ask: Ask) -> Outcome:
        tokens = ask.configuration.knobs.get("tokens")
        knobs = {} if tokens is None else {"num_speculative_tokens": tokens}
        configuration = replace(ask.configuration, runner="in-process", method="retrieval", knobs=knobs)
        return await self._inner.ask(replace(ask, configuration=configuration))

    def processes(self) -> Mapping[str, int]:
        return self._inner.processes()


@asynccontextmanager
async def open_suffix(pair: Path) -> AsyncIterator[SuffixRunner]:
    """Run the target in this process; the pair's datastore, if there is one, is known from the start.

    Raises: RunnerError when the library is missing; Mismatch.
    """
    folder = StackConfig.of_pair(pair).datastore
    answers = Datastore.load(folder).static.documents if folder else []
    target = TransformersEngine.load(str(pair / "target"), writer=Writer.TARGET)
    try:
        draft = SuffixDraft((await target.info()).tokenizer, answers)
        yield SuffixRunner(Backends(draft, target, WithoutProbes()))
    finally:
        await target.aclose()


def _cache() -> Any:
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache
    except ImportError as error:
        raise RunnerError(f"suffix decoding needs Arctic Inference ({error}); see docs/benchmarks.md") from error
    return SuffixDecodingCache(MAX_DEPTH)


def _array(token_ids: Sequence[int]) -> Any:
    return np.asarray(token_ids, np.int32)
