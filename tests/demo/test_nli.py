"""Data for probes and for the entailment model of the harder language."""

import pytest

from semspec.clustering.equivalence import Alternatives
from semspec.clustering.nli import NliConfig, NliModel, PairFormat
from semspec.demo.documents import DELIMITER, write_document
from semspec.demo.meaning import Proposition
from semspec.demo.nli_data import CONTRADICTION, ENTAILMENT, NEUTRAL, pairs, relation
from semspec.demo.probe_data import ParserEquivalence, is_right, questions
from semspec.demo.problems import SPLITS, make_problem
from semspec.demo.train_nli import COURSE, WINDOW, Examples, build_nli_model, build_nli_tokenizer
from semspec.demo.wording import DRAFT_AUTHOR, TARGET_AUTHOR, read

CHANGE = Proposition("change", (2, "Tom", "pens", "+", 4, 25, 29))
SWAP = Proposition("swap", (2, "a", "c", "a1 b2 c3 d4"))


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


@pytest.mark.parametrize(
    ("premise", "hypothesis", "forward", "backward"),
    [
        (CHANGE, CHANGE, ENTAILMENT, ENTAILMENT),
        (CHANGE, Proposition("recap", (2, "pens", 29)), ENTAILMENT, NEUTRAL),
        (Proposition("skip", (2, 3)), Proposition("skip", (3, 3)), ENTAILMENT, CONTRADICTION),
        (CHANGE, Proposition("change", (2, "Tom", "pens", "+", 4, 25, 28)), CONTRADICTION, CONTRADICTION),
        (CHANGE, Proposition("done", (4,)), NEUTRAL, NEUTRAL),
        (SWAP, Proposition("look", ("c", 3)), ENTAILMENT, NEUTRAL),
        (SWAP, Proposition("look", ("c", 4)), NEUTRAL, NEUTRAL),
        (SWAP, Proposition("swap", (2, "a", "c", "a1 b2 c4 d3")), CONTRADICTION, CONTRADICTION),
        (Proposition("unreadable", ("a",)), Proposition("unreadable", ("a",)), NEUTRAL, NEUTRAL),
    ],
)
def test_relation(premise: Proposition, hypothesis: Proposition, forward: int, backward: int) -> None:
    assert (relation(premise, hypothesis), relation(hypothesis, premise)) == (forward, backward)


def test_pairs_carry_the_meaning_the_parser_reads_and_no_held_out_question() -> None:
    labels = set()
    for seed in range(60):
        for pair in pairs(seed, contextual=0.0):
            for step in (pair.premise, pair.hypothesis):
                assert read(step.text, make_problem(seed).last) == step.meaning
                assert all(step.text[start:end] == str(step.stated[name]) for start, end, name in step.fields)
            labels.add(pair.label)
    assert labels == {CONTRADICTION, NEUTRAL, ENTAILMENT}
    [first, *_] = pairs(7, contextual=1.0)
    question = first.context.split(DELIMITER)[0]
    assert all(pair.context.split(DELIMITER)[0] != question for pair in pairs(7, contextual=1.0, held_out={question}))


@pytest.mark.slow
def test_training_sees_pairs_as_clustering_does() -> None:
    tokenizer = build_nli_tokenizer()
    model = NliModel(build_nli_model(tokenizer), tokenizer, NliConfig(model="tiny", device="cpu"))
    examples, joined = Examples(tokenizer, COURSE), PairFormat.of(tokenizer)
    lengths = set()
    for seed in range(20):
        for pair in pairs(seed, contextual=0.5):
            example = examples.example(pair)
            premise, hypothesis = model.encode(pair.context, [pair.premise.text, pair.hypothesis.text])
            assert premise and hypothesis
            assert (example.ids, example.types) == joined.join((premise, hypothesis))
            lengths.add(len(example.ids))
    assert WINDOW // 2 < max(lengths) <= WINDOW and min(lengths) < WINDOW // 2
