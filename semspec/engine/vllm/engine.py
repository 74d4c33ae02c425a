"""The engine over vLLM, which runs and batches the forward passes."""

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
from semspec.engine.vllm.process import VllmProcesses
from semspec.engine.vllm.requests import KEY, REQUEST, result_from_wire
from semspec.engine.worker import MAX_CALLS
from semspec.errors import Mismatch, Overloaded, Unavailable
from semspec.observability import adopt
from semspec.types import ModelInfo, States, Writer

if TYPE_CHECKING:
    from semspec.engine.settings import ModelSettings

EXIT_ENGINE_ENDED = 1
"""Exit code of a service whose vLLM ended."""

logger = logging.getLogger(__name__)


def end_service(reason: str) -> None:
    """End this process because its engine has ended. Clients use other replicas; the supervisor restarts this one."""
    logger.critical("cannot serve any longer: %s", reason)
    logging.shutdown()
    os._exit(EXIT_ENGINE_ENDED)


def load_vllm(
    settings: "ModelSettings", writer: Writer, ended: Callable[[str], None] = end_service
) -> "VllmEngine":
    """Start vLLM's processes with the model of `settings`.

    `ended` is called in a thread, with the reason, when they end unexpectedly.

    Raises: Mismatch when the model cannot be served.
    """
    prepare_environment(settings.threads or 1, settings.device)
    check_installed()
    adopt("vllm")
    model, tokenizer = load_model(settings, writer)
    if not any(Path(model.folder).glob("*.safetensors")):
        raise Mismatch(
            f"{settings.model} has no safetensors weights",
            remedy="convert the checkpoint to safetensors, the only format that is read",
        )
    processes = VllmProcesses.start(
        settings.model, lambda: async_llm(engine_args(settings, model)), ended
    )
    return VllmEngine(processes, tokenizer, writer)


def async_llm(arguments: dict[str, Any]) -> Any:
    """Start vLLM with the arguments of `AsyncEngineArgs`."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from semspec.engine.vllm.internals import keep_results

    keep_results()
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


class VllmEngine(LocalEngine):
    """Runs all calls as requests to vLLM's processes."""

    def __init__(self, processes: VllmProcesses, tokenizer: ModelTokenizer, writer: Writer) -> None:
        super().__init__(tokenizer, writer, tokenizer.info)
        self._processes = processes
        self._projections: tuple[str, ...] | None = None
        """Digests of the projections in vLLM's processes; None: not known, so they are asked for."""
        self._num_calls = 0
        self._probing: asyncio.Task[None] | None = None
        self.num_steps = 0
        """Outputs of vLLM so far: if it does not change while there is work, vLLM hangs."""

    @property
    def is_busy(self) -> bool:
        """Whether there are calls, or vLLM has not answered since one was cancelled."""
        return self._num_calls > 0 or self._probing is not None

    @property
    def steps(self) -> "VllmEngine":
        """The counter of steps, which is this engine."""
        return self

    async def info(self) -> ModelInfo:
        if self._projections is None:
            self._projections = tuple(await self._processes.ask("projections"))
        return replace(self._info, projections=self._projections or ())

    async def aclose(self) -> None:
        if self._probing:
            self._probing.cancel()
        await self._processes.close()
        if self._grammars:
            self._grammars.close()

    async def _results(
        self, tokens: list[int], request: Request, session: str
    ) -> AsyncGenerator[Result, None]:
        if self._num_calls >= MAX_CALLS:
            raise Overloaded(f"the engine already has {MAX_CALLS} calls", remedy="retry later")
        if isinstance(request, Generate) and request.params.grammar and self._grammars:
            grammar, owner = request.params.grammar, request.params.owner
            num_bytes = await self._grammars.size(grammar, owner)
            async with self._grammars.slot(owner):
                while not await self._processes.ask("is_compiled", grammar, num_bytes):
                    await asyncio.sleep(0.01)
        self._num_calls += 1
        start = perf_counter()
        parameters = _parameters(request, self._info.max_context_tokens - len(tokens))
        try:
            async with aclosing(
                self._processes.outputs(tokens, parameters, uuid4().hex)
            ) as outputs:
                async for output in outputs:
                    self.num_steps += 1
                    for message in (output.kv_transfer_params or {}).get(KEY, ()):
                        value, now = result_from_wire(request.kind, message), perf_counter()
                        self._check_projection(value, request)
                        yield Result(value, (now - start) * 1e3, output.num_cached_tokens)
                        start = now
        except asyncio.CancelledError:
            if self._probing is None:
                self._probing = asyncio.create_task(self._probe())
            raise
        finally:
            self._num_calls -= 1

    def _check_projection(self, value: Any, request: Request) -> None:
        """Forget the digests if states lack the projection that `request` names: it may be loaded from now on."""
        results = value if isinstance(value, list) else [value]
        projection = getattr(request, "projection", "")
        for result in results:
            states = getattr(result, "states", None)
            if isinstance(states, States) and states.projection != projection:
                self._projections = None

    async def _probe(self) -> None:
        """Count a step once vLLM answers a question. After a cancelled call, there is no output that shows progress."""
        try:
            await self._processes.ask("projections")
            self.num_steps += 1
        except Unavailable:  # the service ends
            pass
        finally:
            self._probing = None


def _parameters(request: Request, num_left: int) -> Any:
    """Return vLLM's sampling parameters: greedy, after `Recorder.draw`. `num_left`: tokens left in the window."""
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
        ignore_eos=True,  # end-of-sequence is fed, for the states of its segment
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={KEY: REQUEST.dump_python(request)},
    )
