"""The demo language: what is written is read back, truth is what the facts say, texts teach what they should, and the
tokenizer has what the strategies need."""

import math
import random
from collections import Counter

import pytest
from scipy.stats import chisquare

from semspec_demo.documents import replay, write_document
from semspec_demo.problems import NUM_STYLES, SPLITS, facts_of, make_problem
from semspec_demo.reading import read
from semspec_demo.solutions import UNREADABLE, Solution, Step
from semspec_demo.wording import Writer
from tests.demo.solver import solve

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("style", range(NUM_STYLES))
def test_written_steps_are_read_back(style: int) -> None:
    for seed in range(60):
        document = write_document(seed, style, planted=0.3)
        for step, segment, holder in zip(
            document.steps, document.segments, document.holders, strict=True
        ):
            assert read(segment, document.problem.facts, holder) == step, segment
        assert replay(document.problem.facts, document.solution) is not None


def test_right_steps_lead_to_the_answer_and_mistakes_are_wrong() -> None:
    for seed in range(60):
        problem, rng = make_problem(seed), random.Random(seed)
        solution = Solution(problem.facts)
        while not solution.is_over:
            options = solution.options(care=1.0)
            step = rng.choice(list(options))
            assert sum(options.values()) == pytest.approx(1)
            assert all(solution.is_right(one) for one in options)
            assert not any(solution.is_right(wrong) for wrong in solution.mistakes(step))
            assert solution.advance(step)
        assert step == Step((("answer", problem.answer),))


def test_a_correction_puts_the_ball_back() -> None:
    problem = make_problem(3)
    solution, facts = Solution(problem.facts), problem.facts
    right = ("move", facts.rounds[0], facts.after(facts.start, facts.rounds[0]))
    wrong = Step((("move", facts.rounds[0], facts.start),))
    correction = Step((right,), corrects=True)
    assert solution.advance(Step((("start", facts.start),))) and not solution.is_right(correction)
    assert solution.advance(wrong) and solution.is_right(correction)
    assert solution.advance(correction) and solution.holder == right[2] and solution.pending is None


@pytest.mark.parametrize(
    "text", ["", "So.", "Perhaps Ivy has it.", "So Ivy has the ball", "So ivy has it. So. So."]
)
def test_text_outside_the_grammar_is_unreadable(text: str) -> None:
    assert read(text, make_problem(1).facts, 0) == UNREADABLE


def test_log_probability_is_that_of_the_form_chosen() -> None:
    """The frequency of each form of a meaning is its probability: chi-square over 4,000 steps."""
    problem, count = make_problem(5, 2), 4000
    step, found = Step((("start", problem.facts.start),)), dict[str, float]()
    written: Counter[str] = Counter()
    for seed in range(count):
        writer = Writer(problem, random.Random(seed))
        text = writer.write(step, None)
        found[text] = writer.log_probability
        written[text] += 1
    expected = {
        text: count * math.exp(nats) for text, nats in found.items() if count * math.exp(nats) >= 20
    }
    observed = [written[text] for text in expected]
    rest = count - sum(observed), count - sum(expected.values())
    assert len(expected) >= 5
    assert chisquare([*observed, rest[0]], [*expected.values(), rest[1]]).pvalue > 0.001


def test_question_tells_its_facts() -> None:
    for problem in map(make_problem, range(200)):
        facts = facts_of(problem.question)
        assert facts is not None and facts.answer == problem.answer == solve(problem.question)
        assert facts_of(problem.question.replace(" passes to ", " hands to ", 1)) is None
    assert facts_of("What is the capital of France?") is None


def test_held_out_splits_share_no_question() -> None:
    questions = [
        {make_problem(seed).question for seed in SPLITS[name][:3000]}
        for name in ("probe", "tune", "report")
    ]
    assert len(set.union(*questions)) == sum(map(len, questions))
