"""Our engine over vLLM: what a call does is ours, forward passes and their batches are vLLM's."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semspec.engine.local import LocalEngine
from semspec.engine.requests import Generate, Propose, Request, Result
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.vllm.options import (
    check_installed,
    engine_args,
    load_model,
    prepare_environment,
)
from semspec.engine.vllm.process import Core
from semspec.engine.vllm.requests import KEY, REQUEST, result_from_wire
from semspec.engine.worker import MAX_CALLS
from semspec.errors import Mismatch, Overloaded, Unavailable
from semspec.observability import adopt
from semspec.types import ModelInfo, Writer

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


def load_vllm(
    settings: "ModelSettings", writer: Writer, ended: Callable[[str], None] = end_service
) -> "VllmEngine":
    """Start vLLM's processes with the model of `settings`. `ended` is called with the reason, in a thread, when they
    end by themselves. Raises: Mismatch when the model cannot be served."""
    prepare_environment(settings.threads or 1, settings.device)
    check_installed()
    adopt("vllm")
    model, tokenizer = load_model(settings, writer)
    if not any(Path(model.folder).glob("*.safetensors")):
        raise Mismatch(
            f"{settings.model} has no safetensors weights",
            remedy="convert the checkpoint: no others are read",
        )
    core = Core.start(settings.model, lambda: async_llm(engine_args(settings, model)), ended)
    return VllmEngine(core, tokenizer, writer)


def async_llm(arguments: dict[str, Any]) -> Any:
    """Start vLLM with these arguments of `AsyncEngineArgs`."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from semspec.engine.vllm.internals import keep_results

    keep_results()
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


class VllmEngine(LocalEngine):
    """Has vLLM's processes make the steps of all calls."""

    def __init__(self, core: Core, tokenizer: ModelTokenizer, writer: Writer) -> None:
        super().__init__(tokenizer, writer, tokenizer.info)
        self._core = core
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
        return replace(self._info, projections=self._projections or ())

    async def read_probes(self) -> None:
        self._projections = tuple(await self._core.ask("read_probes"))

    async def aclose(self) -> None:
        if self._answering:
            self._answering.cancel()
        await self._core.close()
        if self._grammars:
            self._grammars.close()

    async def _results(
        self, tokens: list[int], request: Request, session: str
    ) -> AsyncGenerator[Result, None]:
        if self._num_calls >= MAX_CALLS:
            raise Overloaded(f"{MAX_CALLS} calls are under way", remedy="retry later")
        if isinstance(request, Generate) and request.params.grammar and self._grammars:
            grammar, owner = request.params.grammar, request.params.owner
            num_bytes = await self._grammars.size(grammar, owner)
            async with self._grammars.turn(owner):
                while not await self._core.ask("is_compiled", grammar, num_bytes):
                    await asyncio.sleep(0.01)
        self._num_calls += 1
        start = perf_counter()
        parameters = _parameters(request, self._info.max_context_tokens - len(tokens))
        try:
            async with aclosing(self._core.outputs(tokens, parameters, uuid4().hex)) as outputs:
                async for output in outputs:
                    self.num_steps += 1
                    for wire in (output.kv_transfer_params or {}).get(KEY, ()):
                        value, now = result_from_wire(request.kind, wire), perf_counter()
                        self._notice(value, request)
                        yield Result(value, (now - start) * 1e3, output.num_cached_tokens)
                        start = now
        except asyncio.CancelledError:
            if self._answering is None:
                self._answering = asyncio.create_task(self._until_it_answers())
            raise
        finally:
            self._num_calls -= 1

    def _notice(self, value: Any, request: Request) -> None:
        """A projection that is not held is looked for in the folder: which are held may change."""
        states = [
            one.states
            for one in (value if isinstance(value, list) else [value])
            if hasattr(one, "states")
        ]
        if any(one and one.projection != getattr(request, "projection", "") for one in states):
            self._projections = None

    async def _until_it_answers(self) -> None:
        """A cancelled call brings no further outputs: whether vLLM hangs is seen by its answer to a question."""
        try:
            await self._core.ask("projections")
            self.num_steps += 1
        except Unavailable:  # the service ends
            pass
        finally:
            self._answering = None


def _parameters(request: Request, num_left: int) -> Any:
    """vLLM's sampling parameters: greedy among what `SeededSampling` leaves. `num_left`: tokens in the window."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    max_tokens = 1
    if isinstance(request, Generate):
        max_tokens += min(request.params.max_tokens, num_left)
    elif isinstance(request, Propose):
        max_tokens = request.num_tokens
    return SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=True,  # a segment's end is fed, for its states
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={KEY: REQUEST.dump_python(request)},
    )
