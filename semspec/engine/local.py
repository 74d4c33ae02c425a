"""The base of engines in a model's process: tokenization, checks of requests, budgets and segments.

Subclasses compute the forward passes.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from semspec.engine.grammars import Grammars
from semspec.engine.requests import Generate, Propose, Request, Result, Score, Verify
from semspec.engine.segmentation import ended_by_look_ahead, prompt_and_output, stops_after
from semspec.engine.speculative import (
    check_token_ids,
    segmenter_for,
    shared_part,
)
from semspec.engine.tokenization import ModelTokenizer, parameter_of
from semspec.errors import InternalError, InvalidField, Mismatch
from semspec.protocols import Engine
from semspec.reasoning import FORMS, unknown_marks
from semspec.types import (
    GRAMMAR,
    Context,
    GeneratedSegment,
    GenerationParams,
    ModelInfo,
    OpenText,
    Piece,
    Prompt,
    Proposal,
    Segment,
    SegmentScore,
    Token,
    VerifiedTokens,
    Writer,
)

_log = logging.getLogger(__name__)


def check_supported(params: GenerationParams, info: ModelInfo) -> None:
    """Check that the model of `info` supports what `params` ask for. Raises: InvalidRequest."""
    for field, is_unsupported in (
        (GRAMMAR, params.grammar and not info.supports_grammars),
        ("penalties", not (params.penalties.is_neutral or info.supports_penalties)),
        ("min_tokens", params.min_tokens and (params.grammar or not info.supports_penalties)),
        ("logprobs", params.num_logprobs is not None and not info.supports_logprobs),
        ("min_p", params.sampling.min_p and not info.supports_min_p),
    ):
        if is_unsupported:
            raise InvalidField("this model does not support it", field, remedy="leave it out")
    largest = max((token for token, _ in params.penalties.logit_bias), default=-1)
    if largest >= info.num_token_ids:
        raise InvalidField(
            f"{largest} is not a token id of this model",
            "logit_bias",
            remedy=f"its ids are below {info.num_token_ids}",
        )


class LocalEngine(Engine):
    """An engine in this process: turns calls into requests to its model, which subclasses run in `_results`."""

    def __init__(self, tokenizer: ModelTokenizer, writer: Writer, info: ModelInfo) -> None:
        self.tokenizer, self._writer, self._grammars = tokenizer, writer, Grammars.of(tokenizer)
        self._info = replace(
            info,
            supports_grammars=self._grammars is not None,
            supports_penalties=True,
            num_token_ids=tokenizer.num_embeddings,
        )
        if marks := unknown_marks(tokenizer.raw.get_added_vocab()):
            _log.warning(
                "%s seems to mark its reasoning with %s, not with any of %s: answers will contain the reasoning",
                info.model,
                " ".join(marks[:5]),
                " ".join(form.opening for form in FORMS),
            )

    def _results(
        self, tokens: list[int], request: Request, session: str
    ) -> AsyncGenerator[Result, None]:
        """Run a request that reads `tokens`, and yield its results. Closing the generator ends the request.

        Raises: Overloaded, Unavailable.
        """
        raise NotImplementedError

    async def encode(self, prompt: Prompt) -> Piece:
        piece = await asyncio.to_thread(self.tokenizer.encode, prompt)
        self.tokenizer.check_room(len(piece.token_ids), parameter_of(prompt))
        return piece

    async def tokenize(self, text: str) -> list[Token]:
        return await asyncio.to_thread(self.tokenizer.tokenize, text)

    def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        results = self._generate(context, params, streams_text=False)  # without `OpenText`
        return cast(AsyncGenerator[GeneratedSegment, None], results)

    def stream(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment | OpenText, None]:
        return self._generate(context, params, streams_text=True)

    async def _generate(
        self, context: Context, params: GenerationParams, streams_text: bool
    ) -> AsyncGenerator[GeneratedSegment | OpenText, None]:
        check_supported(params, self._info)
        context = await self._retokenize(context)
        tokens = self.tokenizer.context_ids(context)
        self.tokenizer.check_room(len(tokens), "context")
        if params.grammar and self._grammars:
            await self._grammars.check(params.grammar, params.owner)
        request = Generate(
            params, ended_by_look_ahead(context, params.segmentation), streams_text=streams_text
        )
        if params.stops:
            prompt, output = prompt_and_output(context)
            request = replace(request, prompt=prompt, output=output)
        if request.changes_logits:
            segments = (piece for piece in context.pieces if isinstance(piece, Segment))
            request = replace(
                request, written=tuple(token for segment in segments for token in segment.token_ids)
            )
        async with aclosing(self._results(tokens, request, params.session)) as results:
            async for result in results:
                if isinstance(result.value, OpenText):
                    yield result.value
                else:
                    yield result.measured(result.value)

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        num_before = len(context.pieces)
        pieces = await self.tokenizer.retokenize((*context.pieces, *segments))
        tokens = self.tokenizer.context_ids(Context(pieces[:num_before]))
        ids = self.tokenizer.segment_ids(pieces[num_before:])
        tokens += [token for segment_ids in ids for token in segment_ids]
        self.tokenizer.check_room(len(tokens), "segments")
        result = await self._result(tokens, Score(tuple(map(len, ids)), projection), session)
        return [result.measured(score) for score in result.value]

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        if params.retrieval is not None:
            raise Mismatch(
                "this service has no datastore",
                "retrieval",
                remedy="build one and set SEMSPEC_DRAFT_DATASTORE",
            )
        check_token_ids(self.tokenizer, open_ids, "open_ids")
        tokens = [*self.tokenizer.context_ids(await self._retokenize(context)), *open_ids]
        self.tokenizer.check_room(len(tokens), "context")
        num_tokens = min(num_tokens, self._info.max_context_tokens - len(tokens))
        result = await self._result(tokens, Propose(params.sampling, num_tokens), params.session)
        proposal: Proposal = replace(result.value, duration_ms=result.duration_ms)
        return proposal

    async def verify_tokens(
        self,
        context: Context,
        open_ids: Sequence[int],
        proposal: Proposal,
        params: GenerationParams,
    ) -> VerifiedTokens:
        context_ids = self.tokenizer.context_ids(await self._retokenize(context))
        stops = stops_after(*prompt_and_output(context), params) if params.stops else None
        segmenter = segmenter_for(
            self.tokenizer, self._writer, context_ids, open_ids, proposal, params, stops
        )
        drafted = proposal.token_ids[: segmenter.num_left]
        num_shared, distributions = shared_part(self.tokenizer, proposal)
        shared = drafted[:num_shared]
        request = Verify(
            drafted,
            len(shared),
            distributions[: len(drafted)],
            params.sampling,
            not open_ids and ended_by_look_ahead(context, params.segmentation),
            proposal.state_layer,
        )
        result = await self._result([*context_ids, *open_ids, *shared], request, params.session)
        chosen, states = result.value.token_ids, result.value.states
        num_taken = next(
            (index for index, token in enumerate(chosen) if not segmenter.take(token)), len(chosen)
        )
        is_foreign = bool(drafted) and proposal.tokenizer != self.tokenizer.info.tokenizer
        return VerifiedTokens(
            tuple(segmenter.segments),
            tuple(segmenter.open_ids),
            min(num_taken, len(chosen) - 1),
            result.duration_ms,
            segmenter.open_piece if is_foreign else None,
            states[num_taken - 1] if states else b"",
            result.num_cached_tokens,
            segmenter.settled_text,
        )

    async def _retokenize(self, context: Context) -> Context:
        return Context(await self.tokenizer.retokenize(context.pieces))

    async def _result(self, tokens: list[int], request: Request, session: str) -> Result:
        """Return the only result of a request."""
        async with aclosing(self._results(tokens, request, session)) as results:
            async for result in results:
                return result
        raise InternalError(
            "the engine ended a request without a result", remedy="see the service's log"
        )
