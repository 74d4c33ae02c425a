"""A Hugging Face causal LM as the engine sees it: token ids in; logits, keys/values and all layers' states out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from semspec.engine.checkpoint import eos_ids, load_tokenizer, model_info
from semspec.engine.decoder import Decoder, unsupported_reason
from semspec.engine.kv_cache import KV, BufferKV, DynamicKV
from semspec.engine.tensor_parallel.leader import LeadingDecoder, lead
from semspec.engine.tensor_parallel.share import checkpoint_folder
from semspec.engine.tensor_parallel.split import ALONE, Split
from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import Mismatch
from semspec.types import ModelInfo

EngineName = Literal["auto", "transformers", "fast"]
"""What runs the forward of one sequence: transformers, our decoder ("fast"), or our decoder where it can."""


@dataclass(frozen=True, slots=True)
class Forward:
    """What one forward yields."""

    logits: Tensor
    """`[num_kept_rows, vocab_size]`: of the last positions asked for."""
    states: Tensor
    """`[num_layers + 1, num_tokens, hidden_size]`: `states-v1` before pooling; empty unless asked for."""


class CausalLM:
    """Weights, tokenizer and the facts about both. Not thread-safe."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        info: ModelInfo,
        engine: EngineName = "auto",
        leading: LeadingDecoder | None = None,
    ) -> None:
        """`leading`: where `model` is rank 0's share of the weights, the forward of the whole."""
        self.model = model.eval().requires_grad_(False)
        self.info = info
        num_embeddings = int(model.get_input_embeddings().num_embeddings)
        self.tokenizer = ModelTokenizer(tokenizer, info, eos_ids(model.generation_config, tokenizer), num_embeddings)
        self._hooks = StateHooks(model)
        self._leading = leading
        self._decoder = leading or _decoder(self.model, info, engine)

    @classmethod
    def load(
        cls,
        name: str,
        revision: str | None,
        device: str,
        dtype: str,
        max_context_tokens: int | None = None,
        engine: EngineName = "auto",
        split: Split = ALONE,
    ) -> "CausalLM":
        """Load a checkpoint, a folder or of the hub: safetensors only, no remote code. `device`, `dtype` may be "auto".

        Raises: Mismatch when it cannot be served, with the remedy.
        """
        if Path(name).is_absolute() and not Path(name).is_dir():
            raise Mismatch(f"there is no folder {name}; give a checkpoint's folder or a hub id")
        split.check_engine(engine)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else "bfloat16"
        try:
            tokenizer = load_tokenizer(name, revision)
            model, leading = (
                (_whole(name, revision, device, dtype), None)
                if split.num_ranks == 1
                else lead(checkpoint_folder(name, revision), split, device, dtype, max_context_tokens)
            )
            info = model_info(name, revision, model.config, tokenizer, max_context_tokens)
        except (OSError, ValueError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:300]
            raise Mismatch(
                f"cannot load model {name!r}: {reason}; give a folder or hub id with safetensors weights"
            ) from error
        return cls(model, tokenizer, info, engine, leading)

    def close(self) -> None:
        """End the processes that hold the rest of the model, if others do."""
        if self._leading:
            self._leading.close()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def new_kv(self) -> KV:
        """Room for a new sequence, as `forward` wants it."""
        return self._decoder.new_kv() if self._decoder else DynamicKV()

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], kv: KV, num_rows: int = 1, want_states: bool = False) -> Forward:
        """Feed `tokens` after those already in `kv`, which came from `new_kv`; logits of the last `num_rows`
        positions."""
        if self._decoder and isinstance(kv, BufferKV):
            return Forward(*self._decoder.forward(tokens, kv, num_rows, want_states))
        if not isinstance(kv, DynamicKV):
            raise TypeError(f"{type(kv).__name__} was not made by this model's new_kv()")
        ids = torch.tensor([list(tokens)], device=self.device)
        batch = self.forward_batch(ids, kv.cache, num_rows, want_states)
        return Forward(batch.logits[0], batch.states[:, 0] if want_states else batch.states)

    @torch.inference_mode()
    def forward_batch(self, ids: Tensor, kv: DynamicCache, num_rows: int = 1, want_states: bool = False) -> Forward:
        """Feed `ids` `[batch, length]` after a `kv` of equally long rows, always by transformers. Results have a batch
        dimension, logits first, states second; a row may be padded on the right, where nothing before it looks.

        Raises: Mismatch for a model that is split over several processes.
        """
        if self._leading:
            raise Mismatch(f"{self.info.model} is split over several processes, which compute no batches")
        self._hooks.is_open = want_states
        output = self.model(input_ids=ids, past_key_values=kv, use_cache=True, logits_to_keep=num_rows)
        return Forward(output.logits, self._hooks.drain() if want_states else output.logits.new_empty(0))


def _whole(name: str, revision: str | None, device: str, dtype: str) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        name,
        revision=revision,
        dtype=getattr(torch, dtype),
        use_safetensors=True,
        trust_remote_code=False,  # left open, it would be asked for at the terminal
    )
    return model.to(device)


def _decoder(model: PreTrainedModel, info: ModelInfo, engine: EngineName) -> Decoder | None:
    """Our decoder of `model`, if it is wanted and can be had. Raises: Mismatch if only wanted."""
    if engine == "transformers":
        return None
    if reason := unsupported_reason(model):
        if engine == "fast":
            raise Mismatch(f"the fast engine cannot run {info.model}: {reason}; set the engine to auto or transformers")
        return None
    return Decoder(model, info.max_context_tokens)


class StateHooks:
    """Collects the input of the first block and the output of every block, while open."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.is_open = False
        self._caught: list[Tensor] = []
        blocks = _blocks(model)
        blocks[0].register_forward_pre_hook(self._catch_input, with_kwargs=True)
        for block in blocks:
            block.register_forward_hook(self._catch_output)

    def drain(self) -> Tensor:
        """`[num_layers + 1, batch, length, hidden_size]` of the last forward."""
        caught, self._caught, self.is_open = self._caught, [], False
        return torch.stack([layer.to(caught[-1].device) for layer in caught])

    def _catch_input(self, block: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        if self.is_open:
            self._caught = [args[0] if args else kwargs["hidden_states"]]

    def _catch_output(self, block: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
        if self.is_open:
            self._caught.append(output[0] if isinstance(output, tuple) else output)


def _blocks(model: PreTrainedModel) -> nn.ModuleList:
    num_layers = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return module
    raise Mismatch(f"{type(model).__name__} has no list of {num_layers} blocks; it cannot stream its hidden states")
