"""A decoder for Qwen2 and Llama models: one pass over the layers for the tokens of many sequences.

It computes what transformers computes, but with fused projections, keys and values written in place, and all states.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from semspec.engine.attention import Attend, Attention, runs
from semspec.engine.kv_cache import BufferKV, Chunk, Layout, Slabs
from semspec.engine.packed import PackedLayer, PackedLinear, ProjectionSlice

Outputs: TypeAlias = tuple[Tensor, Tensor]
"""Logits `[num_rows, vocab_size]` and states `[num_layers + 1, num_tokens, hidden_size]`."""

STATIC_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose frequencies do not change with the length of the sequence."""

LINEAR_MODULES = nn.Linear, PackedLinear, ProjectionSlice, nn.Identity
"""Types of projections in a model that the decoder can run, those in a `PackedLayer` included."""

LONG_STEP = 256
"""Tokens of a step above which several PyTorch threads pay off next to those of packed weights."""


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Return why the decoder cannot run this model exactly; None if it can."""
    if type(model) not in (Qwen2ForCausalLM, LlamaForCausalLM):
        return f"{type(model).__name__} is neither Qwen2ForCausalLM nor LlamaForCausalLM"
    config = model.config
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        return "it attends through a sliding window"
    if (rope := model.model.rotary_emb.rope_type) not in STATIC_ROPES:
        return f"its rotary embedding is {rope}, not one of {', '.join(sorted(STATIC_ROPES))}"
    for name, module in model.named_modules():
        is_linear = name.endswith(("_proj", "lm_head"))
        if is_linear and type(module) not in LINEAR_MODULES:  # quantised, or with an adapter
            return f"its {name} is {type(module).__name__}, not a plain Linear"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "its weights lie on several devices"
    return None


class _RMSNorm:
    """RMS norm of rows, for the norm weights of one model."""

    def __init__(self, weight: Tensor, eps: float, is_packed: bool) -> None:
        """`weight`: any norm weight of the model."""
        self.eps = eps
        self.cpu_eps = (
            torch.full((1, 1), eps) if _is_cpu_float32(weight) and not is_packed else None
        )
        self._ones = weight.new_ones(len(weight), 1)

    def __call__(self, hidden: Tensor, weight: Tensor) -> Tensor:
        num_tokens, hidden_size = hidden.shape
        if (eps := self.cpu_eps) is None:
            return F.rms_norm(hidden, (hidden_size,), weight, self.eps)
        if num_tokens == 1:  # half as many kernels, here and below
            mean_square = torch.addmm(eps, hidden, hidden.t(), alpha=1 / hidden_size)
        else:
            mean_square = torch.addmm(eps, hidden.square(), self._ones, alpha=1 / hidden_size)
        return (hidden * mean_square.rsqrt_()).mul_(weight)


class _Block:
    """A layer with floating-point weights; matrices are `[out, in]`."""

    def __init__(self, layer: Any, norm: _RMSNorm) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._norm = norm
        self._attention_norm: Tensor = layer.input_layernorm.weight
        self._mlp_norm: Tensor = layer.post_attention_layernorm.weight
        self._qkv, self._qkv_bias = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out, self._out_bias = _joined(attention.o_proj)
        self._gate_up, self._gate_up_bias = _joined(mlp.gate_proj, mlp.up_proj)
        self._down: Tensor = mlp.down_proj.weight
        self._down_bias: Tensor | None = mlp.down_proj.bias

    def qkv(self, hidden: Tensor) -> Tensor:
        """Return queries, keys and values, `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`."""
        return F.linear(self._norm(hidden, self._attention_norm), self._qkv, self._qkv_bias)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return the output of the layer from its input and its attention's output."""
        hidden = _added(hidden, attended, self._out, self._out_bias)
        normed = self._norm(hidden, self._mlp_norm)
        gate_up = F.linear(normed, self._gate_up, self._gate_up_bias)
        gate, up = gate_up.chunk(2, -1)  # [num_tokens, intermediate_size]
        return _added(hidden, F.silu(gate).mul_(up), self._down, self._down_bias)


def _joined(*projections: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Concatenate weights and biases of projections of one input.

    The modules keep views of the results, so they still work and no weight is stored twice.
    """
    weight = torch.cat([projection.weight.data for projection in projections])
    if _is_cpu_float32(weight):
        weight = weight.t().contiguous().t()  # column-major: up to twice as fast for one token
    has_bias = projections[0].bias is not None
    bias = torch.cat([projection.bias.data for projection in projections]) if has_bias else None
    start = 0
    for projection in projections:
        rows = slice(start, start + len(projection.weight))
        projection.weight.data, start = weight[rows], rows.stop
        if bias is not None:
            projection.bias.data = bias[rows]
    return weight, bias


def _is_cpu_float32(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype is torch.float32


class Decoder:
    """The forward pass of a Qwen2 or Llama model, whose weights it shares. Not thread-safe."""

    def __init__(self, model: PreTrainedModel, window: int) -> None:
        """`model`: has no `unsupported_reason`. `window`: expected maximum tokens of a sequence."""
        config, inner = model.config, model.model
        self._embed, self._head = inner.embed_tokens, model.lm_head
        self._is_packed = is_packed = isinstance(self._head, PackedLinear)
        self._num_threads = torch.get_num_threads()
        self._norm: Tensor = inner.norm.weight
        self._rms_norm = _RMSNorm(self._norm, config.rms_norm_eps, is_packed)
        self._blocks: list[_Block | PackedLayer] = [
            layer if is_packed else _Block(layer, self._rms_norm) for layer in inner.layers
        ]
        self._rotary = inner.rotary_emb
        self._head_dim = inner.layers[0].self_attn.head_dim
        self._num_heads, self._num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        # With packed weights, a row's result must not depend on the number of rows. In an attention kernel it does, in
        # the last bits; these may decide how an activation is rounded to eight bits. fp64 makes them irrelevant.
        self._dtype, kv_dtype = self._norm.dtype, torch.float64 if is_packed else self._norm.dtype
        device = self._norm.device
        self.layout = Layout(
            len(self._blocks), self._num_kv_heads, self._head_dim, kv_dtype, device, window
        )
        self._slabs = Slabs(self.layout)
        self._attention = Attention(self.layout, self._num_heads)
        self._cos, self._sin = self._rotations(0)

    def new_kv(self) -> BufferKV:
        return BufferKV(self._slabs)

    def forward(self, chunks: Sequence[Chunk[BufferKV]]) -> list[Outputs]:
        """Feed the tokens of all `chunks`, each of another sequence, in one pass, and return the outputs of each.

        States are empty unless wanted.
        """
        for chunk in chunks:
            chunk.kv.reserve(chunk.end)
        with self._torch_threads(sum(len(chunk.tokens) for chunk in chunks)):
            if len(chunks) == 1:
                return [self._forward_one(chunks[0])]
            return self._forward_many(chunks)

    @contextmanager
    def _torch_threads(self, num_tokens: int) -> Iterator[None]:
        """Let PyTorch compute a step of packed weights in one thread, unless the step is long.

        ONNX Runtime computes most of the step, in its own threads. PyTorch's other threads keep a core busy for
        a millisecond after each operation, which slows a token by a fifth on two cores.
        """
        if not self._is_packed:
            yield
            return
        num_threads = torch.get_num_threads()
        torch.set_num_threads(self._num_threads if num_tokens >= LONG_STEP else 1)
        try:
            yield
        finally:
            torch.set_num_threads(num_threads)

    def _forward_one(self, chunk: Chunk[BufferKV]) -> Outputs:
        """Feed one sequence, without the arrangement that several need: a third less time for a small draft."""
        kv, start, end = chunk.kv, chunk.kv.num_tokens, chunk.end
        self._prepare_rotations(end, kv.capacity)
        attend = self._attention.for_chunk(chunk)
        rotations = self._cos[start:end], self._sin[start:end]
        states = self._through_blocks(self._embedded(chunk.tokens), *rotations, attend)
        kv.num_tokens = end  # last, so that a failed forward pass leaves the sequence unchanged
        nothing = states[-1].new_empty(0)
        logits = self._logits(states[-1][-chunk.num_rows :]) if chunk.num_rows else nothing
        return logits, torch.stack(states) if chunk.want_states else nothing

    def _forward_many(self, chunks: Sequence[Chunk[BufferKV]]) -> list[Outputs]:
        ordered = runs(chunks)
        arranged = [chunk for run in ordered for chunk in run]
        self._prepare_rotations(
            max(chunk.end for chunk in chunks), max(chunk.kv.capacity for chunk in chunks)
        )
        positions = torch.tensor(
            [position for chunk in arranged for position in chunk.positions],
            device=self.layout.device,
        )
        hidden = self._embedded([token for chunk in arranged for token in chunk.tokens])
        attend = self._attention.for_runs(ordered)
        states = self._through_blocks(hidden, self._cos[positions], self._sin[positions], attend)
        outputs = self._outputs_of(arranged, states)
        for chunk in chunks:
            chunk.kv.num_tokens = chunk.end
        return [outputs[id(chunk)] for chunk in chunks]

    def _outputs_of(
        self, arranged: Sequence[Chunk[BufferKV]], states: list[Tensor]
    ) -> dict[int, Outputs]:
        """Return the outputs of each chunk, by the chunk's `id`."""
        logits = nothing = states[-1].new_empty(0)
        ends = list(accumulate(len(chunk.tokens) for chunk in arranged))
        rows = [
            row
            for chunk, end in zip(arranged, ends, strict=True)
            for row in range(end - chunk.num_rows, end)
        ]
        if rows:
            is_end = rows[0] == ends[-1] - len(rows)  # then a view is enough
            logits = self._logits(states[-1][rows[0] :] if is_end else states[-1][rows])
        stacked = torch.stack(states) if any(chunk.want_states for chunk in arranged) else nothing
        outputs, first = {}, 0
        for chunk, end in zip(arranged, ends, strict=True):
            part = stacked[:, end - len(chunk.tokens) : end] if chunk.want_states else nothing
            outputs[id(chunk)] = logits[first : first + chunk.num_rows], part
            first += chunk.num_rows
        return outputs

    def _embedded(self, tokens: Sequence[int]) -> Tensor:
        # A view avoids copying an index to the device.
        if len(tokens) == 1 and isinstance(self._embed, nn.Embedding):
            return self._embed.weight.narrow(0, tokens[0], 1)
        embedded: Tensor = self._embed(torch.tensor(tokens, device=self.layout.device))
        return embedded

    def _prepare_rotations(self, num_positions: int, capacity: int) -> None:
        if len(self._cos) < num_positions:
            self._cos, self._sin = self._rotations(capacity)

    def _rotations(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, `[num_positions, 1, head_dim]`; the sines of the first half are negated."""
        cos, sin = self._rotary(
            self._norm, torch.arange(num_positions, device=self.layout.device)[None]
        )
        sin[..., : self._head_dim // 2].neg_()
        return cos[0, :, None], sin[0, :, None]

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(self._rms_norm(hidden, self._norm))
        return logits

    def _through_blocks(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> list[Tensor]:
        """Return the input of the first block and the output of every block, `[num_tokens, hidden_size]` each."""
        states = [hidden]
        for index, block in enumerate(self._blocks):
            queries, keys_values = self._queries_keys_values(block.qkv(hidden), cos, sin)
            # [num_tokens, num_heads * head_dim]
            attended = attend(index, queries, keys_values).to(self._dtype)
            hidden = block.finish(hidden, attended)
            states.append(hidden)
        return states

    def _queries_keys_values(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated queries, and rotated keys with values; shapes: see `Attend`."""
        num_tokens = len(qkv)
        # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        heads = qkv.view(num_tokens, -1, self._head_dim)
        rotated = heads.narrow(1, 0, self._num_heads + self._num_kv_heads)
        halves_swapped = rotated.roll(self._head_dim // 2, -1)
        rotated.mul_(cos).addcmul_(halves_swapped, sin)
        heads = heads.to(self.layout.dtype)
        queries, keys_values = heads.split([self._num_heads, 2 * self._num_kv_heads], 1)
        return queries, keys_values.view(num_tokens, 2, self._num_kv_heads, self._head_dim)


def _added(hidden: Tensor, update: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `hidden` plus the projection of `update`."""
    projected = torch.addmm(hidden, update, weight.t())
    return projected if bias is None else projected + bias
