"""The engine of a service over vLLM: prompts, segments and errors are ours, forward passes and their batches vLLM's."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semspec.engine.conversation import option_ids
from semspec.engine.protocol import TextEngine, check_supported
from semspec.engine.segmentation import ended_by_look_ahead
from semspec.engine.speculative import check_no_retrieval, check_token_ids, segmenter_of, shared_part
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.tree import as_chain
from semspec.engine.vllm.options import check_installed, engine_args, load_model, prepare_environment
from semspec.engine.vllm.process import Core
from semspec.engine.vllm.requests import (
    KEY,
    Choose,
    Generate,
    Propose,
    Request,
    Score,
    Verify,
    request_to_wire,
    result_from_wire,
)
from semspec.engine.worker import MAX_CALLS
from semspec.errors import InternalError, InvalidRequest, Overloaded, Unavailable
from semspec.types import (
    ChoiceScores,
    Context,
    GeneratedSegment,
    GenerationParams,
    ModelInfo,
    Proposal,
    Segment,
    SegmentScore,
    States,
    VerifiedTokens,
    Writer,
)

if TYPE_CHECKING:
    from semspec.engine.settings import ModelSettings

EXIT_ENGINE_ENDED = 1
"""Exit code of a service whose vLLM ended."""

logger = logging.getLogger(__name__)


def end_service(reason: str) -> None:
    """End this process, whose engine has ended: clients take other replicas, and the supervisor starts it again."""
    logger.critical("cannot serve any longer: %s", reason)
    logging.shutdown()
    os._exit(EXIT_ENGINE_ENDED)


def load_vllm(settings: "ModelSettings", writer: Writer, ended: Callable[[str], None] = end_service) -> "VllmEngine":
    """Start vLLM's processes with the model of `settings`. `ended` is called with the reason, in a thread, when they
    end by themselves. Raises: Mismatch when the model cannot be served."""
    prepare_environment(settings.threads, settings.device)
    check_installed()
    model, tokenizer = load_model(settings, writer)
    core = Core.start(settings.model, lambda: async_llm(engine_args(settings, model)), ended)
    return VllmEngine(core, tokenizer, writer)


def async_llm(arguments: dict[str, Any]) -> Any:
    """Start vLLM with these arguments of `AsyncEngineArgs`."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from semspec.engine.vllm.internals import keep_results

    keep_results()
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


class VllmEngine(TextEngine):
    """Generates and scores segments, proposes and verifies tokens, scores choices. See
    `semspec.engine.protocol.Engine`."""

    def __init__(self, core: Core, tokenizer: ModelTokenizer, writer: Writer) -> None:
        super().__init__(tokenizer)
        self._core, self._writer = core, writer
        self._projections: tuple[str, ...] | None = None
        """Digests of those that vLLM's processes hold; None: to be asked for."""
        self._num_calls = 0
        self._answering: asyncio.Task[None] | None = None
        self.num_steps = 0
        """Steps that brought an output: while there is work and this stands still, vLLM hangs."""

    @property
    def is_busy(self) -> bool:
        """Whether there are calls, or vLLM has not answered since one was cancelled."""
        return self._num_calls > 0 or self._answering is not None

    @property
    def steps(self) -> "VllmEngine":
        """Counts the steps."""
        return self

    async def info(self) -> ModelInfo:
        if self._projections is None:
            self._projections = tuple(await self._core.ask("projections"))
        return replace(self.tokenizer.info, projections=self._projections or ())

    async def read_probes(self) -> None:
        self._projections = tuple(await self._core.ask("read_probes"))

    async def generate(self, context: Context, params: GenerationParams) -> AsyncGenerator[GeneratedSegment, None]:
        check_supported(params, self.tokenizer.info)
        tokens = await self._context_ids(context)
        self.tokenizer.check_room(len(tokens), "context")
        request = Generate(params, ended_by_look_ahead(context, params.segmentation))
        num_tokens = min(params.max_tokens, self.tokenizer.info.max_context_tokens - len(tokens))
        start = perf_counter()
        async with aclosing(self._results(tokens, request, num_tokens + 1)) as results:
            async for generated, num_cached in results:
                self._notice([generated.states], params.projection)
                now = perf_counter()
                yield replace(generated, duration_ms=(now - start) * 1e3, num_cached_tokens=num_cached)
                start = now

    async def score(
        self, context: Context, segments: Sequence[Segment], session: str = "", projection: str = ""
    ) -> list[SegmentScore]:
        tokens = await self._context_ids(context)
        segments = await self.tokenizer.owned(tuple(segments), is_context=False)
        ids = self.tokenizer.segment_ids(segments)
        tokens += [token for segment_ids in ids for token in segment_ids]
        self.tokenizer.check_room(len(tokens), "segments")
        start = perf_counter()
        scores, num_cached = await self._result(tokens, Score(tuple(map(len, ids)), projection))
        self._notice([score.states for score in scores], projection)
        facts = {"duration_ms": (perf_counter() - start) * 1e3, "num_cached_tokens": num_cached}
        return [replace(score, **facts) for score in scores]

    async def propose(
        self, context: Context, open_ids: Sequence[int], params: GenerationParams, num_tokens: int
    ) -> Proposal:
        check_no_retrieval(params)
        check_token_ids(self.tokenizer, open_ids, "open_token_ids")
        tokens = [*await self._context_ids(context), *open_ids]
        self.tokenizer.check_room(len(tokens), "context")
        num_tokens = min(num_tokens, self.tokenizer.info.max_context_tokens - len(tokens))
        if num_tokens < 1:
            return Proposal((), (), self.tokenizer.info.tokenizer, 0.0)
        start = perf_counter()
        proposal: Proposal = (await self._result(tokens, Propose(params.sampling, num_tokens), num_tokens))[0]
        return replace(proposal, duration_ms=(perf_counter() - start) * 1e3)

    async def verify_tokens(
        self, context: Context, open_ids: Sequence[int], proposal: Proposal, params: GenerationParams
    ) -> VerifiedTokens:
        if params.gate is not None:
            raise InvalidRequest("gate: the engine vllm verifies exactly; leave the gate at exact", "gate")
        context_ids = await self._context_ids(context)
        segmenter = segmenter_of(self.tokenizer, self._writer, context_ids, open_ids, proposal, params)
        tokens, proposal = [*context_ids, *open_ids], as_chain(proposal)
        drafted = proposal.token_ids[: segmenter.num_left]
        start = perf_counter()
        num_shared, distributions = shared_part(self.tokenizer, proposal)
        fed = drafted[:num_shared]
        is_first = not open_ids and ended_by_look_ahead(context, params.segmentation)
        request = Verify(drafted, len(fed), distributions[: len(drafted)], params.sampling, is_first)
        chosen, num_cached = await self._result([*tokens, *fed], request)
        num_taken = next((index for index, token in enumerate(chosen) if not segmenter.take(token)), len(chosen))
        is_foreign = bool(drafted) and proposal.tokenizer != self.tokenizer.info.tokenizer
        return VerifiedTokens(
            tuple(segmenter.segments),
            tuple(segmenter.open_ids),
            min(num_taken, len(chosen) - 1),
            (perf_counter() - start) * 1e3,
            segmenter.open_piece if is_foreign else None,
            num_cached_tokens=num_cached,
        )

    async def score_choices(
        self, context: Context, question: str, prefill: str, options: Sequence[str], session: str = ""
    ) -> ChoiceScores:
        tokens = await self._context_ids(context)
        tokens += self.tokenizer.question_ids(tokens, question, prefill)
        choice_ids = option_ids(self.tokenizer.raw, options)
        self.tokenizer.check_room(len(tokens), "context")
        start = perf_counter()
        scores: ChoiceScores = (await self._result(tokens, Choose(tuple(choice_ids))))[0]
        return replace(scores, duration_ms=(perf_counter() - start) * 1e3)

    async def aclose(self) -> None:
        if self._answering:
            self._answering.cancel()
        await self._core.close()

    async def _context_ids(self, context: Context) -> list[int]:
        return self.tokenizer.context_ids(await self._owned(context))

    def _notice(self, states: Sequence[States | None], projection: str) -> None:
        """A projection that is not held is looked for in the folder: which are held may change."""
        if any(one and one.projection != projection for one in states):
            self._projections = None

    async def _result(self, tokens: Sequence[int], request: Request, max_tokens: int = 1) -> tuple[Any, int | None]:
        async with aclosing(self._results(tokens, request, max_tokens)) as results:
            async for result in results:
                return result
        raise InternalError("vLLM ended a request without a result; see the service's log")

    async def _results(
        self, tokens: Sequence[int], request: Request, max_tokens: int
    ) -> AsyncGenerator[tuple[Any, int | None], None]:
        """The results of a request of these tokens, each with the number of tokens that vLLM had cached. Closing this
        generator ends the request in vLLM.

        Raises: Overloaded when there are too many calls, Unavailable when vLLM has ended.
        """
        if self._num_calls >= MAX_CALLS:
            raise Overloaded(f"{MAX_CALLS} calls are under way; retry later")
        self._num_calls += 1
        try:
            async with aclosing(
                self._core.outputs(list(tokens), _parameters(request, max_tokens), uuid4().hex)
            ) as outs:
                async for output in outs:
                    self.num_steps += 1
                    for wire in (output.kv_transfer_params or {}).get(KEY, ()):
                        yield result_from_wire(request.kind, wire), output.num_cached_tokens
        except asyncio.CancelledError:
            if self._answering is None:
                self._answering = asyncio.create_task(self._until_it_answers())
            raise
        finally:
            self._num_calls -= 1

    async def _until_it_answers(self) -> None:
        """A cancelled call brings no further outputs: whether vLLM hangs is seen by its answer to a question."""
        try:
            await self._core.ask("projections")
            self.num_steps += 1
        except Unavailable:  # the service ends
            pass
        finally:
            self._answering = None


def _parameters(request: Request, max_tokens: int) -> Any:
    """vLLM's sampling parameters: greedy among what `SeededSampling` leaves."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=True,  # a segment's end is fed, for its states
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=request_to_wire(request),
    )
