"""Data for probes of the demo language: its questions, and the exact parser as ground truth."""

from semspec.clustering.equivalence import Alternatives
from semspec.demo.documents import DELIMITER, write_document
from semspec.demo.probe_data import ParserEquivalence, is_right, questions
from semspec.demo.problems import SPLITS, make_problem
from semspec.demo.wording import DRAFT_AUTHOR, TARGET_AUTHOR


def test_questions_are_those_of_the_domain_with_the_seed_as_id() -> None:
    for domain in ("ledger", "boxes"):
        rows = [row for row, _ in zip(questions("tune", [domain], skip=10), range(20), strict=False)]
        seeds = [int(row["id"]) for row in rows]
        assert seeds[0] >= SPLITS["tune"][10] and len(set(seeds)) == 20
        assert all(make_problem(seed).domain == domain for seed in seeds)
        assert [row["question"] for row in rows] == [make_problem(seed).question for seed in seeds]


def test_right_steps_are_right_and_wordings_of_one_step_are_one_cluster() -> None:
    verdicts = []
    for seed in range(40):
        document, other = write_document(seed, TARGET_AUTHOR), write_document(seed + 1, DRAFT_AUTHOR)
        said = ""
        for text in document.segments:
            group = Alternatives(
                str(seed), document.problem.question, said, (text + DELIMITER, text, other.segments[-1])
            )
            assert ParserEquivalence().clusters([group])[0][:2] == [0, 0]
            verdicts.append(is_right(str(seed), said, text + DELIMITER))
            said += text + DELIMITER
        assert ParserEquivalence().clusters([group]) == [[0, 0, 1]]
    assert set(verdicts) == {True, False} and verdicts.count(True) > 0.9 * len(verdicts)  # some are slips of the author
