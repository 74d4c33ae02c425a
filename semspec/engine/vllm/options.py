"""Converts settings to vLLM's arguments, and refuses what vLLM cannot serve before anything is loaded."""

import hashlib
import importlib
import os
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, PretrainedConfig

from semspec.engine.architecture import rotary_embeddings
from semspec.engine.checkpoint import eos_ids, load_tokenizer, loading, model_info
from semspec.engine.gguf import is_gguf
from semspec.engine.hub import safetensors_advice
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.vllm.requests import KEY, MODEL, Model
from semspec.errors import Mismatch
from semspec.release import check_model
from semspec.types import ModelInfo, Writer

if TYPE_CHECKING:
    from semspec.engine.settings import ModelSettings, VllmOptions

VLLM_VERSIONS = ("0.32.", "0.33.")
"""The versions that `internals` supports. The first is in pyproject.toml, the image and the test environment."""

OTHER_ENGINE = "set the engine to fast or transformers"

CPU_HEAD_SIZES = frozenset({32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512})
"""Head sizes that the attention kernels of vLLM's CPU build support."""

NUM_LONGEST_CONTEXTS = 8
"""Contexts of maximum length that the default size of keys and values on a CPU holds: it is allocated at the start."""

CPU_BLOCK_SIZE = 32
"""Tokens of a block of the prefix cache on a CPU, the smallest size; on a GPU, vLLM's default applies."""

LARGE_GRAPHS = (128, 256, 512)
"""Tokens of CUDA graphs for steps in which several segments are scored. vLLM's own graphs end at twice `max_num_seqs`
tokens, at most at 512. They are few because each keeps its own copy of all states."""

ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Runs the model in the scheduler's process. A CPU build would replace the name "uni" by a separate process, to bind
threads to cores; here, the environment sets the number of threads."""


def check_installed() -> None:
    """Raises: Mismatch when vLLM is not installed, or in another version."""
    remedy = f"run `make setup TORCH_VARIANT=cuda`, or {OTHER_ENGINE}"
    try:
        found = version("vllm")
    except PackageNotFoundError as error:
        raise Mismatch("vLLM is not installed", remedy=remedy) from error
    if not found.startswith(VLLM_VERSIONS):
        raise Mismatch(
            f"vLLM {found} is not supported",
            remedy=f"install vllm=={VLLM_VERSIONS[0]}*, or {OTHER_ENGINE}",
        )
    try:
        importlib.import_module("vllm")
    except ImportError as error:
        raise Mismatch(f"vLLM cannot be imported: {error}", remedy=remedy) from error


def prepare_environment(threads: int, device: str = "auto") -> None:
    """Set vLLM's environment variables before it is imported, except defaults that are already set.

    With `device` cuda:N, vLLM only sees that GPU of the visible ones.
    """
    if index := device.partition(":")[2]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = (
            "".join(visible.split(",")[int(index) :][:1]) if visible else index
        )
    fixed = {
        "OMP_NUM_THREADS": str(threads),  # as in the other engines; a stack sets 1 for all services
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would copy gRPC's locks without its threads
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # for one more token, which is sampled last and never fed
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # not needed, and without its package the start would fail
    }
    defaults = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise draft and target would share the first cores
    }
    os.environ.update(
        fixed | {name: value for name, value in defaults.items() if name not in os.environ}
    )


def load_model(settings: "ModelSettings", writer: Writer) -> tuple[Model, ModelTokenizer]:
    """Return the model of `settings`, without its weights, and its tokenizer. Raises: Mismatch."""
    if is_gguf(settings.model):
        remedy = f"{safetensors_advice(settings.model)}, or {OTHER_ENGINE}"
        raise Mismatch(
            f"the engine vllm does not serve the GGUF file {settings.model}", remedy=remedy
        )
    with loading(settings.model, settings.revision) as folder:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        raw = load_tokenizer(folder)
        num_embeddings = int(config.get_text_config().vocab_size)
        ends = eos_ids(folder, raw, num_embeddings)
        _check_rotary_embeddings(settings.model, config)
        limits = [
            limit
            for limit in (settings.max_context_tokens, _short_window(config))
            if limit is not None
        ]
        info = model_info(settings.model, folder, config, raw, min(limits, default=None))
    _check_device(settings, config)
    kv_bytes = settings.kv_bytes
    if "kv_bytes" not in settings.model_fields_set:
        kv_bytes = min(kv_bytes, default_kv_bytes(config, info.max_context_tokens))
    info = replace(
        info, fingerprint=fingerprint(info, settings.vllm_options), max_cache_bytes=kv_bytes
    )
    check_model(settings, writer, info.fingerprint)
    probes = None if settings.pair is None else str(settings.pair.absolute())
    model = Model(folder, info, tuple(sorted(ends)), num_embeddings, writer, probes)
    return model, ModelTokenizer(raw, info, ends, num_embeddings)


def fingerprint(info: ModelInfo, options: "VllmOptions") -> str:
    """Return the fingerprint of a checkpoint as served with `options` that change its states."""
    values = {"quantization": options.quantization, "kv_cache_dtype": options.kv_cache_dtype}
    changes = "".join(f" {name}={value}" for name, value in values.items() if value is not None)
    if not changes:
        return info.fingerprint
    prefix, _, digest = info.fingerprint.partition(":")
    return f"{prefix}:{hashlib.sha256(f'{digest}{changes}'.encode()).hexdigest()[:16]}"


def engine_args(settings: "ModelSettings", model: Model) -> dict[str, Any]:
    """Return the arguments of vLLM's `AsyncEngineArgs`."""
    from vllm.platforms import current_platform

    options = settings.vllm_options
    is_cpu = bool(current_platform.is_cpu())
    dtype = settings.dtype if settings.dtype != "auto" else "float32" if is_cpu else "bfloat16"
    arguments: dict[str, Any] = {
        "model": model.folder,
        "load_format": "safetensors",  # covered by the fingerprint, as is config.json; other formats may be pickles
        "config_format": "hf",
        "dtype": dtype,
        "max_model_len": model.info.max_context_tokens + 1,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": settings.cache_bytes > 0,
        "async_scheduling": False,  # a segment must end before the next step
        "disable_log_stats": settings.metrics_port is None,
        "worker_cls": "semspec.engine.vllm.internals.SemspecWorker",
        "scheduler_cls": "semspec.engine.vllm.internals.SemspecScheduler",
        # It is also part of the cache key of compiled graphs, which must return all states.
        "additional_config": {KEY: MODEL.dump_python(model, mode="json")},
    }
    if options.gpu_memory_utilization is None and (
        is_cpu or "kv_bytes" in settings.model_fields_set
    ):
        arguments["kv_cache_memory_bytes"] = model.info.max_cache_bytes
        if (
            not is_cpu
        ):  # then only a minimum of free memory at the start, which another model may share
            arguments["gpu_memory_utilization"] = 0.01
    if is_cpu:
        arguments |= {"block_size": CPU_BLOCK_SIZE, "enforce_eager": True}
    elif not options.enforce_eager and (sizes := graph_sizes(options)):
        arguments["cudagraph_capture_sizes"] = sizes
    if options.tensor_parallel_size == 1:
        arguments["distributed_executor_backend"] = ONE_PROCESS
    return arguments | options.model_dump(exclude_none=True)


def graph_sizes(options: "VllmOptions") -> list[int]:
    """Return the numbers of tokens of a step that CUDA graphs are captured for: for decoding those of vLLM, in steps of
    8, then `LARGE_GRAPHS`. Empty where vLLM's own reach as far."""
    most = min(options.max_num_batched_tokens, LARGE_GRAPHS[-1])
    if 2 * options.max_num_seqs >= most:
        return []
    decoding = {1, 2, 4, *range(8, options.max_num_seqs, 8), options.max_num_seqs}
    return sorted(decoding | {size for size in LARGE_GRAPHS if size < most} | {most})


def default_kv_bytes(config: PretrainedConfig, max_context_tokens: int) -> int:
    """Return the default size of keys and values on a CPU, in fp32."""
    return (
        NUM_LONGEST_CONTEXTS
        * (max_context_tokens + CPU_BLOCK_SIZE)
        * token_bytes(config.get_text_config(), 1, 4)
    )


def token_bytes(config: PretrainedConfig, tensor_parallel: int, number_bytes: int) -> int:
    """Return the size of a token's keys and values on each of `tensor_parallel` GPUs."""
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    per_head = 2 * config.num_hidden_layers * head_size(config) * number_bytes
    return int(per_head * max(1, num_heads // tensor_parallel))


def head_size(config: PretrainedConfig) -> int:
    """Return the number of dimensions of an attention head."""
    return int(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )


def _check_rotary_embeddings(name: str, config: PretrainedConfig) -> None:
    """Raises: Mismatch when vLLM and transformers rotate tokens within the trained window in different ways."""
    if any(
        rotary["rope_type"] == "dynamic" and "alpha" not in rotary
        for rotary in rotary_embeddings(config)
    ):
        reason = "vLLM applies dynamic rotary scaling to short contexts as well"
        raise Mismatch(
            f"cannot load model {name!r}: {reason}", remedy="set the engine to transformers"
        )


def _short_window(config: PretrainedConfig) -> int | None:
    """Return the window in which vLLM uses the short factors of longrope, as transformers does; None without longrope.

    vLLM uses the long factors for all contexts if its window, which has one more token, exceeds the trained one.
    """
    trained = [
        int(rotary["original_max_position_embeddings"]) - 1
        for rotary in rotary_embeddings(config)
        if rotary["rope_type"] == "longrope"
    ]
    return min(trained, default=None)


def _check_device(settings: "ModelSettings", config: PretrainedConfig) -> None:
    """Raises: Mismatch when the installed vLLM cannot serve on the device of `settings`."""
    from vllm.platforms import current_platform

    is_cpu = bool(current_platform.is_cpu())
    if settings.device.partition(":")[0] not in ("auto", "cpu" if is_cpu else "cuda"):
        built_for = "a CPU" if is_cpu else "GPUs"
        raise Mismatch(
            f"device {settings.device}: this vLLM is built for {built_for}",
            remedy="set the device to auto",
        )
    if is_cpu and (size := head_size(config.get_text_config())) not in CPU_HEAD_SIZES:
        sizes = ", ".join(map(str, sorted(CPU_HEAD_SIZES)))
        raise Mismatch(
            f"vLLM's CPU build has no attention for heads of {size}, only {sizes}",
            remedy=OTHER_ENGINE,
        )
    if not is_cpu and not torch.cuda.is_available():
        raise Mismatch(
            "this vLLM is built for GPUs, and there is none",
            remedy=f"install vLLM's CPU build, or {OTHER_ENGINE}",
        )
