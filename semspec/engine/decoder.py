"""A decoder for Qwen2 and Llama models, one sequence at a time: the results of transformers with less overhead.

It fuses projections, writes keys and values in place, and returns the hidden states of all layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from semspec.engine.cuda_graph import GraphedSteps, Outputs, Step
from semspec.engine.kv_cache import BufferKV, Layout

STATIC_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose frequencies do not change with the length of the sequence."""

Attend: TypeAlias = Callable[[int, Tensor, Tensor], Tensor]
"""Layer number, queries `[num_tokens, num_heads, head_dim]`, new keys and values `[num_tokens, 2, num_kv_heads,
head_dim]` -> `[num_tokens, num_heads * head_dim]`. Also stores the keys and values."""


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why the decoder cannot run this model exactly; None if it can."""
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
        if name.endswith(("_proj", "lm_head")) and type(module) is not nn.Linear:  # quantised, or with an adapter
            return f"its {name} is {type(module).__name__}, not a plain Linear"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "its weights lie on several devices"
    return None


@dataclass(frozen=True, slots=True)
class _Block:
    """The weights of a layer, matrices `[out, in]`."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    attention_out: Tensor
    attention_out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    @classmethod
    def of(cls, layer: Any) -> "_Block":
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            layer.input_layernorm.weight,
            _joined([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
            _joined([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias]),
            _joined([attention.o_proj.weight]),
            attention.o_proj.bias,
            layer.post_attention_layernorm.weight,
            _joined([mlp.gate_proj.weight, mlp.up_proj.weight]),
            _joined([mlp.gate_proj.bias, mlp.up_proj.bias]),
            _joined([mlp.down_proj.weight]),
            mlp.down_proj.bias,
        )


@overload
def _joined(parameters: Sequence[nn.Parameter]) -> Tensor: ...
@overload
def _joined(parameters: Sequence[nn.Parameter | None]) -> Tensor | None: ...
def _joined(parameters: Sequence[nn.Parameter | None]) -> Tensor | None:
    """Concatenated weights of several projections of one input. The modules keep views of the result, so they still
    work and no weight is stored twice."""
    present = [parameter for parameter in parameters if parameter is not None]
    if not present:
        return None
    joined = torch.cat([parameter.data for parameter in present])
    if joined.dim() == 2 and _is_cpu_float32(joined):
        joined = joined.t().contiguous().t()  # column-major: up to twice as fast for one token
    for parameter, part in zip(present, joined.split([len(parameter) for parameter in present]), strict=True):
        parameter.data = part
    return joined


def _is_cpu_float32(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype is torch.float32


class Decoder:
    """The forward pass of a Qwen2 or Llama model, with shared weights. Not thread-safe."""

    def __init__(self, model: PreTrainedModel, window: int) -> None:
        """`model`: one without `unsupported_reason`. `window`: expected maximum tokens of a sequence."""
        config, inner, attention = model.config, model.model, model.model.layers[0].self_attn
        self._blocks = [_Block.of(layer) for layer in inner.layers]
        self._embedding: Tensor = inner.embed_tokens.weight
        self._head: Tensor = model.lm_head.weight
        self._norm, self._eps = inner.norm.weight, config.rms_norm_eps
        self._rotary = inner.rotary_emb
        self._head_dim = attention.head_dim
        self._num_heads, self._num_kv_heads = (
            len(projection.weight) // self._head_dim for projection in (attention.q_proj, attention.k_proj)
        )
        dtype, device = self._embedding.dtype, self._embedding.device
        self.layout = Layout(len(self._blocks), self._num_kv_heads, self._head_dim, dtype, device, window)
        self._cpu_eps = torch.full((1, 1), self._eps) if _is_cpu_float32(self._embedding) else None
        self._cos, self._sin = self._rotations(0)
        self._graphs = GraphedSteps(self.layout, self.static_step) if device.type == "cuda" else None

    def new_kv(self) -> BufferKV:
        return BufferKV(self.layout)

    def forward(self, tokens: Sequence[int], kv: BufferKV, num_rows: int = 1, want_states: bool = False) -> Outputs:
        """Feed `tokens` after those in `kv`. Returns logits `[num_rows, vocab_size]` of the last positions, and states
        `[num_layers + 1, num_tokens, hidden_size]`, empty unless `want_states`."""
        kv.reserve(kv.num_tokens + len(tokens))
        graphed = self._graphs.forward(tokens[0], kv, want_states) if self._graphs and len(tokens) == 1 else None
        return graphed or self._eager_forward(tokens, kv, num_rows, want_states)

    def _eager_forward(self, tokens: Sequence[int], kv: BufferKV, num_rows: int, want_states: bool) -> Outputs:
        states = self._fed(tokens, kv)
        logits = self._logits(states[-1][-num_rows:])
        return logits, torch.stack(states) if want_states else logits.new_empty(0)

    def _fed(self, tokens: Sequence[int], kv: BufferKV) -> list[Tensor]:
        start, end = kv.num_tokens, kv.num_tokens + len(tokens)
        if len(self._cos) < end:
            self._cos, self._sin = self._rotations(kv.capacity)
        cos, sin = self._cos[start:end], self._sin[start:end]
        states = self._through_blocks(self._embedded(tokens), cos, sin, self._attend_in_place(kv, start, end))
        kv.num_tokens = end  # last, so that a failed forward pass leaves `kv` unchanged
        return states

    def static_step(self, buffer: Tensor) -> Step:
        """The forward pass of one token with the same shapes at every position, for capture in a CUDA graph.

        `buffer`: see `Layout.shape`; all its values must be finite, and the positions before the token must hold the
        keys and values of the previous tokens.
        """
        positions = torch.arange(buffer.shape[4], device=buffer.device)
        cos, sin = self._rotations(len(positions))

        def step(token: Tensor, position: Tensor) -> Outputs:
            mask = (positions <= position)[None, None, None]

            def attend(index: int, queries: Tensor, keys_values: Tensor) -> Tensor:
                layer = buffer[index]
                layer.index_copy_(3, position, keys_values.view(2, 1, self._num_kv_heads, 1, self._head_dim))
                return self._attention(queries, layer[0], layer[1], mask)

            states = self._through_blocks(self._embedding[token], cos[position], sin[position], attend)
            return self._logits(states[-1]), torch.stack(states)

        return step

    def _embedded(self, tokens: Sequence[int]) -> Tensor:
        if len(tokens) == 1:  # a view avoids copying an index to the device
            return self._embedding.narrow(0, tokens[0], 1)
        return F.embedding(torch.tensor(tokens, device=self.layout.device), self._embedding)

    def _rotations(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[num_positions, 1, head_dim]`; the sines of the first half are negated."""
        positions = torch.arange(num_positions, device=self._embedding.device)[None]
        cos, sin = self._rotary(self._embedding, positions)
        sin[..., : self._head_dim // 2].neg_()
        return cos[0, :, None], sin[0, :, None]

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(self._normed(hidden, self._norm), self._head)

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        num_tokens, hidden_size = hidden.shape
        if num_tokens > 1 or self._cpu_eps is None:
            return F.rms_norm(hidden, (hidden_size,), weight, self._eps)
        mean_square = torch.addmm(self._cpu_eps, hidden, hidden.t(), alpha=1 / hidden_size)  # half as many kernels
        return (hidden * mean_square.rsqrt_()).mul_(weight)

    def _through_blocks(self, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> list[Tensor]:
        """The input of the first block and the output of every block, `[num_tokens, hidden_size]` each."""
        states = [hidden]
        for index, block in enumerate(self._blocks):
            queries, keys_values = self._queries_keys_values(block, hidden, cos, sin)
            attended = attend(index, queries, keys_values)
            hidden = _added(hidden, attended, block.attention_out, block.attention_out_bias)
            gate_up = F.linear(self._normed(hidden, block.mlp_norm), block.gate_up, block.gate_up_bias)
            gate, up = gate_up.chunk(2, -1)
            hidden = _added(hidden, F.silu(gate).mul_(up), block.down, block.down_bias)
            states.append(hidden)
        return states

    def _queries_keys_values(self, block: _Block, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries, and rotated keys with values; shapes: see `Attend`."""
        num_tokens = hidden.shape[0]
        qkv = F.linear(self._normed(hidden, block.attention_norm), block.qkv, block.qkv_bias)
        heads = qkv.view(num_tokens, -1, self._head_dim)
        rotated = heads.narrow(1, 0, self._num_heads + self._num_kv_heads)
        halves_swapped = rotated.roll(self._head_dim // 2, -1)
        rotated.mul_(cos).addcmul_(halves_swapped, sin)
        queries, keys_values = heads.split([self._num_heads, 2 * self._num_kv_heads], 1)
        return queries, keys_values.view(num_tokens, 2, self._num_kv_heads, self._head_dim)

    def _attend_in_place(self, kv: BufferKV, start: int, end: int) -> Attend:
        """Causal attention of tokens `start` to `end`."""
        past_and_own = kv.stretch(0, end).flatten(0, 1).unbind()
        own = kv.stretch(start, end).squeeze(2).unbind()
        mask = self._causal_mask(start, end) if start and end - start > 1 else None

        def attend(index: int, queries: Tensor, keys_values: Tensor) -> Tensor:
            own[index].copy_(keys_values.permute(1, 2, 0, 3))
            keys, values = past_and_own[2 * index : 2 * index + 2]
            if start == 0 and end > 1:
                return _causal_attention(queries, keys, values)
            return self._attention(queries, keys, values, mask)

        return attend

    def _causal_mask(self, start: int, end: int) -> Tensor:
        """Mask to add to the attention scores of tokens `start` to `end`: `[group_size * num_tokens, end]`."""
        mask = torch.full((end - start, end), float("-inf"), dtype=self.layout.dtype, device=self.layout.device)
        return mask.triu_(start + 1).repeat(self._num_heads // self._num_kv_heads, 1)

    def _attention(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention. Query heads that share a key head become rows of one head, so keys are not repeated."""
        num_tokens, num_groups = queries.shape[0], self._num_kv_heads
        if num_tokens == 1:
            rows = queries.view(1, num_groups, -1, self._head_dim)
            return F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask).flatten(1)
        rows = queries.unflatten(1, (num_groups, -1)).permute(1, 2, 0, 3).flatten(1, 2)[None]
        attended = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
        return attended.reshape(num_groups, -1, num_tokens, self._head_dim).permute(2, 0, 1, 3).flatten(1)


def _added(hidden: Tensor, update: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`hidden` plus the projection of `update`."""
    projected = torch.addmm(hidden, update, weight.t())
    return projected if bias is None else projected + bias


def _causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    rows = queries.transpose(0, 1)[None]
    attended = F.scaled_dot_product_attention(rows, keys, values, is_causal=True, enable_gqa=True)
    return attended[0].transpose(0, 1).flatten(1)
