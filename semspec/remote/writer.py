"""An engine whose segments are written by a server, and how the settings make one."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from semspec.engine.protocol import Engine, load_engine
from semspec.engine.segmentation import TextSegmenter
from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import DeadlineExceeded, InvalidRequest, Mismatch, Overloaded, Unavailable
from semspec.remote.client import Completion, CompletionClient, Server, connect
from semspec.settings import ModelSettings
from semspec.types import (
    ChoiceScores,
    Context,
    GeneratedSegment,
    GenerationParams,
    Message,
    ModelInfo,
    Piece,
    Proposal,
    Segment,
    Segmentation,
    SegmentEnd,
    SegmentScore,
    States,
    Token,
    VerifiedTokens,
    Writer,
    derive_seed,
)

MAX_SEED = 2**63
"""OpenAI's seeds are signed integers of 64 bits."""

logger = logging.getLogger(__name__)


class RemoteWriter:
    """`generate` goes to a server, everything else to the engine here, which runs the same model.

    See `semspec.engine.protocol.Engine`. `generate` raises ContextTooLong, InvalidRequest and what
    `CompletionClient.stream` raises.
    """

    def __init__(self, engine: Engine, tokenizer: ModelTokenizer, client: CompletionClient, writer: Writer) -> None:
        self._engine, self._tokenizer, self._client, self._writer = engine, tokenizer, client, writer

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        if params.num_logprobs is not None:
            raise InvalidRequest("logprobs: a server writes here that does not tell them; leave them out", "logprobs")
        start = perf_counter()
        async with aclosing(self._segments(context, params)) as segments:
            async for segment in segments:
                states = await self._states(context, segment, params.session) if params.want_states else None
                context = context.extended(segment)
                now = perf_counter()
                yield GeneratedSegment(segment, states, (now - start) * 1e3)
                start = now

    async def _segments(self, context: Context, params: GenerationParams) -> AsyncGenerator[Segment, None]:
        num_tokens = len(self._tokenizer.context_ids(context))
        self._tokenizer.check_room(num_tokens, "context")
        segmenter = TextSegmenter(self._tokenizer, self._writer, params, num_tokens)
        prompt = self._tokenizer.without_bos("".join(piece.text for piece in context.pieces))
        for stop_at in (_stop_at(params), None):  # a second time when the first stop was before a segment's first word
            text = prompt + segmenter.text
            completion = Completion(text, params.sampling, segmenter.num_left, _seed(params, text), stop_at)
            end: SegmentEnd | None = None
            async with aclosing(self._client.stream(completion)) as deltas:
                async for delta in deltas:
                    for segment in segmenter.take(delta.text, delta.end):
                        yield segment
                    if segmenter.is_done:
                        return
                    end = delta.end
            if end is None:
                break
        raise Unavailable("the server that writes for this model broke off without an end; retry")

    async def _states(self, context: Context, segment: Segment, session: str) -> States:
        [score] = await self._engine.score(context, [segment], session)
        return score.states

    async def info(self) -> ModelInfo:
        return replace(await self._engine.info(), tells_logprobs=False)

    async def encode(self, prompt: str | Sequence[Message]) -> Piece:
        return await self._engine.encode(prompt)

    async def tokenize(self, text: str) -> list[Token]:
        return await self._engine.tokenize(text)

    async def score(self, context: Context, segments: Sequence[Segment], session: str = "") -> list[SegmentScore]:
        return await self._engine.score(context, segments, session)

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        return await self._engine.propose(context, open_ids, params, num_tokens)

    async def verify(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        return await self._engine.verify(context, open_ids, proposal, params)

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        return await self._engine.score_choices(context, question, prefill, options, session)

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._engine.aclose()


def _seed(params: GenerationParams, text: str) -> int:
    """The same for the same request. The engine names its draws by their position; a server begins anew with each
    request, and would draw every segment of a generation with the same numbers."""
    return derive_seed(params.sampling.seed, "remote", len(text)) % MAX_SEED


def _stop_at(params: GenerationParams) -> str | None:
    """Of a single paragraph the end is a text; of other orders only who reads along knows it."""
    is_paragraph = params.max_segments == 1 and params.segmentation is Segmentation.PARAGRAPH
    return "\n\n" if is_paragraph else None


def load_remote_writer(settings: ModelSettings, server: Server, writer: Writer) -> Engine:
    """The model the settings name, with `server` writing for it.

    Raises: Mismatch when either cannot serve. A server that is merely away is waited for by those who call.
    """
    asyncio.run(_check(settings.model, server))
    engine = load_engine(settings, writer)
    return RemoteWriter(engine, engine.tokenizer, connect(server), writer)


async def _check(model: str, server: Server) -> None:
    """Compare names, all that a server tells of its model."""
    async with aclosing(connect(server)) as client:
        served = await _served(client)
    if served is None:
        return
    if server.api == "openai" and server.model not in served:
        names = ", ".join(served) or "nothing"
        raise Mismatch(f"{server.url} serves {names}, not {server.model}; {server.remedy}")
    name = server.model if server.api == "openai" else served[0]
    if name is not None and Path(name).name == Path(model).name:
        logger.info("segments are written by %s at %s", name, server.url)
    else:
        logger.warning(
            "segments are written by %s at %s, states are those of %s: it must be the same model",
            name,
            server.url,
            model,
        )


async def _served(client: CompletionClient) -> list[str] | None:
    try:
        return await client.served()
    except (Unavailable, Overloaded, DeadlineExceeded) as error:
        logger.warning("the model of the server that writes could not be checked: %s", error.message)
        return None
