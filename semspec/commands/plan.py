"""`semspec plan`: the layouts in which a pair fits on GPUs over vLLM, and the settings of the first one that does. The
memory that vLLM took on an H100 (benchmarks/results/gpu-h100) is within 5% of these sums."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from semspec.engine.architecture import context_window
from semspec.engine.hub import look_up, safetensors_advice
from semspec.engine.settings import VllmOptions
from semspec.engine.vllm.options import token_bytes
from semspec.engine.vllm.recorder import LOGITS_ROWS, POOLED_ROWS
from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import HIDDEN_SIZES

USABLE = 0.98
"""Usable share of a GPU's nominal memory: the rest is hidden from programs, or taken before they start."""
GRAPH_BYTES = 4_020
"""Bytes of CUDA graphs that return all states, for each number of a token's states, with 64 requests. Computed from
3,760, measured for vLLM's own sizes: 1,390 tokens, those of decoding counted twice, where `graph_sizes` has 1,486."""
PROCESS_BYTES = 2_600_000_000
"""Memory of a process besides tensors: 1 GB at its start, later what its allocator keeps between reads."""
NCCL_BYTES = 1_000_000_000
"""Assumed memory of NCCL in each process of a model on several GPUs."""
VERIFIER_BYTES = 1_500_000_000
"""Assumed memory of a process with two probes."""


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a model, from its configuration."""

    name: str
    config: PretrainedConfig
    num_parameters: int
    num_table_parameters: int
    """Parameters of the embeddings and the output layer, which are not quantised at the start."""
    file_bytes: int
    """Bytes of the weights on disk or on the hub; 0 if there are none."""

    @property
    def state_size(self) -> int:
        return int((self.config.num_hidden_layers + 1) * self.config.hidden_size)

    def divided(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """Return the last of `gpus`, as many as tensor parallelism can divide this model over."""
        sizes = self.config.num_attention_heads, self.config.intermediate_size
        return tuple(
            gpus[-next(n for n in range(len(gpus), 0, -1) if not any(size % n for size in sizes)) :]
        )

    def weight_bytes(self, is_fp8: bool) -> int:
        if is_fp8:
            return self.num_parameters + self.num_table_parameters
        return self.file_bytes or 2 * self.num_parameters

    def token_bytes(self, tensor_parallel: int, is_fp8: bool) -> int:
        """Return the bytes of a token's keys and values on each of `tensor_parallel` GPUs."""
        return token_bytes(self.config, tensor_parallel, 1 if is_fp8 else 2)

    def fixed_bytes(self, tensor_parallel: int, is_fp8: bool, batched: int) -> int:
        """Return the bytes of everything else on each GPU; `batched`: tokens of a step."""
        mlp = 6 * self.config.intermediate_size // tensor_parallel
        activations = batched * (2 * self.state_size + mlp + 4 * self.config.hidden_size)
        pooled_and_graphs = self.state_size * (6 * POOLED_ROWS + 4 * HIDDEN_SIZES[0] + GRAPH_BYTES)
        logits = 12 * LOGITS_ROWS * self.config.vocab_size
        process = PROCESS_BYTES + (NCCL_BYTES if tensor_parallel > 1 else 0)
        return int(
            self.weight_bytes(is_fp8) // tensor_parallel
            + activations
            + pooled_and_graphs
            + logits
            + process
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """GPUs and precision of the target, with the draft on GPU 0, and the memory left for keys and values."""

    name: str
    target_gpus: tuple[int, ...]
    is_fp8: bool
    is_kv_fp8: bool
    draft_kv_bytes: int
    target_kv_bytes: int
    """Bytes on each of its GPUs; negative if the rest does not fit."""
    num_tokens: int
    """Tokens whose keys and values the target holds."""

    @property
    def precision(self) -> tuple[str, str]:
        return "fp8" if self.is_fp8 else "as it is", "fp8" if self.is_kv_fp8 else "bf16"


def read_model(name: str) -> Model:
    """Read a configuration; downloads nothing else. Raises: Mismatch."""
    if name.endswith(".gguf"):
        message = f"cannot plan for {name}: vLLM does not serve a GGUF file"
        raise Mismatch(
            message,
            remedy=f"{safetensors_advice(name)}, or serve it as it is on a CPU, without a plan",
        )
    file_bytes = look_up(name).weight_bytes
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(name, trust_remote_code=False)
        text = config.get_text_config()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(text)
        tables = {
            id(layer.weight): layer.weight.numel()
            for layer in (model.get_input_embeddings(), model.lm_head)
        }
        _ = text.intermediate_size, context_window(text)  # the sums need both
    except Exception as error:  # of transformers, which may also lack a package
        reason = " ".join(str(error).split())[:200]
        raise Mismatch(
            f"cannot plan for {name}: {reason}",
            remedy="give a language model of Qwen2's or Llama's kind",
        ) from error
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return Model(name, text, num_parameters, sum(tables.values()), file_bytes)


def layouts(
    draft: Model, target: Model, gpus: Sequence[int], context: int, sessions: int
) -> Iterator[Layout]:
    """Yield every layout, first those without quantisation. `gpus`: bytes of each GPU."""
    arrangements: dict[str, tuple[int, ...]] = {"together": (0,)}
    if len(gpus) > 1:
        arrangements = {
            "colocated": target.divided(range(len(gpus))),
            "separate": target.divided(range(1, len(gpus))),
        }
    batched = VllmOptions().max_num_batched_tokens
    draft_kv = sessions * context * draft.token_bytes(1, is_fp8=False)
    for is_fp8, is_kv_fp8, (name, target_gpus) in product(
        (False, True), (False, True), arrangements.items()
    ):
        taken = [draft.fixed_bytes(1, False, batched) + draft_kv + VERIFIER_BYTES] + [0] * (
            len(gpus) - 1
        )
        for gpu in target_gpus:
            taken[gpu] += target.fixed_bytes(len(target_gpus), is_fp8, batched)
        left = min(int(USABLE * gpus[gpu]) - taken[gpu] for gpu in target_gpus)
        if taken[0] > USABLE * gpus[0]:
            left = min(left, -1)
        num_tokens = max(0, left) // target.token_bytes(len(target_gpus), is_kv_fp8)
        yield Layout(name, target_gpus, is_fp8, is_kv_fp8, draft_kv, left, num_tokens)


def settings(layout: Layout, context: int) -> Iterator[str]:
    """Yield lines for a shell or for an environment file of compose."""
    chosen = VllmOptions(
        tensor_parallel_size=len(layout.target_gpus),
        quantization="fp8" if layout.is_fp8 else None,
        kv_cache_dtype="fp8" if layout.is_kv_fp8 else None,
    )
    for role, gpus, kv_bytes, engine in (
        ("DRAFT", (0,), layout.draft_kv_bytes, VllmOptions()),
        ("TARGET", layout.target_gpus, layout.target_kv_bytes, chosen),
    ):
        yield f"# {role.lower()}: CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}"
        yield f"SEMSPEC_{role}_ENGINE=vllm"
        yield f"SEMSPEC_{role}_DEVICE={'cuda' if len(gpus) > 1 else f'cuda:{gpus[0]}'}"
        yield f"SEMSPEC_{role}_MAX_CONTEXT_TOKENS={context}"
        yield f"SEMSPEC_{role}_KV_BYTES={kv_bytes}"
        if options := engine.model_dump(exclude_defaults=True):
            yield f"SEMSPEC_{role}_VLLM_OPTIONS='{json.dumps(options)}'"
    num_answers = layout.num_tokens // context
    yield f"# gateway: others wait where they hold nothing\nSEMSPEC_GATEWAY_MAX_CONCURRENT={num_answers}"


def run(arguments: argparse.Namespace) -> int:
    for field in ("gpus", "gpu_gib", "context", "sessions"):
        if getattr(arguments, field) < 1:
            raise InvalidRequest(f"--{field.replace('_', '-')}: give at least 1")
    draft, target = read_model(arguments.draft_model), read_model(arguments.target_model)
    context, sessions = arguments.context, arguments.sessions
    for model in (draft, target):
        if context > (window := context_window(model.config)):
            raise InvalidRequest(f"--context: the window of {model.name} has {window} tokens")
        weights = f"{model.weight_bytes(False) / 1e9:.1f} GB of weights"
        print(
            f"{model.name}: {weights}, {model.token_bytes(1, False):,} bytes of keys and values a token"
        )
    found = list(
        layouts(draft, target, [arguments.gpu_gib << 30] * arguments.gpus, context, sessions)
    )
    print(
        f"\n{'layout':<10} {'weights':<9} {'KV':<5} {'KV tokens':>10}  answers of {context:,} tokens at a time"
    )
    for layout in found:
        weights, kv = layout.precision
        print(
            f"{layout.name:<10} {weights:<9} {kv:<5} {layout.num_tokens:>10,}  {layout.num_tokens // context}"
        )
    chosen = next((layout for layout in found if layout.num_tokens >= sessions * context), None)
    if chosen is None:
        best = max(found, key=lambda layout: layout.num_tokens)
        raise Mismatch(
            f"{sessions} answers of {context:,} tokens do not fit; the most is {best.num_tokens // context} of them, "
            f"or {sessions} of {best.num_tokens // sessions:,} tokens ({best.name}, weights {best.precision[0]}, "
            f"KV {best.precision[1]})",
            remedy="give less --context or --sessions, or more GPUs",
        )
    if chosen.is_fp8 or chosen.is_kv_fp8:
        print(
            "\nFP8 changes the target's numbers: its fingerprint differs, and it needs its own probes."
        )
    print(
        f"\n# {chosen.name}, {sessions} answers of {context:,} tokens at a time",
        *settings(chosen, context),
        sep="\n",
    )
    return 0
