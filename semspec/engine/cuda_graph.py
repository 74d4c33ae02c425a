"""CUDA graphs for the forward pass of one token: one launch instead of hundreds."""

import functools
import logging
import weakref
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from semspec.engine.kv_cache import BufferKV, Layout

MAX_TOKENS = 8192
"""Maximum sequence length served by a graph: each length bucket has its own buffer of keys and values."""

Outputs: TypeAlias = tuple[Tensor, Tensor]
"""Logits `[1, vocab_size]` and states `[num_layers + 1, 1, hidden_size]`."""
Step: TypeAlias = Callable[[Tensor, Tensor], Outputs]
"""Token `[1]` and its position `[1]` -> outputs; the same kernels on the same memory at every position."""
Capture: TypeAlias = Callable[[Callable[[], Outputs], torch.device], tuple[Callable[[], None], Outputs]]
"""(function, device) -> (function that replays it, its output tensors)."""

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
    """One graph per capacity of `BufferKV`, captured at first use. Not thread-safe."""

    def __init__(self, layout: Layout, step_on: Callable[[Tensor], Step], capture: Capture = capture) -> None:
        """`step_on`: makes a step on a buffer of shape `Layout.shape`."""
        self._layout, self._step_on, self._capture = layout, step_on, capture
        self._buckets: dict[int, _Bucket] = {}
        self._is_broken = False

    def forward(self, token: int, kv: BufferKV, want_states: bool) -> Outputs | None:
        """Feed one token after those in `kv`, which must have capacity for it; None when no graph is available.

        States are empty unless `want_states`.
        """
        bucket = self._bucket(kv.capacity)
        return bucket.forward(token, kv, want_states) if bucket else None

    def _bucket(self, capacity: int) -> "_Bucket | None":
        if capacity > MAX_TOKENS or self._is_broken:
            return None
        if capacity not in self._buckets:
            try:
                self._buckets[capacity] = _Bucket(self._layout, capacity, self._step_on, self._capture)
            except torch.OutOfMemoryError:
                raise  # a later attempt may succeed
            except RuntimeError as error:
                self._is_broken = True
                _log.warning("no CUDA graphs, decoding will be slower: %s", error)
        return self._buckets.get(capacity)


class _Bucket:
    """A graph, its static buffers, and the `BufferKV` whose keys and values they hold."""

    def __init__(self, layout: Layout, capacity: int, step_on: Callable[[Tensor], Step], capture: Capture) -> None:
        # Zeros: positions after the last token are masked, but masking does not remove a NaN.
        self._buffer = torch.zeros(layout.shape(capacity), dtype=layout.dtype, device=layout.device)
        self._input = torch.zeros(2, dtype=torch.int64, device=layout.device)
        self._owner: Callable[[], BufferKV | None] = lambda: None
        run = functools.partial(step_on(self._buffer), self._input[:1], self._input[1:])
        self._replay, self._outputs = capture(run, layout.device)
        self._run = run  # keeps the tensors alive that the graph reads

    def forward(self, token: int, kv: BufferKV, want_states: bool) -> Outputs:
        position = kv.num_tokens
        start = kv.num_mirrored if self._owner() is kv else 0
        self._buffer.narrow(4, start, position - start).copy_(kv.stretch(start, position))
        self._owner, kv.num_mirrored = weakref.ref(kv), 0  # 0 in case the replay fails
        self._input.copy_(torch.tensor([token, position]))
        self._replay()
        kv.stretch(position, position + 1).copy_(self._buffer.narrow(4, position, 1))
        kv.num_tokens = kv.num_mirrored = position + 1
        logits, states = self._outputs
        return logits.clone(), states.clone() if want_states else states.new_empty(0)
