"""The demo language: what is written can be read back, what is stated is right, and several things may be right."""

import random
from itertools import combinations

import pytest

from semspec.demo.documents import write_document
from semspec.demo.meaning import Proposition, is_valid, valid_next
from semspec.demo.problems import SPLITS, make_problem
from semspec.demo.tokenizer import build_tokenizer
from semspec.demo.wording import DRAFT_AUTHOR, TARGET_AUTHOR, read

SEEDS = range(0, 300)


def test_splits_share_no_seed_and_held_out_ones_no_problem() -> None:
    for first, second in combinations(SPLITS.values(), 2):
        assert first.stop <= second.start or second.stop <= first.start
    questions = {
        name: {make_problem(seed).question for seed in SPLITS[name][:3000]} for name in ("probe", "tune", "report")
    }
    for one, two in combinations(questions.values(), 2):
        assert not one & two


@pytest.mark.parametrize("author", [TARGET_AUTHOR, DRAFT_AUTHOR])
def test_every_step_written_is_read_back_and_valid(author: object) -> None:
    for seed in SEEDS:
        document = write_document(seed, author)  # type: ignore[arg-type]
        last_day = len(document.problem.events)
        history: list[Proposition] = []
        for meaning, text in zip(document.meanings, document.segments, strict=True):
            assert read(text, last_day) == meaning
            assert is_valid(document.problem, history, meaning)
            history.append(meaning)
        assert history[-1] == Proposition("answer", (document.problem.answer,))


def test_weights_of_valid_steps_are_a_distribution_often_over_several_meanings() -> None:
    num_choices = []
    for seed in SEEDS:
        document = write_document(seed, TARGET_AUTHOR)
        for position in range(len(document.meanings)):
            weights = valid_next(document.problem, list(document.meanings[:position]))
            assert sum(weights.values()) == pytest.approx(1)
            num_choices.append(len(weights))
    assert sum(n > 1 for n in num_choices) / len(num_choices) > 0.6


def test_wrong_step_is_invalid_and_unreadable_history_undecided() -> None:
    problem = make_problem(3)
    right = valid_next(problem, [])
    wrong = Proposition("start", (problem.item, problem.start + 1))
    assert wrong not in right and is_valid(problem, [], wrong) is False
    assert is_valid(problem, [read("gibberish", 3)], wrong) is None
    assert is_valid(problem, [Proposition("answer", (1,))], wrong) is None


def test_step_that_contradicts_itself_is_unreadable() -> None:
    text = "On day 2, Tom gains 4 more pens, so the count is 34 + 5 = 39."
    assert read(text, 3).kind == "unreadable"
    assert read(text.replace("+ 5", "+ 4"), 3).kind == "change"


def test_any_split_of_a_due_change_is_valid() -> None:
    for seed in SEEDS:
        problem = make_problem(seed)
        started = [Proposition("start", (problem.item, problem.start))]
        for step in valid_next(problem, started):
            if step.kind == "change" and isinstance(delta := step.values[4], int) and delta > 2:
                day, name, item, operator, _, before, _ = step.values
                after = int(before) + (1 if operator == "+" else -1)
                assert is_valid(
                    problem, started, Proposition("part", (day, name, item, operator, delta, 1, before, after))
                )


def test_authors_prefer_different_words_for_the_same_meaning() -> None:
    meaning = Proposition("change", (2, "Tom", "pens", "+", 4, 30, 34))
    wordings = [
        {author.write(meaning, random.Random(i)).split(",")[0] for i in range(6)}
        for author in (TARGET_AUTHOR, DRAFT_AUTHOR)
    ]
    assert wordings[0] != wordings[1]


def test_tokenizer_is_lossless_and_knows_every_word() -> None:
    tokenizer = build_tokenizer()
    for seed in SEEDS:
        document = write_document(seed, DRAFT_AUTHOR)
        text = document.prompt + document.solution
        ids = tokenizer.encode(text)
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text


def test_wrong_result_is_followed_and_step_out_of_place_is_not() -> None:
    problem = make_problem(3)
    start = Proposition("start", (problem.item, problem.start))
    wrong_start = Proposition("start", (problem.item, problem.start + 20))
    [day] = [i for i, event in enumerate(problem.events, 1) if event.operator][:1]
    after_wrong = [step for step in valid_next(problem, [wrong_start]) if step.kind == "change"]
    assert after_wrong and after_wrong[0].values[5] == problem.start + 20
    out_of_place = Proposition("recap", (day, problem.item, 1))
    assert is_valid(problem, [start, out_of_place], after_wrong[0]) is None
