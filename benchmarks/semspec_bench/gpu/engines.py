"""vLLM with our hooks and without them, over the bundled target or over a shape without weights."""

import asyncio
import importlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from transformers import Qwen2Config

from semspec.commands.plan import Model, read_model
from semspec.engine.selftest import self_test
from semspec.engine.settings import ModelSettings
from semspec.engine.vllm.engine import VllmEngine, async_llm
from semspec.engine.vllm.options import (
    check_installed,
    engine_args,
    load_model,
    prepare_environment,
)
from semspec.engine.vllm.process import VllmProcesses
from semspec.errors import Mismatch
from semspec.stack.config import BUNDLED_PAIR
from semspec.types import Writer
from semspec_bench.gpu.record import Facts, Results, without_secrets
from semspec_bench.gpu.shapes import Shape

TARGET = BUNDLED_PAIR / "target"
HOOKS = ("worker_cls", "scheduler_cls", "additional_config")
"""Arguments by which vLLM is our engine."""
CPU_KV_BYTES = 256 << 20
GPU_THREADS = 4
PLANNED_BAR = 0.05
"""Largest relative difference between what is planned and what is measured."""
_numbers = count()


def config_of(shape: Shape, window: int) -> Qwen2Config:
    return Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=window,
        rope_parameters={"rope_theta": shape.rope_theta, "rope_type": "default"},
        tie_word_embeddings=False,
        eos_token_id=shape.vocab_size - 1,
    )


@contextmanager
def checkpoint(shape: Shape, window: int) -> Iterator[Path]:
    """A folder with the shape's configuration and the bundled tokenizer, without weights."""
    with tempfile.TemporaryDirectory(prefix="semspec-shape-") as name:
        config_of(shape, window).save_pretrained(name)
        for file in TARGET.glob("tokenizer*.json"):
            shutil.copy(file, name)
        yield Path(name)


class MeasuredVllm:
    """A running vLLM with these arguments of `AsyncEngineArgs`; `seconds`: duration of its start after the import."""

    def __init__(self, arguments: Facts, settings: ModelSettings) -> None:
        self._settings = settings
        importlib.import_module("vllm.v1.engine.async_llm")  # not part of the time

        def start() -> Any:
            self.llm = async_llm(arguments)
            return self.llm

        begin = perf_counter()
        self.core = VllmProcesses.start(
            arguments["model"], start, lambda why: print(why, flush=True)
        )
        self.seconds = round(perf_counter() - begin, 1)

    async def facts(self, has_hooks: bool = True) -> Facts:
        config = self.llm.vllm_config
        measured = await self.core.ask("measured") if has_hooks else {}
        return measured | {
            "seconds_to_ready": self.seconds,
            "runner": "V2" if getattr(config, "use_v2_model_runner", False) else "V1",
            "cuda_graphs": str(config.compilation_config.cudagraph_mode),
            "kv_tokens": config.cache_config.num_gpu_blocks * config.cache_config.block_size,
        }

    async def check(self, results: Results, engine: VllmEngine) -> None:
        """Record the result of a service's self-test."""
        try:
            message, holds = await self_test(engine, self._settings), True
        except Mismatch as error:
            message, holds = str(error), False
        results.row("self-test", said=without_secrets(message), holds=holds)

    async def compare(self, results: Results) -> None:
        """Record the memory that `semspec plan` computes for this engine next to the memory that it takes."""
        options, model = self._settings.vllm_options, read_model(self._settings.model)
        found = memory(
            model, await self.facts(), options.tensor_parallel_size, options.max_num_batched_tokens
        )
        for quantity, planned, measured in found:
            error = abs(measured / planned - 1)
            results.row(
                f"planned, {quantity}",
                planned=planned,
                measured=measured,
                holds=error <= PLANNED_BAR,
            )

    async def write(self, tokens: Sequence[int], length: int, seed: int, temperature: float) -> int:
        """Generate without our hooks; return the number of tokens written."""
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=temperature,
            top_p=0.95,
            seed=seed,
            max_tokens=length,
            ignore_eos=True,
            detokenize=False,
        )
        outputs = self.core.outputs(list(tokens), sampling, f"plain-{next(_numbers)}")
        return max([len(output.outputs[0].token_ids) async for output in outputs])


def memory(
    model: Model, facts: Facts, num_gpus: int, batched: int
) -> Iterator[tuple[str, int, int]]:
    """Yield quantity, planned and measured bytes of each GPU; on a CPU (in fp32), keys and values alone."""
    width = 1 if "used_bytes" in facts else 2
    kept_bytes = width * model.token_bytes(num_gpus, is_fp8=False) * facts["kv_tokens"]
    yield "keys and values", kept_bytes, facts["kv_bytes"]
    if "used_bytes" in facts:
        yield "weights", model.weight_bytes(is_fp8=False) // num_gpus, facts["weights_bytes"]
        yield (
            "all of a GPU",
            model.fixed_bytes(num_gpus, False, batched) + kept_bytes,
            facts["used_bytes"],
        )


@asynccontextmanager
async def start_vllm(
    device: str, settings: Facts, extra: Facts, has_hooks: bool = True
) -> AsyncIterator[tuple[MeasuredVllm, VllmEngine]]:
    """Start vLLM and our engine over it. `settings`: fields of `ModelSettings`; `extra`: fields of `AsyncEngineArgs`.
    Without hooks only `MeasuredVllm` works."""
    defaults = {
        "engine": "vllm",
        "threads": GPU_THREADS if device == "cuda" else 1,
        "kv_bytes": CPU_KV_BYTES,
    }
    if device == "cpu":
        options = settings["vllm_options"]
        defaults["vllm_options"] = {
            name: options[name] for name in options if name != "gpu_memory_utilization"
        }
    chosen = ModelSettings.model_validate(settings | defaults)
    prepare_environment(chosen.threads or 1)
    check_installed()
    described, tokenizer = load_model(chosen, Writer.TARGET)
    arguments = (
        engine_args(chosen, described)
        | extra
        | {"worker_cls": "semspec_bench.gpu.worker.MeasuredWorker"}
    )
    if not has_hooks:
        arguments = {name: value for name, value in arguments.items() if name not in HOOKS}
    llm = await asyncio.to_thread(MeasuredVllm, arguments, chosen)
    try:
        yield llm, VllmEngine(llm.core, tokenizer, Writer.TARGET)
    finally:
        await llm.core.close()
