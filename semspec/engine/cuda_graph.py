"""CUDA graphs for the forward pass of one token of each sequence: one launch instead of hundreds."""

import functools
import itertools
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from semspec.engine.kv_cache import BufferKV, Layout

MAX_TOKENS = 8192
"""Maximum sequence length served by a graph: each bucket has its own buffer of keys and values."""
MAX_BUFFERED_TOKENS = 16384
"""Maximum total of tokens in the buffers of all graphs; the graph used least recently is dropped for another."""
BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of sequences for which there are graphs; smaller batches are filled up."""

Outputs: TypeAlias = tuple[Tensor, Tensor]
"""Logits `[num_rows, vocab_size]` and states `[num_layers + 1, num_tokens, hidden_size]`."""
Step: TypeAlias = Callable[[Tensor, Tensor], Outputs]
"""Tokens `[num_slots]` and their positions `[num_slots]` -> outputs; the same kernels on the same memory at all
positions."""
Capture: TypeAlias = Callable[[Callable[[], Outputs], torch.device], tuple[Callable[[], None], Outputs]]
"""(function, device) -> (function that replays it, its output tensors)."""

_numbers = itertools.count(1)

_log = logging.getLogger(__name__)


def capture(run: Callable[[], Outputs], device: torch.device) -> tuple[Callable[[], None], Outputs]:
    """Capture `run` as a CUDA graph. Raises: RuntimeError when it cannot be captured."""
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm-up: libraries initialise in the first runs, which cannot be captured
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other engines' threads keep running
            outputs = run()
        return graph.replay, outputs


class GraphedSteps:
    """One graph per number of sequences and capacity, captured at first use. Not thread-safe."""

    def __init__(self, layout: Layout, step_on: Callable[[Tensor], Step], capture: Capture = capture) -> None:
        """`step_on`: makes a step on a buffer of shape `Layout.shape`."""
        self._layout, self._step_on, self._capture = layout, step_on, capture
        self.buckets: OrderedDict[tuple[int, int], _Bucket] = OrderedDict()
        self._is_broken = False

    def forward(self, tokens: Sequence[int], kvs: Sequence[BufferKV], want_states: bool) -> Outputs | None:
        """Feed `tokens[i]` after those in `kvs[i]`, which must have capacity for it; None when no graph is available.

        States are empty unless `want_states`.
        """
        bucket = self._bucket(len(kvs), max(kv.capacity for kv in kvs))
        return bucket.forward(tokens, kvs, want_states) if bucket else None

    def _bucket(self, num_sequences: int, capacity: int) -> "_Bucket | None":
        num_slots = next((size for size in BATCHES if size >= num_sequences), 0)
        size = num_slots * capacity
        if self._is_broken or not num_slots or capacity > MAX_TOKENS or size > MAX_BUFFERED_TOKENS:
            return None
        key = num_slots, capacity
        if key not in self.buckets:
            while sum(slots * length for slots, length in self.buckets) + size > MAX_BUFFERED_TOKENS:
                self.buckets.popitem(last=False)
            try:
                self.buckets[key] = _Bucket(self._layout, num_slots, capacity, self._step_on, self._capture)
            except torch.OutOfMemoryError:
                raise  # a later attempt may succeed
            except RuntimeError as error:
                self._is_broken = True
                _log.warning("no CUDA graphs, decoding will be slower: %s", error)
                return None
        self.buckets.move_to_end(key)
        return self.buckets[key]


class _Bucket:
    """A graph, its static buffers, and the sequences whose keys and values each slot of them holds."""

    def __init__(
        self, layout: Layout, num_slots: int, capacity: int, step_on: Callable[[Tensor], Step], capture: Capture
    ) -> None:
        # Zeros: positions after the last token are masked, but masking does not remove a NaN.
        self._buffer = torch.zeros(layout.shape(capacity, num_slots), dtype=layout.dtype, device=layout.device)
        self._input = torch.zeros(2, num_slots, dtype=torch.int64, device=layout.device)
        self._number = next(_numbers)
        self._owners: list[Callable[[], BufferKV | None]] = [_nobody] * num_slots
        run = functools.partial(step_on(self._buffer), self._input[0], self._input[1])
        self._replay, self._outputs = capture(run, layout.device)
        self._run = run  # keeps the tensors alive that the graph reads

    def forward(self, tokens: Sequence[int], kvs: Sequence[BufferKV], want_states: bool) -> Outputs:
        slots = self._assigned(kvs)
        inputs = torch.zeros(2, len(self._owners), dtype=torch.int64)
        for slot, token, kv in zip(slots, tokens, kvs, strict=True):
            self._mirror(slot, kv)
            inputs[0, slot], inputs[1, slot] = token, kv.num_tokens
        self._input.copy_(inputs)
        self._replay()
        for slot, kv in zip(slots, kvs, strict=True):
            position = kv.num_tokens
            kv.stretch(position, position + 1).copy_(self._stretch(slot, position, position + 1))
            kv.num_tokens = kv.num_mirrored = position + 1
        logits, states = self._outputs
        order = torch.tensor(slots, device=logits.device)
        return logits[order], states[:, order] if want_states else states.new_empty(0)

    def _assigned(self, kvs: Sequence[BufferKV]) -> list[int]:
        """A slot for each sequence: the one that holds it, or a free one. A slot without a sequence is overwritten."""
        held = {id(owner()): slot for slot, owner in enumerate(self._owners) if owner() is not None}
        slots = {id(kv): held[id(kv)] for kv in kvs if id(kv) in held}
        free = iter(set(range(len(self._owners))) - set(slots.values()))
        for kv in kvs:
            if id(kv) not in slots:
                slots[id(kv)] = next(free)
        self._owners = [_nobody] * len(self._owners)
        for kv in kvs:
            if id(kv) not in held:
                kv.mirror = 0
            self._owners[slots[id(kv)]] = weakref.ref(kv)
        return [slots[id(kv)] for kv in kvs]

    def _mirror(self, slot: int, kv: BufferKV) -> None:
        """Copy what the slot lacks of a sequence."""
        start, position = kv.num_mirrored if kv.mirror == self._number else 0, kv.num_tokens
        self._stretch(slot, start, position).copy_(kv.stretch(start, position))
        kv.mirror, kv.num_mirrored = self._number, 0  # 0 in case the replay fails

    def _stretch(self, slot: int, start: int, end: int) -> Tensor:
        return self._buffer.narrow(2, slot, 1).narrow(4, start, end - start)


def _nobody() -> None:
    return None
