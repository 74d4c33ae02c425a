"""Which calls run in a step, and how many tokens of each, with real keys and values in memory."""

import pytest
import torch

from semspec.engine.kv_cache import BufferKV, Layout, Slabs
from semspec.engine.steps import Feed, Prefix, PrefixCache, equal_shares
from semspec.engine.worker import Scheduler

SLABS = Slabs(Layout(1, 1, 8, torch.float32, torch.device("cpu"), 4096))
BUFFER_BYTES = SLABS.layout.num_bytes(256)
"""Of a sequence of up to 256 tokens."""


def scheduler(num_buffers: int, num_cached: int = 0, step_tokens: int = 512) -> Scheduler:
    """With memory for so many buffers, and so many prefixes in the cache."""
    cache = PrefixCache(1 << 30, lambda: BufferKV(SLABS))
    for number in range(num_cached):
        cache.give(holding(10, session=str(number)).prefix)
    return Scheduler(cache, num_buffers * BUFFER_BYTES, step_tokens)


def holding(num_tokens: int, num_new: int = 1, session: str = "") -> Feed:
    """A call whose sequence has so many tokens, and feeds so many more."""
    prefix = Prefix(BufferKV(SLABS), session, [5] * num_tokens)
    assert isinstance(prefix.kv, BufferKV)
    prefix.kv.reserve(num_tokens)
    prefix.kv.num_tokens = num_tokens
    return Feed(prefix, [6] * num_new)


@pytest.mark.parametrize(
    ("sizes", "total", "shares"),
    [
        ([1, 1, 1], 512, [1, 1, 1]),
        ([1, 4000, 20], 512, [1, 491, 20]),
        ([4000, 4000], 512, [256, 256]),
        ([300, 4000, 100], 512, [206, 206, 100]),
        ([], 512, []),
    ],
)
def test_shares_are_equal_up_to_need(sizes: list[int], total: int, shares: list[int]) -> None:
    assert equal_shares(sizes, total) == shares


def test_long_prompts_leave_every_other_call_a_token() -> None:
    feeds = [holding(0, 3000), holding(0, 3000), *(holding(100) for _ in range(30))]
    planned = {id(feed): share for feed, share in scheduler(1000, step_tokens=64).plan(feeds)}
    assert [planned[id(feed)] for feed in feeds] == [17, 17, *[1] * 30]


def test_cached_prefixes_are_dropped_before_a_call_waits_and_stay_while_there_is_room() -> None:
    for num_buffers, num_calls, num_kept in ((2, 2, 0), (3, 1, 2)):
        plans = scheduler(num_buffers, num_cached=2)
        feeds = [holding(0, 10) for _ in range(num_calls)]
        assert [feed for feed, _ in plans.plan(feeds)] == feeds
        assert len(plans.cache.prefixes) == num_kept


def test_copies_of_a_cached_prefix_make_room_for_themselves() -> None:
    plans = scheduler(num_buffers=3, num_cached=1)
    prefix = plans.cache.prefixes[0]
    feeds = [Feed(prefix.copy(10, session), [6]) for session in "abc"]
    assert [feed for feed, _ in plans.plan(feeds)] == feeds
    assert not plans.cache.prefixes


def test_call_that_does_not_fit_waits_for_older_ones() -> None:
    older, newer = holding(200), holding(0, 10)
    assert [feed for feed, _ in scheduler(num_buffers=1).plan([older, newer])] == [older]


def test_growing_call_evicts_the_youngest_and_that_one_feeds_all_again() -> None:
    oldest, middle, youngest = holding(256), holding(100), holding(100)
    plans = scheduler(num_buffers=3)
    assert [feed for feed, _ in plans.plan([oldest, middle, youngest])] == [oldest, middle]
    assert middle.prefix.kv.num_tokens == 100
    assert youngest.prefix.kv.num_tokens == 0
    assert plans.num_preempted == 1
    assert youngest.num_left == 101
    assert list(youngest.chunk(101).tokens) == [5] * 100 + [6]
    assert youngest.chunk(100).num_rows == 0


def test_oldest_call_runs_even_if_it_alone_is_too_large() -> None:
    oldest, other = holding(300, 10), holding(100)
    plans = scheduler(num_buffers=1)
    assert [feed for feed, _ in plans.plan([oldest, other])] == [oldest, other], (
        "it needs no more than it has"
    )
    grown = holding(512, 10)
    assert [feed for feed, _ in plans.plan([grown, other])] == [grown]
    assert other.prefix.kv.nbytes == 0


def test_calls_start_while_running_ones_leave_room() -> None:
    plans = scheduler(num_buffers=2)
    assert plans.has_room([]) and plans.has_room([holding(10)])
    assert not plans.has_room([holding(10), holding(10)])
