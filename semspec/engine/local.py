"""What a call does in the process of a model, written once for every engine: text and tokens, limits and messages,
budgets and segments. The forward passes are the engine's."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from semspec.engine.requests import Generate, Propose, Request, Result, Score, Verify
from semspec.engine.segmentation import ended_by_look_ahead, prompt_and_output, stops_after
from semspec.engine.shaping import Grammars
from semspec.engine.speculative import (
    check_no_retrieval,
    check_token_ids,
    segmenter_of,
    shared_part,
)
from semspec.engine.tokenization import ModelTokenizer, parameter_of
from semspec.errors import InternalError, InvalidField
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
    """Raises: InvalidRequest when `params` ask for what the model of `info` does not support."""
    for field, is_unsupported in (
        (GRAMMAR, params.grammar and not info.supports_grammars),
        ("penalties", not (params.penalties.is_neutral or info.supports_penalties)),
        ("min_tokens", params.min_tokens and (params.grammar or not info.supports_penalties)),
        ("logprobs", params.num_logprobs is not None and not info.supports_logprobs),
        ("min_p", params.sampling.min_p and not info.supports_min_p),
    ):
        if is_unsupported:
            raise InvalidField("this model takes none", field, remedy="leave it out")
    last, limit = (
        max((token for token, _ in params.penalties.logit_bias), default=-1),
        info.num_token_ids,
    )
    if last >= limit:
        raise InvalidField(
            f"{last} is no token of this model",
            "logit_bias",
            remedy=f"its ids are below {limit}",
        )


class LocalEngine(Engine):
    """An engine of this process: its tokenizer, and its calls as requests to the steps of its model, `_results`."""

    def __init__(self, tokenizer: ModelTokenizer, writer: Writer, info: ModelInfo) -> None:
        self.tokenizer, self._writer, self._grammars = tokenizer, writer, Grammars.of(tokenizer)
        can_shape, size = self._grammars is not None, tokenizer.num_embeddings
        self._info = replace(
            info, supports_grammars=can_shape, supports_penalties=True, num_token_ids=size
        )
        if marks := unknown_marks(tokenizer.raw.get_added_vocab()):
            _log.warning(
                "reasoning is not told apart: %s seems to mark it with %s, and not with any of %s; answers hold it",
                info.model,
                " ".join(marks[:5]),
                " ".join(form.opening for form in FORMS),
            )

    def _results(
        self, tokens: list[int], request: Request, session: str
    ) -> AsyncGenerator[Result, None]:
        """The results of a request that reads `tokens`. Closing this generator ends the request. Raises: Overloaded,
        Unavailable."""
        raise NotImplementedError

    async def encode(self, prompt: Prompt) -> Piece:
        piece = await asyncio.to_thread(self.tokenizer.encode, prompt)
        self.tokenizer.check_room(len(piece.token_ids), parameter_of(prompt))
        return piece

    async def tokenize(self, text: str) -> list[Token]:
        return await asyncio.to_thread(self.tokenizer.tokenize, text)

    async def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        async with aclosing(self._written(context, params, streams_text=False)) as written:
            async for one in written:
                if isinstance(one, GeneratedSegment):
                    yield one

    def stream(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment | OpenText, None]:
        return self._written(context, params, streams_text=True)

    async def _written(
        self, context: Context, params: GenerationParams, streams_text: bool
    ) -> AsyncGenerator[GeneratedSegment | OpenText, None]:
        check_supported(params, self._info)
        context = await self._owned(context)
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
        if request.is_shaped:
            segments = (piece for piece in context.pieces if isinstance(piece, Segment))
            request = replace(
                request, written=tuple(token for segment in segments for token in segment.token_ids)
            )
        async with aclosing(self._results(tokens, request, params.session)) as results:
            async for one in results:
                if isinstance(one.value, OpenText):
                    yield one.value
                else:
                    yield replace(
                        one.value,
                        duration_ms=one.duration_ms,
                        num_cached_tokens=one.num_cached_tokens,
                    )

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        num_before = len(context.pieces)
        pieces = await self.tokenizer.owned((*context.pieces, *segments))
        tokens = self.tokenizer.context_ids(Context(pieces[:num_before]))
        ids = self.tokenizer.segment_ids(pieces[num_before:])
        tokens += [token for segment_ids in ids for token in segment_ids]
        self.tokenizer.check_room(len(tokens), "segments")
        done = await self._result(tokens, Score(tuple(map(len, ids)), projection), session)
        facts = {"duration_ms": done.duration_ms, "num_cached_tokens": done.num_cached_tokens}
        return [replace(score, **facts) for score in done.value]

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        check_no_retrieval(params)
        check_token_ids(self.tokenizer, open_ids, "open_token_ids")
        tokens = [*self.tokenizer.context_ids(await self._owned(context)), *open_ids]
        self.tokenizer.check_room(len(tokens), "context")
        num_tokens = min(num_tokens, self._info.max_context_tokens - len(tokens))
        done = await self._result(tokens, Propose(params.sampling, num_tokens), params.session)
        proposal: Proposal = replace(done.value, duration_ms=done.duration_ms)
        return proposal

    async def verify_tokens(
        self,
        context: Context,
        open_ids: Sequence[int],
        proposal: Proposal,
        params: GenerationParams,
    ) -> VerifiedTokens:
        context_ids = self.tokenizer.context_ids(await self._owned(context))
        stops = stops_after(*prompt_and_output(context), params) if params.stops else None
        segmenter = segmenter_of(
            self.tokenizer, self._writer, context_ids, open_ids, proposal, params, stops
        )
        drafted = proposal.token_ids[: segmenter.num_left]
        num_shared, distributions = shared_part(self.tokenizer, proposal)
        fed = drafted[:num_shared]
        request = Verify(
            drafted,
            len(fed),
            distributions[: len(drafted)],
            params.sampling,
            not open_ids and ended_by_look_ahead(context, params.segmentation),
            proposal.state_layer,
        )
        done = await self._result([*context_ids, *open_ids, *fed], request, params.session)
        chosen, states = done.value.token_ids, done.value.states
        num_taken = next(
            (index for index, token in enumerate(chosen) if not segmenter.take(token)), len(chosen)
        )
        is_foreign = bool(drafted) and proposal.tokenizer != self.tokenizer.info.tokenizer
        return VerifiedTokens(
            tuple(segmenter.segments),
            tuple(segmenter.open_ids),
            min(num_taken, len(chosen) - 1),
            done.duration_ms,
            segmenter.open_piece if is_foreign else None,
            states[num_taken - 1] if states else b"",
            done.num_cached_tokens,
            segmenter.settled_text,
        )

    async def _owned(self, context: Context) -> Context:
        return Context(await self.tokenizer.owned(context.pieces))

    async def _result(self, tokens: list[int], request: Request, session: str) -> Result:
        async with aclosing(self._results(tokens, request, session)) as results:
            async for result in results:
                return result
        raise InternalError(
            "the engine ended a request without a result", remedy="see the service's log"
        )
