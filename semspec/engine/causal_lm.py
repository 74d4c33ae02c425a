"""A Hugging Face causal LM: from token ids to logits, keys and values, and hidden states of all layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from semspec.device import device_of
from semspec.engine.architecture import check_architecture
from semspec.engine.checkpoint import eos_ids, load_tokenizer, loading, model_info
from semspec.engine.decoder import Decoder, unsupported_reason
from semspec.engine.gguf import weights_file
from semspec.engine.gguf_model import gguf_outline, load_gguf
from semspec.engine.kv_cache import KV, BufferKV, Chunk, DynamicKV
from semspec.engine.numeric_form import Form, resolve_form
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.weights import check_weights, load_weights, safetensors_sizes
from semspec.errors import Mismatch

EngineName = Literal["auto", "transformers", "fast"]
"""Implementation of the forward pass: transformers, `Decoder` ("fast"), or "auto": `Decoder` if it can."""

Prefix: TypeAlias = list[tuple[Tensor, Tensor]]
"""Keys and values, in each layer, of a context that all rows of a batch share, `[1, kv_heads, tokens, head_size]`."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Result of one forward pass."""

    logits: Tensor
    """`[num_rows, vocab_size]`, for the last `num_rows` positions."""
    states: Tensor
    """`[num_layers + 1, num_tokens, hidden_size]`: `states-v1` before pooling; empty unless requested."""


class CausalLM:
    """A model's weights, tokenizer and metadata. Not thread-safe."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: ModelTokenizer,
        engine: EngineName = "auto",
        form: Form = "float32",
    ) -> None:
        """Raises: Mismatch when `engine` is "fast" and cannot run the model, or its states cannot be read."""
        self.model = model.eval().requires_grad_(False)
        self.tokenizer, self.form = tokenizer, form
        self.info = info = tokenizer.info
        self._hooks = StateHooks(model)
        reason = (
            "transformers was chosen" if engine == "transformers" else unsupported_reason(model)
        )
        if reason and engine == "fast":
            raise Mismatch(
                f"the fast engine cannot run {info.model}: {reason}",
                remedy="set the engine to auto or transformers",
            )
        self.decoder = None if reason else Decoder(model, info.max_context_tokens)
        """None if transformers computes the forward passes."""

    @classmethod
    def load(
        cls,
        name: str,
        revision: str | None,
        device: str,
        dtype: str,
        max_context_tokens: int | None = None,
        engine: EngineName = "auto",
        threads: int | None = None,
    ) -> "CausalLM":
        """Load a checkpoint from a folder, a GGUF file or the hub: no pickles, no remote code.

        `device` and `dtype` may be "auto"; on the device "meta", the model has shapes but no weights. `dtype`,
        `threads`: see `resolve_form`.

        Raises: Mismatch when it cannot be served, with the remedy.
        """
        with loading(name, revision) as folder:
            config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            check_architecture(name, config)
            raw = load_tokenizer(folder)
            form = resolve_form(name, folder, "cpu" if device == "meta" else device, dtype, threads)
            model = _model(name, folder, config, device, form)
            num_embeddings = int(model.get_input_embeddings().num_embeddings)
            info = model_info(name, folder, config, raw, max_context_tokens, form)
            tokenizer = ModelTokenizer(
                raw, info, eos_ids(folder, raw, num_embeddings), num_embeddings
            )
            return cls(model, tokenizer, engine, form)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def new_kv(self) -> KV:
        """Return an empty KV cache for a new sequence, for use with `forward`."""
        return self.decoder.new_kv() if self.decoder else DynamicKV()

    def forward(
        self, tokens: Sequence[int], kv: KV, num_rows: int = 1, want_states: bool = False
    ) -> Forward:
        """Feed `tokens` after those in `kv`, from `new_kv`. Return logits of the last `num_rows` positions."""
        return self.forward_step([Chunk(tokens, kv, num_rows, want_states)])[0]

    @torch.inference_mode()
    def forward_step(self, chunks: Sequence[Chunk[KV]]) -> list[Forward]:
        """Feed the tokens of all `chunks`, each of another sequence, and return the result of each.

        `Decoder` computes them in one pass, transformers one after another. After an error, the sequences are as before
        with `Decoder`, and empty with transformers.
        """
        if self.decoder and _are_buffered(chunks):
            return [Forward(*outputs) for outputs in self.decoder.forward(chunks)]
        try:
            return [self._forward_alone(chunk) for chunk in chunks]
        except Exception:
            for chunk in chunks:
                if isinstance(chunk.kv, DynamicKV):
                    chunk.kv.clear()  # some are fed, and one only in a part of its layers
            raise

    def _forward_alone(self, chunk: Chunk[KV]) -> Forward:
        if not isinstance(chunk.kv, DynamicKV):
            raise TypeError(f"{type(chunk.kv).__name__} was not made by this model's new_kv()")
        ids = torch.tensor([list(chunk.tokens)], device=self.device)
        batch = self.forward_batch(ids, chunk.kv.cache, max(1, chunk.num_rows), chunk.want_states)
        return Forward(
            batch.logits[0, : chunk.num_rows],
            batch.states[:, 0] if chunk.want_states else batch.states,
        )

    @torch.inference_mode()
    def forward_batch(
        self,
        ids: Tensor,
        kv: DynamicCache,
        num_rows: int | Tensor = 1,
        want_states: bool = False,
        prefix: Prefix | None = None,
    ) -> Forward:
        """Feed `ids` `[batch, length]` after a `kv` of equally long rows, always with transformers.

        With a `prefix`, `kv` holds the tokens after it, and the model uses `semspec.engine.batch.attention`.

        Logits are `[batch, num_rows, vocab_size]`, of the last positions, or of the positions in a tensor `num_rows`;
        states are `[num_layers + 1, batch, length, hidden_size]`. Rows may be padded on the right: causal attention
        ignores later positions.
        """
        self._hooks.is_open = want_states
        more = {}
        if prefix is not None:
            first = prefix[0][0].shape[2] + kv.get_seq_length()
            positions = torch.arange(first, first + ids.shape[1], device=ids.device)
            more = {"prefix": prefix, "position_ids": positions[None]}
        output = self.model(
            input_ids=ids, past_key_values=kv, use_cache=True, logits_to_keep=num_rows, **more
        )
        return Forward(
            output.logits, self._hooks.drain() if want_states else output.logits.new_empty(0)
        )


def _model(
    name: str, folder: str, config: PretrainedConfig, device: str, form: Form
) -> PreTrainedModel:
    file = weights_file(folder)
    if device == "meta":
        if file:
            return gguf_outline(name, file, config)
        with torch.device(device):
            outline: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, trust_remote_code=False
            )
        check_weights(name, safetensors_sizes(folder), outline)
        return outline
    if file:
        model = load_gguf(name, file, config, form)
    else:
        model = load_weights(AutoModelForCausalLM, name, folder, getattr(torch, form))
    return model.to(device_of(device, f"the model {name!r}"))


def _are_buffered(chunks: Sequence[Chunk[KV]]) -> TypeGuard[Sequence[Chunk[BufferKV]]]:
    return all(isinstance(chunk.kv, BufferKV) for chunk in chunks)


class StateHooks:
    """Forward hooks that collect the input of the first block and the output of every block, while `is_open`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.is_open = False
        self._collected: list[Tensor] = []
        blocks = _blocks(model)
        blocks[0].register_forward_pre_hook(self._collect_input, with_kwargs=True)
        for block in blocks:
            block.register_forward_hook(self._collect_output)

    def drain(self) -> Tensor:
        """Return the states of the last pass, `[num_layers + 1, batch, length, hidden_size]`, and close the hooks."""
        collected, self._collected, self.is_open = self._collected, [], False
        return torch.stack([layer.to(collected[-1].device) for layer in collected])

    def _collect_input(
        self, block: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
    ) -> None:
        if self.is_open:
            self._collected = [args[0] if args else kwargs["hidden_states"]]

    def _collect_output(
        self, block: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]
    ) -> None:
        if self.is_open:
            self._collected.append(output[0] if isinstance(output, tuple) else output)


def _blocks(model: PreTrainedModel) -> nn.ModuleList:
    """Return the blocks of the language model; `model` may have other parts. Raises: Mismatch if there are none."""
    num_layers = model.config.get_text_config().num_hidden_layers
    lists = [
        module for module in model.get_decoder().modules() if isinstance(module, nn.ModuleList)
    ]
    candidates = [modules for modules in lists if len(modules) == num_layers]
    if not candidates:
        kind = type(model).__name__
        raise Mismatch(
            f"{kind} has no list of {num_layers} blocks whose hidden states can be read",
            remedy="give another model",
        )
    return next(filter(_are_layers, candidates), candidates[0])


def _are_layers(modules: nn.ModuleList) -> bool:
    """Whether `modules` are transformers' layers; a few old models have other blocks."""
    return all(isinstance(module, GradientCheckpointingLayer) for module in modules)
