"""The demo language: what is written is read back, truth is what the facts say, texts teach what they should, and the
tokenizer has what the strategies need."""

import json
import math
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from jsonschema import validate  # type: ignore[import-untyped]
from scipy.stats import chisquare

from semspec.engine.conversation import tools_flaw
from semspec_bench.spec_reason import DIGITS
from semspec_demo.documents import replay, write_document
from semspec_demo.problems import NUM_STYLES, SPLITS, facts_of, make_problem
from semspec_demo.reading import read
from semspec_demo.solutions import UNREADABLE, Solution, Step
from semspec_demo.tokenizer import build_tokenizer
from semspec_demo.wording import Writer, number_forms
from studies.pair.chats import write_chat
from studies.pair.gates import grading_ids
from studies.pair.training_texts import NUM_HOPS, Text, Texts
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


def test_mistakes_stand_where_the_author_does_not_care() -> None:
    for seed in range(20):
        steps = (
            write_document(seed, planted=0.4).steps,
            write_document(seed, planted=0.4, care=0.0).steps,
        )
        assert [any(step.corrects for step in some) for some in steps] == [True, False]


def test_a_style_changes_the_wording_and_nothing_else() -> None:
    problems = [make_problem(7, style) for style in range(NUM_STYLES)]
    assert len({problem.facts for problem in problems}) == 1
    assert (
        len({problem.question.removeprefix(f"Style {problem.style}.") for problem in problems}) == 1
    )
    nats = [
        -sum(write_document(seed, style).log_probability for seed in range(60))
        for style in range(NUM_STYLES)
    ]
    assert nats[0] == 0 and all(1.4 * low < high for low, high in pairwise(nats[1:]))


def test_right_steps_lead_to_the_answer_and_mistakes_are_wrong() -> None:
    for seed in range(60):
        problem, rng = make_problem(seed), random.Random(seed)
        solution = Solution(problem.facts)
        while not solution.is_over:
            options = solution.options(care=1.0)
            step = rng.choice(list(options))
            assert sum(options.values()) == pytest.approx(1) and all(
                solution.is_right(one) for one in options
            )
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


def test_hops_stand_where_the_end_of_a_move_is_predicted() -> None:
    """Where single claims are learnt always; in a chat an author errs in 5% of its steps, and the way is right."""
    texts = Texts(build_tokenizer())

    def ends(text: Text) -> list[bool]:
        places = [(place, way) for place, way in text.hops if text.ids[place + 1] in texts.people]
        assert all(1 <= len(way) <= NUM_HOPS for _, way in places)
        return [text.ids[place + 1] == way[-1] for place, way in places]

    for kind in ("passes", "claims"):
        drills = [texts.text(kind, seed, NUM_HOPS, random.Random(seed)) for seed in range(30)]
        assert all(
            all(ends(drill)) and len({tuple(way) for _, way in drill.hops}) == len(drill.hops)
            for drill in drills
        )  # no two alike
    hits = [hit for seed in range(60) for hit in ends(texts.chat(seed, random.Random(seed)))]
    assert len(hits) > 60 and 0.95 < sum(hits) / len(hits) < 1


@pytest.mark.parametrize("kind", ["look-ups", "numbers"])
def test_look_ups_are_learnt_by_their_numbers(kind: str) -> None:
    tokenizer, cards = build_tokenizer(), make_problem(3, 0).facts.cards
    text = Texts(tokenizer).text(kind, 3, 1, random.Random(3))
    learnt = tokenizer.decode([label for label in text.labels if label >= 0]).split(".")[:-1]
    forms = {form for one in cards for form in number_forms(one)[: 1 if kind == "look-ups" else 3]}
    assert len(learnt) == 2 * len(cards) and {form.strip() for form in learnt} <= forms
    assert "passes to" not in tokenizer.decode(text.ids)


def test_what_the_draft_wrote_is_gone_on_from(tmp_path: Path) -> None:
    tokenizer, document = build_tokenizer(), write_document(9_000_005, planted=0.3, care=0.0)
    (file := tmp_path / "drafts.jsonl").write_text(
        json.dumps([document.problem.seed, document.segments])
    )
    text = Texts(tokenizer, file).text("drafts", 0, 0, random.Random(4))
    learnt = tokenizer.decode([label for label in text.labels if label >= 0])
    said = tokenizer.decode(text.ids).split("<think>\n\n")[1].removesuffix(learnt)
    assert (
        said and document.solution.startswith(said) and learnt.endswith(f"}}.{tokenizer.eos_token}")
    )


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
    assert (
        len(expected) >= 5
        and chisquare([*observed, rest[0]], [*expected.values(), rest[1]]).pvalue > 0.001
    )


def test_question_tells_its_facts() -> None:
    for problem in map(make_problem, range(200)):
        facts = facts_of(problem.question)
        assert facts is not None and facts.answer == problem.answer == solve(problem.question)
        assert facts_of(problem.question.replace(" passes to ", " hands to ", 1)) is None
    assert facts_of("What is the capital of France?") is None


def test_grades_tell_right_steps_from_wrong_ones() -> None:
    tokenizer, grades = build_tokenizer(), Counter[bool]()
    for seed in range(60):
        document = write_document(seed, planted=0.5)
        text = Texts(tokenizer).graded(
            document.problem, document.segments[:-1], random.Random(seed)
        )
        [grade] = [int(tokenizer.decode([label])) for label in text.labels if label >= 0]
        shown = tokenizer.decode(text.ids).split("<think>\n\n")[1].split("<|im_end|>")[0]
        said, _, last = shown.removesuffix("\n\n").rpartition("\n\n")
        solution = replay(make_problem(seed).facts, said)
        assert solution is not None
        assert solution.is_right(read(last, solution.facts, solution.holder)) is (grade > 4)
        grades[grade > 4] += 1
    assert min(grades[True], grades[False]) > 10


def test_held_out_splits_share_no_question() -> None:
    questions = [
        {make_problem(seed).question for seed in SPLITS[name][:3000]}
        for name in ("probe", "tune", "report")
    ]
    assert len(set.union(*questions)) == sum(map(len, questions))


def test_end_of_a_segment_is_one_token_and_any_text_survives() -> None:
    tokenizer = build_tokenizer()
    assert len(tokenizer.encode(".\n\n")) == 1
    for text in ("Größe ≠ 12\n\n\n <b>🙂", write_document(1).solution):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("1234")) == 4


def test_template_keeps_turns_and_steps_can_be_graded() -> None:
    tokenizer = build_tokenizer()
    turns = [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "<think>\n\nB</think>\nC"},
    ]
    rendered = tokenizer.apply_chat_template(
        [*turns, turns[0]], tokenize=False, add_generation_prompt=True
    )
    assert "<think>\n\nB</think>\nC" in str(rendered)
    assert grading_ids(tokenizer)
    assert [len(tokenizer.encode(digit)) for digit in DIGITS] == [1] * 10


def test_chats_keep_to_their_schemas_and_their_template_shows_tools() -> None:
    tokenizer, seen = build_tokenizer(), Counter[str]()
    assert tools_flaw(tokenizer, str(tokenizer.chat_template)) == ""
    for seed in range(300):
        chat = write_chat(seed, random.Random(seed))
        *_, said = chat.answer.split("</think>\n")
        if " Answer in JSON: " in chat.messages[0]["content"]:
            schema = chat.messages[0]["content"].split(" Answer in JSON: ")[1]
            validate(json.loads(said), json.loads(schema))
            seen["json"] += 1
        elif said.startswith("<tool_call>"):
            call = json.loads(said.split("\n")[1])
            [function] = [tool["function"] for tool in chat.tools]
            assert call["name"] == function["name"]
            validate(call["arguments"], function["parameters"])
            seen["call"] += 1
        turns, tools = list(chat.messages), list(chat.tools) or None
        prompt = str(
            tokenizer.apply_chat_template(turns, tools, tokenize=False, add_generation_prompt=True)
        )
        assert all(json.dumps(tool["function"]) in prompt for tool in chat.tools)
        assert all(str(message["content"]) in prompt for message in chat.messages)
    assert min(seen["json"], seen["call"]) > 20
