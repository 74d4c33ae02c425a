"""Rank 0: the forward of the whole model, for which it has the other ranks do their shares."""

import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from transformers import PreTrainedModel

from semspec.engine.cuda_graph import Outputs
from semspec.engine.decoder import Decoder
from semspec.engine.kv_cache import BufferKV, Layout
from semspec.engine.tensor_parallel import group
from semspec.engine.tensor_parallel.orders import Copy, Forward
from semspec.engine.tensor_parallel.share import Share, empty_model, fill
from semspec.engine.tensor_parallel.split import Split
from semspec.engine.tensor_parallel.workers import Workers


class SharedKV(BufferKV):
    """Keys and values of rank 0's heads; the other ranks keep those of theirs under the same number."""

    def __init__(self, layout: Layout, workers: Workers) -> None:
        super().__init__(layout)
        self._workers = workers
        self.sequence = workers.new_sequence()
        weakref.finalize(self, workers.forget, self.sequence).atexit = False

    @property
    def nbytes(self) -> int:
        """Of all ranks together."""
        return super().nbytes * self._workers.num_ranks

    def new(self) -> Self:
        return type(self)(self._layout, self._workers)

    def copy(self, num_tokens: int) -> Self:
        twin = super().copy(num_tokens)
        self._workers.give(Copy(self.sequence, twin.sequence, num_tokens))
        return twin


class LeadingDecoder(Decoder):
    """A decoder whose forwards the workers go through as well. It alone has a head: states and logits are whole."""

    def __init__(self, model: PreTrainedModel, window: int, workers: Workers) -> None:
        """`model`: rank 0's share."""
        super().__init__(model, window, workers.join(str(model.device)))
        self._workers = workers

    def new_kv(self) -> SharedKV:
        return SharedKV(self.layout, self._workers)

    def forward(self, tokens: Sequence[int], kv: BufferKV, num_rows: int = 1, want_states: bool = False) -> Outputs:
        """See `Decoder.forward`. What may fail on this rank alone is done before the others hear of it."""
        if not isinstance(kv, SharedKV):
            raise TypeError(f"{type(kv).__name__} was not made by this decoder's new_kv()")
        if not 0 <= min(tokens) <= max(tokens) < len(self._embedding):
            raise IndexError(f"token ids go from 0 to {len(self._embedding) - 1}")
        kv.reserve(kv.num_tokens + len(tokens))
        with self._workers.in_step():
            self._workers.give(Forward(kv.sequence, kv.num_tokens, tokens))
            return super().forward(tokens, kv, num_rows, want_states)

    def close(self) -> None:
        """End the other ranks."""
        self._workers.close()


def lead(
    folder: Path, split: Split, device: str, dtype: str, max_context_tokens: int | None
) -> tuple[PreTrainedModel, LeadingDecoder]:
    """Load a checkpoint over all ranks: rank 0's share of it, and the forward of the whole.

    Raises: Mismatch when it cannot be split so.
    """
    devices = split.devices(device)
    model = empty_model(folder, getattr(torch, dtype))
    split.check(model, folder.name)
    window = min(model.config.max_position_embeddings, max_context_tokens or sys.maxsize)
    group.check_vacant()
    workers = Workers(folder, devices, dtype, window)
    try:
        fill(model, folder, Share(0, split.num_ranks), torch.device(devices[0]))
        return model, LeadingDecoder(model, window, workers)
    except BaseException:
        workers.close()
        raise
