"""The language in two domains: what is written can be read back, mistakes are wrong and keep their place, and the
tokenizer has what the strategies need."""

import pytest
from transformers import PreTrainedTokenizerFast

from semspec.decoding.spec_reason import DIGITS, PREFILL, QUESTION
from semspec.demo.documents import begin, replay, write_document
from semspec.demo.meaning import Proposition, has_its_place, is_right_now
from semspec.demo.problems import SPLITS, make_problem
from semspec.demo.tokenizer import build_tokenizer
from semspec.demo.wording import DRAFT_AUTHOR, TARGET_AUTHOR, Author, read
from semspec.engine.conversation import option_ids, turn_after

pytestmark = pytest.mark.slow
SEEDS = range(0, 60)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.mark.parametrize("author", [TARGET_AUTHOR, DRAFT_AUTHOR])
def test_every_step_written_is_read_back_and_has_its_place(author: Author) -> None:
    for seed in SEEDS:
        document = write_document(seed, author)
        for meaning, text in zip(document.meanings, document.segments, strict=True):
            assert read(text, document.problem.last) == meaning
        assert replay(document.problem, document.meanings) is not None


@pytest.mark.parametrize("domain", ["ledger", "boxes"])
def test_steps_without_mistakes_lead_to_the_answer_and_mistakes_are_wrong(domain: str) -> None:
    for seed in SEEDS:
        problem = make_problem(seed)
        if problem.domain != domain:
            continue
        solution = begin(problem)
        while not solution.is_over:
            options = solution.options()
            assert sum(options.values()) == pytest.approx(1)
            for option in options:
                mistakes = solution.mistakes(option)
                for wrong in (*mistakes.gross, *mistakes.near):
                    assert has_its_place(solution, wrong) and not is_right_now(solution, wrong)
            step = max(options, key=options.__getitem__)
            solution.advance(step)
        assert step == Proposition("answer", (problem.answer,))


def test_held_out_splits_share_no_question() -> None:
    questions = [{make_problem(seed).question for seed in SPLITS[name][:3000]} for name in ("probe", "tune", "report")]
    assert len(set.union(*questions)) == sum(map(len, questions))


def test_end_of_a_segment_is_one_token_and_any_text_survives(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer.encode(".\n\n")) == 1
    for text in ("Größe ≠ 12\n\n\n <b>🙂", write_document(1, TARGET_AUTHOR).solution):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("1234")) == 4


def test_template_keeps_turns_and_steps_can_be_graded(tokenizer: PreTrainedTokenizerFast) -> None:
    turns = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "<think>\n\nB</think>\nC"}]
    rendered = tokenizer.apply_chat_template([*turns, turns[0]], tokenize=False, add_generation_prompt=True)
    assert "<think>\n\nB</think>\nC" in str(rendered)
    assert turn_after(tokenizer, QUESTION, PREFILL) and len(set(option_ids(tokenizer, DIGITS))) == 10
