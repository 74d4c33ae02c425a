"""What runs in the next step: which calls, and how many tokens of each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they import torch, which who computes shares alone does without
    from semspec.engine.prefix_cache import PrefixCache
    from semspec.engine.steps import Feed

MAX_CALLS = 256
"""Maximum number of calls under way, waiting ones included."""

STEP_TOKENS = 512
"""Maximum tokens of a step, so that tokens of other calls need not wait long for a prompt."""


class Scheduler:
    """Plans steps within a budget of tokens, shared equally, and one of memory, given to the oldest calls first."""

    def __init__(self, cache: "PrefixCache", max_kv_bytes: int, step_tokens: int = STEP_TOKENS) -> None:
        """`max_kv_bytes`: keys and values of running calls and of cached prefixes together."""
        self.cache, self._max_kv_bytes, self._step_tokens = cache, max_kv_bytes, step_tokens

    def has_room(self, feeds: Sequence["Feed"]) -> bool:
        """Whether another call may start beside `feeds`."""
        return not feeds or sum(feed.prefix.kv.nbytes for feed in feeds) < self._max_kv_bytes

    def plan(self, feeds: Sequence["Feed"]) -> list[tuple["Feed", int]]:
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

    def _evict(self, younger: Sequence["Feed"], num_bytes: int) -> int:
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
