"""One step of the engine: which calls run, a forward pass over chunks of their tokens, and what each call gets."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from semspec.engine.causal_lm import CausalLM, Forward
from semspec.engine.kv_cache import KV, Chunk
from semspec.engine.logits import draw_each
from semspec.engine.prefix_cache import Prefix, PrefixCache
from semspec.engine.shaping import Shape
from semspec.engine.tree import Tree
from semspec.types import SamplingParams

T = TypeVar("T")

MAX_CALLS = 256
"""Maximum number of calls under way, waiting ones included."""

STEP_TOKENS = 512
"""Maximum tokens of a step, so that tokens of other calls need not wait long for a prompt."""


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a `Feed`."""

    rows: Tensor
    """Logits after each of the last `num_rows` tokens, `[num_rows, vocab_size]`."""
    pooled: Sequence[Tensor]
    """Mean states of each segment, fp32 `[num_layers + 1, hidden_size]` (`states-v1`)."""
    token: int
    """The token drawn with `sampling`; -1 without."""


@dataclass(slots=True, eq=False)
class Feed:
    """Tokens that a call has fed after `prefix`, in one step or in several, and what it wants of the result.

    Tokens of `prefix` whose keys and values were evicted are fed again before them.
    """

    prefix: Prefix
    tokens: Sequence[int]
    num_rows: int = 1
    """Logits after each of so many last tokens."""
    segments: Sequence[int] = ()
    """Lengths of the segments that `tokens` ends with, whose states are pooled."""
    sampling: SamplingParams | None = None
    """How to draw the next token."""
    shape: Shape | None = None
    """What is done to the logits before the draw. The logits of the output stay as they are."""
    tree: Tree | None = None
    """What the last of `tokens` follow; the caller then keeps one path of `prefix`."""
    _num_fed: int = 0
    _rows: list[Tensor] = field(default_factory=list)
    _totals: list[Tensor | None] = field(default_factory=list)
    """Sums of the states of each segment's tokens fed so far."""

    @property
    def num_left(self) -> int:
        """Number of tokens still to feed, evicted ones included."""
        return len(self.prefix.tokens) - self.prefix.kv.num_tokens + len(self.tokens) - self._num_fed

    @property
    def end(self) -> int:
        """Number of tokens of the sequence when all are fed."""
        return len(self.prefix.tokens) + len(self.tokens) - self._num_fed

    def chunk(self, num_tokens: int) -> Chunk[KV]:
        """The next `num_tokens` tokens."""
        kv = self.prefix.kv
        if num_tokens == len(self.tokens) and kv.num_tokens == len(self.prefix.tokens):
            return Chunk(self.tokens, kv, self.num_rows, bool(self.segments), self.tree)
        again = self.prefix.tokens[kv.num_tokens : kv.num_tokens + num_tokens]
        new = self.tokens[self._num_fed : self._num_fed + num_tokens - len(again)]
        num_rows = self._num_fed + len(new) - max(self._num_fed, len(self.tokens) - self.num_rows)
        tree = self.tree if self.tree and kv.num_tokens + num_tokens > self.tree.start else None
        return Chunk([*again, *new], kv, max(0, num_rows), bool(self.segments and new), tree)

    def take(self, forward: Forward) -> bool:
        """Note the result of feeding a `chunk`; whether all is fed."""
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
        """Add the states of the tokens from number `start` on to their segments' sums."""
        self._totals = self._totals or [None] * len(self.segments)
        end = start + states.shape[1]
        first = len(self.tokens) - sum(self.segments)
        for index, length in enumerate(self.segments):
            lower, upper = max(start, first), min(end, first + length)
            if lower < upper:
                total, before = states[:, lower - start : upper - start].float().sum(1), self._totals[index]
                self._totals[index] = total if before is None else before + total
            first += length

    @property
    def last_row(self) -> Tensor:
        """Logits after the last token, `[vocab_size]`."""
        return self._rows[-1][-1]

    def output(self, token: int) -> Output:
        """The result, once all tokens are fed."""
        rows = self._rows[0] if len(self._rows) == 1 else torch.cat(self._rows)
        totals = zip(self._totals, self.segments, strict=True)
        means = [total / length if length > 1 else total for total, length in totals if total is not None]
        return Output(rows, means, token)


Steps = Generator[Feed | T, Output | None, None]
"""A call as a generator: it yields a `Feed` and receives its `Output`, or it yields a result of the call."""


def fed(feed: Feed) -> Generator[Feed, Output | None, Output]:
    """Have `feed` fed; the result."""
    output = yield feed
    if output is None:
        raise RuntimeError("a feed is answered by its output")
    return output


def run_step(lm: CausalLM, plan: Sequence[tuple[Feed, int]]) -> list[tuple[Feed, Output]]:
    """Feed so many tokens of each of `plan` in one forward pass. Returns the outputs of those that are complete."""
    forwards = lm.forward_step([feed.chunk(num_tokens) for feed, num_tokens in plan])
    complete = [feed for (feed, _), forward in zip(plan, forwards, strict=True) if feed.take(forward)]
    tokens = _drawn([feed for feed in complete if feed.sampling])
    outputs = [(feed, feed.output(tokens.get(id(feed), -1))) for feed in complete]
    for feed, output in outputs:
        feed.prefix.remember_logits(len(feed.prefix.tokens), output.rows[-1])
    return outputs


def _drawn(feeds: Sequence[Feed]) -> dict[int, int]:
    """The next token of each feed, by the feed's identity."""
    if not feeds:
        return {}
    own = [feed.shape(feed.last_row) if feed.shape else feed.last_row for feed in feeds]
    if len({row.dtype for row in own}) > 1:  # penalties are applied in fp32
        own = [row.float() for row in own]
    rows = own[0][None] if len(own) == 1 else torch.stack(own)
    samplings = [feed.sampling for feed in feeds if feed.sampling]
    positions = [len(feed.prefix.tokens) for feed in feeds]
    return dict(zip(map(id, feeds), draw_each(rows, samplings, positions), strict=True))


class Scheduler:
    """Plans steps within a budget of tokens, shared equally, and one of memory, given to the oldest calls first."""

    def __init__(self, cache: PrefixCache, max_kv_bytes: int, step_tokens: int = STEP_TOKENS) -> None:
        """`max_kv_bytes`: keys and values of running calls and of cached prefixes together."""
        self.cache, self._max_kv_bytes, self._step_tokens = cache, max_kv_bytes, step_tokens

    def has_room(self, feeds: Sequence[Feed]) -> bool:
        """Whether another call may start beside `feeds`."""
        return not feeds or sum(feed.prefix.kv.nbytes for feed in feeds) < self._max_kv_bytes

    def plan(self, feeds: Sequence[Feed]) -> list[tuple[Feed, int]]:
        """The tokens to feed next of each of `feeds`, the oldest first.

        Where memory is short, cached prefixes are dropped first, then keys and values of the youngest calls, which are
        computed again when there is memory. The oldest call runs in any case, so that all calls end.
        """
        shares = equal_shares([feed.num_left for feed in feeds], self._step_tokens)
        growths = [feed.prefix.kv.growth_bytes(feed.end) for feed in feeds]
        if not any(growths):
            return list(zip(feeds, shares, strict=True))
        num_bytes = sum(feed.prefix.kv.nbytes for feed in feeds)
        planned: list[tuple[Feed, int]] = []
        for index, (feed, share) in enumerate(zip(feeds, shares, strict=True)):
            growth = feed.prefix.kv.growth_bytes(feed.end)  # more than before, if it was evicted for an older call
            if growth and not self._fits(num_bytes + growth):
                num_bytes -= self._evict(feeds[index + 1 :], num_bytes + growth)
                if index and not self._fits(num_bytes + growth):
                    continue
            num_bytes += growth
            planned.append((feed, share))
        return planned

    def _fits(self, num_bytes: int) -> bool:
        """Whether running calls may take so many bytes; drops cached prefixes for them."""
        while (is_too_much := num_bytes + self.cache.num_bytes > self._max_kv_bytes) and self.cache.prefixes:
            self.cache.evict()
        return not is_too_much

    def _evict(self, younger: Sequence[Feed], num_bytes: int) -> int:
        """Drop keys and values of `younger`, the youngest first, until `num_bytes` fit. Returns how many were freed."""
        freed = 0
        for feed in reversed(younger):
            if self._fits(num_bytes - freed):
                break
            freed += feed.prefix.kv.nbytes
            feed.prefix.kv.clear()
        return freed


def equal_shares(sizes: Sequence[int], total: int) -> list[int]:
    """Divide `total`: no share exceeds its size, and none is less than another that equals its size.

    With `total` of at least the number of sizes, everyone gets at least one.
    """
    if sum(sizes) <= total:
        return list(sizes)
    shares = [0] * len(sizes)
    ascending = sorted(range(len(sizes)), key=sizes.__getitem__)
    for num_done, index in enumerate(ascending):
        shares[index] = min(sizes[index], total // (len(sizes) - num_done))
        total -= shares[index]
    return shares
