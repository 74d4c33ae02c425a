"""Longest matches, compared with a search of every place."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semspec.decoding.retrieval.ngrams import (
    DOCUMENT_END,
    LONGEST_MATCH,
    MAX_MATCHES,
    NO_MATCH,
    StaticTokens,
    agreed,
    as_text,
    earlier_match,
    sorted_places,
)

END = chr(DOCUMENT_END)
ids = st.integers(0, 3) | st.sampled_from([0xD800, 151_935, DOCUMENT_END - 1])
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
documents = st.lists(st.lists(ids, max_size=40), min_size=1, max_size=5)


def store(parts: list[list[int]]) -> tuple[StaticTokens, str]:
    tokens = np.array([token for part in parts for token in (*part, DOCUMENT_END)], np.uint32)
    return StaticTokens(tokens, sorted_places(tokens)), as_text(tokens)


def followed(text: str, ngram: str, num_tokens: int, before: int) -> list[str]:
    """What follows each place of `ngram` that ends before `before`."""
    starts = (
        start
        for start in range(before)
        if text.startswith(ngram, start) and start + len(ngram) <= before
    )
    return [text[start + len(ngram) :][:num_tokens].partition(END)[0] for start in starts]


@patient
@given(documents, st.lists(ids, min_size=1, max_size=30))
def test_static_match_is_longest(parts: list[list[int]], context_ids: list[int]) -> None:
    static, text = store(parts)
    context = as_text(context_ids)
    match = static.match(context, 4)
    lengths = range(min(LONGEST_MATCH, len(context)), 0, -1)
    assert match.length == next((length for length in lengths if context[-length:] in text), 0)
    if match.length:
        every = followed(text, context[-match.length :], 4, len(text))
        assert set(match.continuations) <= set(every)
        assert 1 <= len(match.continuations) <= MAX_MATCHES
        if len(every) <= MAX_MATCHES:
            assert sorted(match.continuations) == sorted(every)


@patient
@given(st.lists(ids, min_size=1, max_size=60))
def test_earlier_match_is_the_longest_before_the_end(context_ids: list[int]) -> None:
    context = as_text(context_ids)
    match = earlier_match(context, 4)
    lengths = range(min(LONGEST_MATCH, len(context) - 1), 0, -1)
    length = next((length for length in lengths if context[-length:] in context[:-1]), 0)
    assert match.length == length
    if length:
        every = followed(context, context[-length:], 4, len(context) - 1)
        assert sorted(match.continuations) == sorted(every[-MAX_MATCHES:])


def test_nothing_is_found_in_an_empty_store() -> None:
    static = StaticTokens(np.array([], np.uint32), np.array([], np.uint32))
    assert static.match("abc", 4) == NO_MATCH == earlier_match("a", 4)


@pytest.mark.parametrize(
    ("continuations", "least_share", "expected"),
    [
        (["abc", "abd", "xyz"], 0.5, "ab"),
        (["abc", "abd", "xyz"], 0.0, "abc"),
        (["abc", "abd", "xyz"], 0.7, ""),
        (["ab", "abc"], 0.5, "abc"),
        (["", ""], 0.0, ""),
        ([], 0.0, ""),
    ],
)
def test_few_agree_ends_it(continuations: list[str], least_share: float, expected: str) -> None:
    assert agreed(continuations, 8, least_share) == [ord(token) for token in expected]
    assert agreed(continuations, 1, least_share) == [ord(token) for token in expected[:1]]
