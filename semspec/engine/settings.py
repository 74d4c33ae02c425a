"""Settings of the services that run a language model."""

from typing import Literal, Self

from pydantic import DirectoryPath, Field, model_validator

from semspec.settings import ServiceSettings, SettingObject
from semspec.types import MIN_CONTEXT_TOKENS


class VllmOptions(SettingObject):
    """Fields of vLLM's `AsyncEngineArgs` that an operator sets. None runs code of a checkpoint, and none but
    `quantization` and `kv_cache_dtype`, which are part of the fingerprint, changes its numbers."""

    tensor_parallel_size: int = Field(1, ge=1, le=1024, description="GPUs that share each layer")
    quantization: str | None = Field(
        None,
        min_length=1,
        description="quantisation at the start, such as fp8; unset: as in the checkpoint",
    )
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the memory for all; unset: as kv_bytes says, where unset on a GPU 0.92",
    )
    kv_cache_dtype: Literal["fp8"] | None = Field(
        None, description="keys and values in FP8; unset: as computed"
    )
    max_num_batched_tokens: int = Field(
        2048,
        ge=32,
        le=1 << 20,
        description="tokens of a step, whose states take (layers + 1) x tokens x hidden size",
    )
    max_num_seqs: int = Field(64, ge=1, le=4096, description="requests of a step")
    enforce_eager: bool | None = Field(
        None, description="true: without CUDA graphs; unset: on a CPU alone"
    )
    distributed_executor_backend: Literal["mp", "ray"] | None = Field(
        None, description="how the processes of several GPUs are started; unset: as vLLM chooses"
    )


class ModelSettings(ServiceSettings):
    """Additional settings of the services that run a language model."""

    model: str = Field(
        min_length=1,
        description="model to serve: folder, GGUF file, Hugging Face id, or ID:FILE.gguf",
    )
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face model")
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "packed"] = Field(
        "auto",
        description="float32, bfloat16, float16, packed (on a CPU, the four and eight bits of a GGUF file), or auto: "
        "bfloat16 on a GPU, the fastest on a CPU, by a measurement at the start; small models in float32",
    )
    engine: Literal["auto", "transformers", "fast", "vllm"] = Field(
        "auto",
        description="fast (own decoder of Qwen2 and Llama), transformers (other causal LMs), vllm (many users, several "
        "GPUs, quantisation), or auto: vllm on the device cuda if it is installed, else fast if supported, else "
        "transformers",
    )
    cache_bytes: int = Field(
        1 << 30, ge=0, description="keys and values kept between calls (prefix cache), in bytes"
    )
    kv_bytes: int = Field(
        4 << 30,
        ge=0,
        description="keys and values of running calls and of the prefix cache, in bytes; beyond it, calls wait, or are "
        "evicted and computed again; vLLM's default on a CPU: at most 8 of the longest contexts",
    )
    pair: DirectoryPath | None = Field(
        None,
        description="folder of a release (pair.json and probes), or of several: the model must be that of one; the "
        "engine computes the first layers of their probes, so that it sends 256 numbers a segment instead of its "
        "states; it is read again when a call names a probe that it lacks; unset: none",
    )
    max_context_tokens: int | None = Field(
        None,
        ge=MIN_CONTEXT_TOKENS,
        description="cap on prompt and output together; unset: the model's context window",
    )
    vllm_options: VllmOptions = Field(
        VllmOptions(),
        description='with the engine vllm, options of vLLM as a JSON object, such as {"tensor_parallel_size": 2}; '
        "docs/settings.md has the keys",
    )

    @model_validator(mode="after")
    def _vllm_has_its_settings(self) -> Self:
        if self.engine != "vllm" and self.vllm_options != VllmOptions():
            raise ValueError(
                "vllm_options: only for the engine vllm; set engine=vllm, or unset them"
            )
        return self
