"""A step of the engine: one forward pass over tokens of several calls.

The tokens of each call follow a prefix, which a cache keeps between calls. Clearing the cache changes no result.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from semspec.engine.causal_lm import CausalLM, Forward
from semspec.engine.kv_cache import KV, Chunk
from semspec.engine.logits import draw_each
from semspec.engine.logits_processor import LogitsTransform
from semspec.types import SamplingParams

T = TypeVar("T")

MAX_LOGITS_ROWS = 4
"""Number of positions in a prefix whose next-token logits are kept."""


@dataclass(slots=True, eq=False)
class Prefix:
    """Tokens, their keys and values, and the logits after some positions."""

    kv: KV
    session: str = ""
    tokens: list[int] = field(default_factory=list)
    logits: OrderedDict[int, Tensor] = field(default_factory=OrderedDict)
    """Logits `[vocab_size]` of the next token, by the number of tokens before it."""

    @property
    def num_bytes(self) -> int:
        """Allocated memory, including spare capacity of buffers."""
        return self.kv.nbytes + sum(row.nbytes for row in self.logits.values())

    def remember_logits(self, num_tokens: int, row: Tensor) -> None:
        """Keep the logits `[vocab_size]` after the first `num_tokens` tokens."""
        self.logits[num_tokens] = row.clone()  # not a view that keeps all rows alive
        if len(self.logits) > MAX_LOGITS_ROWS:
            self.logits.popitem(last=False)

    def crop(self, num_tokens: int) -> None:
        """Drop everything after the first `num_tokens` tokens."""
        self.kv.crop(num_tokens)
        del self.tokens[num_tokens:]
        for position in [position for position in self.logits if position > num_tokens]:
            del self.logits[position]

    def copy(self, num_tokens: int, session: str) -> "Prefix":
        """Return a copy of the first `num_tokens` tokens."""
        logits = OrderedDict(
            (position, row) for position, row in self.logits.items() if position <= num_tokens
        )
        return Prefix(self.kv.copy(num_tokens), session, self.tokens[:num_tokens], logits)


class PrefixCache:
    """Reuse of the longest common prefix across sessions, with LRU eviction within a byte budget.

    Not thread-safe. A prefix is removed while a call extends it, so two calls never write to the same memory.
    """

    def __init__(self, max_bytes: int, new_kv: Callable[[], KV]) -> None:
        self.max_bytes, self._new_kv = max_bytes, new_kv
        self._entries: OrderedDict[int, tuple[Prefix, np.ndarray]] = OrderedDict()
        self.num_bytes = 0

    @property
    def prefixes(self) -> list[Prefix]:
        """The prefixes in the cache, the least recently used first."""
        return [prefix for prefix, _ in self._entries.values()]

    def take(self, tokens: Sequence[int], session: str) -> Prefix:
        """Return the longest cached prefix of `tokens` after which logits can be computed, for the caller to extend.

        This is the entry itself if it belongs to `session`, or if neither has one and the entry is a prefix of
        `tokens`; otherwise a copy, so that calls of several sessions that begin alike can all start from it.
        """
        key, num_common = self._longest(np.asarray(tokens, dtype=np.int64), session)
        if key is None:
            return Prefix(self._new_kv(), session)
        prefix = self._entries[key][0]
        num_usable = (
            num_common
            if num_common < len(tokens) or num_common in prefix.logits
            else num_common - 1
        )
        if num_usable <= 0:
            return Prefix(self._new_kv(), session)
        if prefix.session != session or (not session and num_common < len(prefix.tokens)):
            self._entries.move_to_end(key)
            return prefix.copy(num_usable, session)
        self._remove(key)
        prefix.crop(num_usable)
        prefix.session = session
        return prefix

    def give(self, prefix: Prefix) -> None:
        """Insert a prefix, after evicting the least recently used ones if it needs room."""
        size = prefix.num_bytes
        if size > self.max_bytes or not prefix.tokens:
            return
        while self.num_bytes + size > self.max_bytes:
            self.evict()
        self._entries[id(prefix)] = (prefix, np.asarray(prefix.tokens, dtype=np.int64))
        self.num_bytes += size

    def evict(self) -> None:
        """Drop the least recently used prefix."""
        self._remove(next(iter(self._entries)))

    def clear(self) -> None:
        """Drop all prefixes."""
        self._entries.clear()
        self.num_bytes = 0

    def _longest(self, tokens: np.ndarray, session: str) -> tuple[int | None, int]:
        best, best_length = None, 0
        for key, (prefix, cached) in self._entries.items():
            length = _num_common(cached, tokens)
            is_better = length > best_length or (
                length == best_length > 0 and session and prefix.session == session
            )
            if is_better:
                best, best_length = key, length
        return best, best_length

    def _remove(self, key: int) -> None:
        prefix, _ = self._entries.pop(key)
        self.num_bytes -= prefix.num_bytes


def _num_common(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a `Feed`."""

    rows: Tensor
    """Logits after each of the last `num_rows` tokens, `[num_rows, vocab_size]`."""
    pooled: Sequence[Tensor]
    """Mean states of each segment, fp32 `[num_layers + 1, hidden_size]` (`states-v1`)."""
    token: int
    """The token drawn with `sampling`; -1 without sampling."""


@dataclass(slots=True, eq=False)
class Feed:
    """Tokens that a call feeds to the model after `prefix`, in one step or several, and the results that it wants.

    Tokens of `prefix` whose keys and values were evicted are fed again before them.
    """

    prefix: Prefix
    tokens: Sequence[int]
    num_rows: int = 1
    """Number of the last tokens after which it wants logits."""
    segments: Sequence[int] = ()
    """Lengths of the segments that `tokens` ends with, whose states are pooled."""
    sampling: SamplingParams | None = None
    """How to draw the next token."""
    transform: LogitsTransform | None = None
    """Applied to the logits of the draw. The logits of the output are unchanged."""
    _num_fed: int = 0
    _rows: list[Tensor] = field(default_factory=list)
    _totals: list[Tensor | None] = field(default_factory=list)
    """Sums of the states of each segment's tokens fed so far."""

    @property
    def num_left(self) -> int:
        """Number of tokens still to feed, evicted ones included."""
        return (
            len(self.prefix.tokens) - self.prefix.kv.num_tokens + len(self.tokens) - self._num_fed
        )

    @property
    def end(self) -> int:
        """Number of tokens of the sequence when all are fed."""
        return len(self.prefix.tokens) + len(self.tokens) - self._num_fed

    def chunk(self, num_tokens: int) -> Chunk[KV]:
        """Return the next `num_tokens` tokens."""
        kv = self.prefix.kv
        if num_tokens == len(self.tokens) and kv.num_tokens == len(self.prefix.tokens):
            return Chunk(self.tokens, kv, self.num_rows, bool(self.segments))
        again = self.prefix.tokens[kv.num_tokens : kv.num_tokens + num_tokens]
        new = self.tokens[self._num_fed : self._num_fed + num_tokens - len(again)]
        num_rows = self._num_fed + len(new) - max(self._num_fed, len(self.tokens) - self.num_rows)
        return Chunk([*again, *new], kv, max(0, num_rows), bool(self.segments and new))

    def take(self, forward: Forward) -> bool:
        """Add the result of feeding a `chunk`. Return whether all tokens are fed."""
        prefix, start = self.prefix, self._num_fed
        num_new = prefix.kv.num_tokens - len(prefix.tokens)
        if num_new > 0:
            self._num_fed += num_new
            prefix.tokens += self.tokens[start : self._num_fed]
            if len(forward.logits):
                self._rows.append(forward.logits)
            if num_new == 1 and self.segments == (1,):
                self._totals = [forward.states[:, -1].float()]
            elif self.segments:
                self._pool(forward.states[:, -num_new:], start)
        return self._num_fed == len(self.tokens)

    def _pool(self, states: Tensor, start: int) -> None:
        """Add states of the tokens from index `start` on to the sums of their segments."""
        self._totals = self._totals or [None] * len(self.segments)
        end = start + states.shape[1]
        first = len(self.tokens) - sum(self.segments)
        for index, length in enumerate(self.segments):
            lower, upper = max(start, first), min(end, first + length)
            if lower < upper:
                total = states[:, lower - start : upper - start].float().sum(1)
                before = self._totals[index]
                self._totals[index] = total if before is None else before + total
            first += length

    @property
    def last_row(self) -> Tensor:
        """Logits after the last token, `[vocab_size]`."""
        return self._rows[-1][-1]

    def output(self, token: int) -> Output:
        """Return the result, once all tokens are fed."""
        rows = self._rows[0] if len(self._rows) == 1 else torch.cat(self._rows)
        totals = zip(self._totals, self.segments, strict=True)
        means = [
            total / length if length > 1 else total for total, length in totals if total is not None
        ]
        return Output(rows, means, token)


Steps = Generator[Feed | T, Output | None, None]
"""A call as a generator: it yields a `Feed` and receives its `Output`, or it yields a result of the call."""


def run_feed(feed: Feed) -> Generator[Feed, Output | None, Output]:
    """Run `feed` through the model, in as many steps as it takes, and return its output."""
    output = yield feed
    if output is None:
        raise RuntimeError("the worker answered a feed without its output")
    return output


def equal_shares(sizes: Sequence[int], total: int) -> list[int]:
    """Divide `total` into equal shares, except that no share exceeds its size.

    If `total` is at least the number of sizes, each share is at least 1.
    """
    if sum(sizes) <= total:
        return list(sizes)
    shares = [0] * len(sizes)
    ascending = sorted(range(len(sizes)), key=sizes.__getitem__)
    for num_done, index in enumerate(ascending):
        shares[index] = min(sizes[index], total // (len(sizes) - num_done))
        total -= shares[index]
    return shares


def run_step(lm: CausalLM, plan: Sequence[tuple[Feed, int]]) -> list[tuple[Feed, Output]]:
    """Feed the planned number of tokens of each feed in one forward pass. Return the outputs of complete feeds."""
    forwards = lm.forward_step([feed.chunk(num_tokens) for feed, num_tokens in plan])
    complete = [
        feed for (feed, _), forward in zip(plan, forwards, strict=True) if feed.take(forward)
    ]
    tokens = _drawn([feed for feed in complete if feed.sampling])
    outputs = [(feed, feed.output(tokens.get(id(feed), -1))) for feed in complete]
    for feed, output in outputs:
        feed.prefix.remember_logits(len(feed.prefix.tokens), output.rows[-1])
    return outputs


def _drawn(feeds: Sequence[Feed]) -> dict[int, int]:
    """Draw the next token of each feed; return the tokens by the feeds' `id`."""
    if not feeds:
        return {}
    rows = [feed.transform(feed.last_row) if feed.transform else feed.last_row for feed in feeds]
    if len({row.dtype for row in rows}) > 1:  # penalties are applied in fp32
        rows = [row.float() for row in rows]
    logits = rows[0][None] if len(rows) == 1 else torch.stack(rows)
    samplings = [feed.sampling for feed in feeds if feed.sampling]
    positions = [len(feed.prefix.tokens) for feed in feeds]
    return dict(zip(map(id, feeds), draw_each(logits, samplings, positions), strict=True))
