"""Records states, logits and tokens of vLLM's forward passes, for all requests of a step together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semspec.device import on_device
from semspec.engine.grammars import Grammars
from semspec.engine.logits import draw_tokens, token_statistics
from semspec.engine.requests import Request
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.vllm.calls import Call, Span, make_call
from semspec.engine.vllm.requests import results_to_wire
from semspec.probes.projection import Projections
from semspec.types import SamplingParams, States, Writer

LOGITS_ROWS = 512
"""Rows whose logits are in memory at a time."""
POOLED_ROWS = 256
"""Rows whose states of all layers are copied at a time: 0.5 GB for a 32B model, which vLLM does not account for."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens of one request in a forward pass."""

    key: str
    offset: int
    """Row of the first token in the tensors of the pass."""
    first: int
    """Position of the first token in the request."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a step for a request."""

    results: list[Any]
    """Plain values, from `results_to_wire`."""
    is_done: bool
    """Whether the request needs no further token."""


class StateSums:
    """fp32 sums of states, each in a slot. The number of slots grows with use."""

    def __init__(self, num_layers: int, hidden_size: int, device: torch.device) -> None:
        self._sums = torch.zeros(0, num_layers + 1, hidden_size, device=device)
        self._free: list[int] = []

    def acquire(self) -> int:
        """Return a slot with a sum of zero."""
        if not self._free:
            num_slots = len(self._sums)
            more = self._sums.new_zeros(max(16, num_slots), *self._sums.shape[1:])
            self._sums = torch.cat([self._sums, more])
            self._free = list(range(num_slots, len(self._sums)))
        return self._free.pop()

    def release(self, slots: Sequence[int]) -> None:
        """Set the sums to zero and return the slots."""
        if slots:
            self._sums[on_device(slots, self._sums.device)] = 0
            self._free += slots

    def add(self, states: Sequence[Tensor], rows: Sequence[int], slots: Sequence[int]) -> None:
        """Add row `rows[i]` of the states, each layer's `[num_rows, hidden_size]`, to the sum in `slots[i]`."""
        device = self._sums.device
        row_parts = on_device(rows, device).split(POOLED_ROWS)
        slot_parts = on_device(slots, device).split(POOLED_ROWS)
        for row_index, slot_index in zip(row_parts, slot_parts, strict=True):
            added = torch.stack([layer[row_index] for layer in states], 1).float()
            self._sums.index_add_(0, slot_index, added)

    def means(self, slots: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Return the sums divided by `lengths`."""
        device = self._sums.device
        return self._sums[on_device(slots, device)] / on_device(lengths, device)[:, None, None]


class Recorder:
    """The requests in one of vLLM's processes. Not thread-safe.

    For each forward pass: `start` new requests, `drop` ended ones, `record` the tensors, `draw` and `take` tokens.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        writer: Writer,
        device: torch.device,
        compute_logits: Callable[[Tensor], Tensor | None],
        projections: Projections,
        grammars: Grammars | None,
    ) -> None:
        """`compute_logits`: from rows of final hidden states; returns None in a process that does not gather logits."""
        self._tokenizer, self._writer, self._device = tokenizer, writer, device
        self._compute_logits = compute_logits
        self._projections, self._grammars = projections, grammars
        self._num_states = tokenizer.info.num_layers + 1
        self._sums = StateSums(tokenizer.info.num_layers, tokenizer.info.hidden_size, device)
        self.calls: dict[str, Call] = {}

    def start(self, key: str, prompt: Sequence[int], request: Request) -> Call:
        """Add a request."""
        call = make_call(self._tokenizer, prompt, request, self._writer, self._grammars)
        self.calls[key] = call
        return call

    def drop(self, key: str) -> None:
        """Remove a request, if it is known."""
        if call := self.calls.pop(key, None):
            self._sums.release([span.slot for span in call.spans if span.slot is not None])

    def record(self, chunks: Sequence[Chunk], states: Sequence[Tensor], hidden: Tensor) -> None:
        """Record the rows that requests need.

        `states`: of the embeddings and each layer, `[num_rows, hidden_size]`; `hidden`: after the final norm.

        Raises: RuntimeError when states or rows are missing.
        """
        pooled: list[int] = []
        slots: list[int] = []
        wanted: list[tuple[Call, range]] = []
        for chunk in chunks:
            call = self.calls.get(chunk.key)
            end = chunk.first + chunk.num_tokens
            if call is None or not call.wants_rows or call.next_row >= end:
                continue
            if call.next_row < chunk.first:
                raise RuntimeError(
                    f"rows {call.next_row} to {chunk.first} of a request were not computed"
                )
            new, shift = range(call.next_row, end), chunk.offset - chunk.first
            call.next_row = end
            for span in call.spans:
                rows = _overlap(span.rows, new)
                if rows:
                    span.slot = self._sums.acquire() if span.slot is None else span.slot
                    pooled += [row + shift for row in rows]
                    slots += [span.slot] * len(rows)
            if rows := _overlap(call.scored_rows, new) or _overlap(call.logit_rows, new):
                wanted.append((call, range(rows.start + shift, rows.stop + shift)))
        reads = [
            (call, call.state_layer, rows) for call, rows in wanted if call.state_layer is not None
        ]
        if (pooled or reads) and len(states) != self._num_states:
            raise RuntimeError(
                f"vLLM returns states of {len(states)} layers instead of {self._num_states}"
            )
        for call, layer, rows in reads:
            call.states.append(states[layer][rows.start : rows.stop].clone())
        if pooled:
            self._sums.add(states, pooled, slots)
        if wanted:
            self._record_logits(wanted, hidden)

    def _record_logits(self, wanted: Sequence[tuple[Call, range]], hidden: Tensor) -> None:
        """Record logits. Every process of a tensor-parallel group calls this: the head is divided among them."""
        for part in _parts(wanted, LOGITS_ROWS):
            index = on_device([row for _, rows in part for row in rows], self._device)
            logits = self._compute_logits(hidden[index])
            if logits is None:
                continue
            logit_rows = logits.split([len(rows) for _, rows in part])
            scored = [index for index, (call, _) in enumerate(part) if call.scored_rows]
            for (call, _), rows in zip(part, logit_rows, strict=True):
                if not call.scored_rows:
                    call.rows.append(rows)
            if scored:
                self._record_statistics(
                    [part[index][0] for index in scored], [logit_rows[index] for index in scored]
                )

    def _record_statistics(self, calls: Sequence[Call], logits: Sequence[Tensor]) -> None:
        """Record the statistics of all scored rows of a part, computed together."""
        token_ids: list[int] = []
        for call, rows in zip(calls, logits, strict=True):
            start = call.scored_rows.start + 1 + sum(map(len, call.rows))
            token_ids += call.prompt[start : start + len(rows)]
        statistics = token_statistics(torch.cat(list(logits)), on_device(token_ids, self._device))
        for call, rows in zip(calls, statistics.split([len(rows) for rows in logits]), strict=True):
            call.rows.append(rows)

    def draw(self, chunks: Sequence[Chunk], logits: Tensor) -> None:
        """Draw the tokens after chunks that end a request's tokens, and set all other logits in their rows to -inf.

        `logits`: after the last token of each chunk, `[num_chunks, vocab_size]`. Tokens of calls that neither draw
        themselves nor note tokens are not copied to the host.

        Raises: RuntimeError when there is not one row for each chunk.
        """
        if not chunks:
            return
        if len(chunks) != len(logits):
            raise RuntimeError(f"vLLM has logits of {len(logits)} rows for {len(chunks)} chunks")
        drawn: dict[int, int] = {}
        rest: dict[int, tuple[Tensor, SamplingParams, int]] = {}
        values = logits.float()
        for row, chunk in enumerate(chunks):
            call, position = self.calls.get(chunk.key), chunk.first + chunk.num_tokens
            if call is None or call.sampling is None or position < call.num_tokens:
                continue
            if (token := call.draw(values[row], position)) is not None:
                drawn[row] = token
            else:
                rest[row] = call.transformed(values[row]), call.sampling, position
        changed = [*drawn, *rest]
        if not changed:
            return
        parts = [on_device(list(drawn.values()), self._device)] if drawn else []
        if rest:
            rows, samplings, positions = zip(*rest.values(), strict=True)
            parts.append(draw_tokens(torch.stack(rows), samplings, positions))
        tokens = torch.cat(parts)
        calls = [self.calls[chunks[row].key] for row in changed]
        if any(call.notes_tokens for call in calls):
            for call, row, token in zip(calls, changed, tokens.tolist(), strict=True):
                call.note(values[row], token)
        index = on_device(changed, self._device)
        logits[index] = float("-inf")
        logits[index, tokens] = 0.0

    def take(self, sampled: Mapping[str, int]) -> dict[str, Outcome]:
        """Add sampled tokens. Return the outcomes of requests that have results or are done."""
        calls = []
        for key, token in sampled.items():
            if call := self.calls.get(key):
                call.num_tokens += 1
                calls.append((key, call, call.take(token)))
        states = self._states(
            [(span, call.projection) for _, call, ended in calls for span in ended]
        )
        outcomes = {}
        for key, call, ended in calls:
            call.finish([next(states) for _ in ended])
            if call.results or call.is_done:
                outcomes[key] = Outcome(results_to_wire(call.kind, call.results), call.is_done)
                call.results = []
        return outcomes

    def _states(self, ended: Sequence[tuple[Span, str]]) -> Iterator[States]:
        """Return the pooled states of spans, in order, each with the projection of the digest next to it."""
        slots = [span.slot for span, _ in ended if span.slot is not None]
        if len(slots) < len(ended):
            raise RuntimeError("a segment ended without states")
        if not slots:
            return iter(())
        means = self._sums.means(slots, [len(span.rows) for span, _ in ended])
        self._sums.release(slots)
        for span, _ in ended:
            span.slot = None
        pooled: dict[str, list[Tensor]] = {}
        for mean, (_, digest) in zip(means, ended, strict=True):
            pooled.setdefault(digest, []).append(mean)
        states = {
            digest: iter(self._projections.states_of(group, digest))
            for digest, group in pooled.items()
        }
        return (next(states[digest]) for _, digest in ended)


def _overlap(a: range, b: range) -> range:
    return range(max(a.start, b.start), min(a.stop, b.stop))


def _parts(wanted: Sequence[tuple[Call, range]], size: int) -> list[list[tuple[Call, range]]]:
    """Split `wanted` into parts of at most `size` rows, within a request where necessary."""
    parts: list[list[tuple[Call, range]]] = [[]]
    left = size
    for call, rows in wanted:
        while rows:
            if not left:
                parts.append([])
                left = size
            parts[-1].append((call, rows[:left]))
            taken = min(left, len(rows))
            rows, left = rows[taken:], left - taken
    return parts
