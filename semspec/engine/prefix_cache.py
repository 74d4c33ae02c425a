"""The prefix cache: keys and values kept between calls. Clearing it changes no result."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from semspec.engine.kv_cache import KV

MAX_LOGITS_ROWS = 4
"""Number of positions per entry whose next-token logits are kept."""


@dataclass(slots=True, eq=False)
class Prefix:
    """Tokens, their keys and values, and the logits that follow some positions."""

    kv: KV
    session: str = ""
    tokens: list[int] = field(default_factory=list)
    logits: OrderedDict[int, Tensor] = field(default_factory=OrderedDict)
    """Number of tokens -> logits of the next one, `[vocab_size]`."""

    @property
    def num_bytes(self) -> int:
        """Allocated memory, spare capacity of buffers included."""
        return self.kv.nbytes + sum(row.nbytes for row in self.logits.values())

    def remember_logits(self, num_tokens: int, row: Tensor) -> None:
        self.logits[num_tokens] = row.clone()  # not a view that keeps all rows alive
        if len(self.logits) > MAX_LOGITS_ROWS:
            self.logits.popitem(last=False)

    def crop(self, num_tokens: int) -> None:
        """Drop everything after the first `num_tokens` tokens."""
        self.kv.crop(num_tokens)
        del self.tokens[num_tokens:]
        for position in [position for position in self.logits if position > num_tokens]:
            del self.logits[position]

    def keep(self, num_tokens: int, following: Sequence[int]) -> None:
        """Of the tokens after the first `num_tokens`, keep those with the ascending indices `following`."""
        if list(following) == list(range(len(following))):
            self.crop(num_tokens + len(following))
            return
        kept = [self.tokens[num_tokens + index] for index in following]
        self.kv.select(num_tokens, following)
        self.crop(num_tokens + len(following))
        self.tokens[num_tokens:] = kept
        for position in [position for position in self.logits if position > num_tokens]:
            del self.logits[position]

    def copy(self, num_tokens: int, session: str) -> "Prefix":
        """A copy of the first `num_tokens` tokens."""
        logits = OrderedDict((position, row) for position, row in self.logits.items() if position <= num_tokens)
        return Prefix(self.kv.copy(num_tokens), session, self.tokens[:num_tokens], logits)


class PrefixCache:
    """Longest-prefix reuse across sessions with LRU eviction, within a byte budget.

    Not thread-safe: only the engine's thread uses it. A prefix is removed while a call extends it, so two calls never
    write to the same memory.
    """

    def __init__(self, max_bytes: int, new_kv: Callable[[], KV]) -> None:
        self.max_bytes, self._new_kv = max_bytes, new_kv
        self._entries: OrderedDict[int, tuple[Prefix, np.ndarray]] = OrderedDict()
        self.num_bytes = 0

    @property
    def prefixes(self) -> list[Prefix]:
        """Those kept, the least recently used first."""
        return [prefix for prefix, _ in self._entries.values()]

    def take(self, tokens: Sequence[int], session: str) -> Prefix:
        """The longest cached prefix of `tokens` from which the next logits can be computed, for the caller to extend.

        The entry is removed from the cache and returned if it is a prefix of `tokens` or belongs to `session`;
        otherwise the caller gets a copy.
        """
        key, num_common = self._longest(np.asarray(tokens, dtype=np.int64), session)
        if key is None:
            return Prefix(self._new_kv(), session)
        prefix = self._entries[key][0]
        num_usable = num_common if num_common < len(tokens) or num_common in prefix.logits else num_common - 1
        if num_usable <= 0:
            return Prefix(self._new_kv(), session)
        if num_common < len(prefix.tokens) and (not session or prefix.session != session):
            self._entries.move_to_end(key)
            return prefix.copy(num_usable, session)
        self._remove(key)
        prefix.crop(num_usable)
        prefix.session = session
        return prefix

    def give(self, prefix: Prefix) -> None:
        """Insert a prefix, evicting the least recently used ones."""
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
        self._entries.clear()
        self.num_bytes = 0

    def _longest(self, tokens: np.ndarray, session: str) -> tuple[int | None, int]:
        best, best_length = None, 0
        for key, (prefix, cached) in self._entries.items():
            length = _num_common(cached, tokens)
            is_better = length > best_length or (length == best_length > 0 and session and prefix.session == session)
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
