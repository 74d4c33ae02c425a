"""The second request finds the first one's prompt in the caches, and the table has what was measured."""

import pytest

from semspec.bench.prefix_cache import LABELS, NUM_TURNS, Twice, conversation, measure, table
from semspec.bench.runners.in_process import open_in_process
from semspec.stack import BUNDLED_PAIR
from semspec.training.progress import Reporter


def test_conversations_begin_alike_only_if_their_earlier_problems_do() -> None:
    one, same = (conversation(10_015_000, iter(range(2)), 2) for _ in range(2))
    other = conversation(10_015_000, iter(range(2, 4)), 2)
    assert one == same and len(one) == 5
    assert one[-1] == other[-1] and one[0] != other[0]


def test_table_by_hand() -> None:
    found = [
        Twice(label, turns, 100, 50, new_s, cached_s, is_equal=True)
        for turns in NUM_TURNS
        for label, new_s, cached_s in zip(LABELS, (2.0, 0.5, 1.0), (1.0, 0.5, 0.5), strict=True)
        for _ in range(3)
    ]
    rows = table(found).rows
    assert len(rows) == len(LABELS) * len(NUM_TURNS)
    assert [row[0] for row in rows[:3]] == list(LABELS)
    semantic = rows[LABELS.index("semantic")]
    assert semantic[1:] == ("100", "50", "1.000", "0.500", "2.00 ± 0.00", "3 of 3")


@pytest.mark.slow
async def test_cached_prompt_gives_the_same_text() -> None:
    async with open_in_process(BUNDLED_PAIR) as runner:
        found = await measure(runner, 1, Reporter(quiet=True))
    assert len(found) == len(LABELS) * len(NUM_TURNS) and all(one.is_equal for one in found)
    tokens = [one.num_prompt_tokens for one in found if one.num_turns == NUM_TURNS[-1]]
    assert min(tokens) > 2000
