"""Answers that the datastore learns while it serves."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semspec.retrieval.learned import SHORTEST_MATCH, LearnedAnswers
from semspec.retrieval.ngrams import LONGEST_MATCH, MAX_MATCHES, NO_MATCH

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
answers = st.lists(st.text("ab", min_size=1, max_size=40), min_size=1, max_size=6)


def following(kept: list[str], ngram: str, num_tokens: int) -> list[str]:
    """What follows each place of `ngram` before the end of an answer."""
    places = ((one, start + len(ngram)) for one in kept for start in range(len(one)) if one.startswith(ngram, start))
    return [one[place : place + num_tokens] for one, place in places if place < len(one)]


@patient
@given(answers, st.text("ab", max_size=30))
def test_match_is_the_longest_in_the_answers_that_fit(texts: list[str], context: str) -> None:
    learned = LearnedAnswers(80)
    kept: list[str] = []
    for number, text in enumerate(texts):
        learned.learn(number, text)
        kept.append(text)
        while sum(map(len, kept)) > 80:
            kept.pop(0)
        assert learned.num_tokens == sum(map(len, kept))
    match = learned.match(context, 4)
    lengths = range(min(LONGEST_MATCH, len(context)), SHORTEST_MATCH - 1, -1)
    assert match.length == next((n for n in lengths if following(kept, context[-n:], 4)), 0)
    if match.length:
        every = following(kept, context[-match.length :], 4)
        assert set(match.continuations) <= set(every) and 1 <= len(match.continuations) <= MAX_MATCHES


@patient
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.text("abc", min_size=3, max_size=60))
def test_answer_that_grows_equals_one_learned_at_once(steps: list[int], text: str) -> None:
    growing, whole = LearnedAnswers(100), LearnedAnswers(100)
    ends = [sum(steps[: index + 1]) for index in range(len(steps))]
    for end in ends:
        growing.learn("one", text[:end])
        growing.learn("one", text[:end])
    whole.learn("one", text[: ends[-1]])
    assert growing.num_tokens == whole.num_tokens
    for start in range(len(text)):
        assert growing.match(text[start : start + 5], 3) == whole.match(text[start : start + 5], 3)


def test_answer_that_grew_least_recently_is_dropped_first() -> None:
    learned = LearnedAnswers(12)
    learned.learn("a", "abcde")
    learned.learn("b", "uvwx")
    learned.learn("a", "abcdef")
    learned.learn("c", "mnop")
    assert learned.match("uvw", 4) == NO_MATCH
    assert learned.match("abc", 4).continuations == ("def",)
    assert learned.match("mno", 4).continuations == ("p",)
    assert learned.num_tokens == 10


def test_nothing_is_left_of_what_was_dropped() -> None:
    learned = LearnedAnswers(40)
    for number in range(200):
        learned.learn(number, chr(1000 + number) * 20)
    assert learned.num_tokens == 40
    assert len(learned._places) == len(learned._growing) == len(learned._answers) == 2


def test_other_draws_of_a_generation_are_another_answer() -> None:
    learned = LearnedAnswers(100)
    learned.learn("a", "abcde")
    learned.learn("a", "abcxy")
    assert learned.match("abc", 2).continuations == ("xy", "de")
    learned.learn("a", "abcxyz")
    assert learned.num_tokens == 11


def test_answer_longer_than_the_bound_is_learned_up_to_there() -> None:
    learned = LearnedAnswers(6)
    learned.learn("a", "abcde")
    learned.learn("a", "abcdefgh")
    assert learned.match("abc", 9).continuations == ("de",) and learned.num_tokens == 5
