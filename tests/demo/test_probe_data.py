"""Data for probes of the demo language: its questions, and the exact parser as ground truth."""

from semspec.clustering.equivalence import Alternatives
from semspec.demo.documents import DELIMITER, write_document
from semspec.demo.probe_data import ParserEquivalence, is_right, questions
from semspec.demo.problems import NUM_STYLES, SPLITS, make_problem


def test_questions_are_those_of_the_style_with_the_seed_as_id() -> None:
    for style in range(NUM_STYLES):
        rows = [row for row, _ in zip(questions("tune", [style], skip=10), range(20), strict=False)]
        seeds = [int(row["id"]) for row in rows]
        assert seeds[0] >= SPLITS["tune"][10] and len(set(seeds)) == 20
        assert all(make_problem(seed).style == style for seed in seeds)
        assert [row["question"] for row in rows] == [make_problem(seed).question for seed in seeds]


def test_right_steps_are_right_and_wordings_of_one_step_are_one_cluster() -> None:
    verdicts = []
    for seed in range(40):
        document, other = write_document(seed), write_document(seed + 1)
        said = ""
        for text in document.segments:
            group = Alternatives("", document.problem.question, said, (text + DELIMITER, text, other.segments[0]))
            assert ParserEquivalence().clusters([group])[0][:2] == [0, 0]
            verdicts.append(is_right(str(seed), said, text + DELIMITER))
            said += text + DELIMITER
        assert ParserEquivalence().clusters([group]) == [[0, 0, 1]]
    assert set(verdicts) == {True, False} and verdicts.count(True) > 0.8 * len(verdicts)  # some are slips of the author


def test_steps_about_another_question_have_no_known_meaning() -> None:
    assert ParserEquivalence().clusters([Alternatives("", "Who has it?", "", ("So it is.", "So."))]) == [[None, None]]
