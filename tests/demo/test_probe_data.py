"""Data for probes of the demo language: its questions, and the exact parser as ground truth."""

from collections import Counter

from semspec.clustering.equivalence import Alternatives
from semspec.engine.segmentation import cut
from semspec.types import Segmentation
from semspec_demo.documents import DELIMITER, write_document
from semspec_demo.probe_data import ParserEquivalence, is_right, questions
from semspec_demo.problems import NUM_STYLES, SPLITS, make_problem


def test_questions_are_those_of_the_style_with_the_seed_as_id() -> None:
    for style in range(NUM_STYLES):
        rows = [row for row, _ in zip(questions("tune", [style], skip=10), range(20), strict=False)]
        seeds = [int(row["id"]) for row in rows]
        assert seeds[0] >= SPLITS["tune"][10] and len(set(seeds)) == 20
        assert all(make_problem(seed).style == style for seed in seeds)
        assert [row["question"] for row in rows] == [make_problem(seed).question for seed in seeds]


def test_right_steps_are_right_and_wordings_of_one_step_are_one_cluster() -> None:
    """A sentence is read with those before it in its paragraph; behind a wrong one of these nothing is known."""
    seen = Counter[tuple[int, bool | None]]()
    for seed in range(40):
        (document, other), said = map(write_document, (seed, seed + 1)), ""
        for text in document.segments:
            group = Alternatives(
                "", document.problem.question, said, (text + DELIMITER, text, other.segments[0])
            )
            assert ParserEquivalence().clusters([group])[0][:2] == [0, 0]
            whole = is_right(str(seed), said, text + DELIMITER)
            found = list[bool | None]()
            begun = said.rstrip("\n")
            for sentence in cut(DELIMITER * bool(said) + text, Segmentation.SENTENCE):
                found.append(is_right(str(seed), begun, sentence))
                same = Alternatives(
                    "", document.problem.question, begun, (sentence, f"{sentence} ", "\n\nSo.")
                )
                assert ParserEquivalence().clusters([same]) == [[0, 0, 1]]
                begun += sentence
            right = found.index(False) if False in found else len(found)
            assert found == [True] * right + [False] * (not whole) + [None] * (
                len(found) - right - 1
            )
            seen[len(found), whole] += 1
            said += text + DELIMITER
        assert ParserEquivalence().clusters([group]) == [[0, 0, 1]]
    assert {(1, True), (2, True), (3, True), (3, False)} <= seen.keys()
    assert (
        sum(n for (_, whole), n in seen.items() if whole) > 0.8 * seen.total()
    )  # some are slips of the author
