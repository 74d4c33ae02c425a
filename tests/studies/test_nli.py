"""Data for the entailment model of the demo language."""

import pytest

from semspec.clustering.nli import EntailmentConfig, NliModel, PairFormat
from semspec.demo.documents import DELIMITER
from semspec.demo.meaning import Proposition
from semspec.demo.problems import make_problem
from semspec.demo.wording import read
from studies.nli.data import CONTRADICTION, ENTAILMENT, NEUTRAL, pairs, relation
from studies.nli.train import COURSE, WINDOW, Examples, build_nli_model, build_nli_tokenizer

pytestmark = pytest.mark.slow
CHANGE = Proposition("change", (2, "Tom", "pens", "+", 4, 25, 29))
SWAP = Proposition("swap", (2, "a", "c", "a1 b2 c3 d4"))


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


def test_training_sees_pairs_as_clustering_does() -> None:
    tokenizer = build_nli_tokenizer()
    model = NliModel(build_nli_model(tokenizer), tokenizer, EntailmentConfig(model="tiny", device="cpu"))
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
