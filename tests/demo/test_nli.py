"""The bundled NLI model: small, made for pairs of steps, and in agreement with the parser."""

import random
from pathlib import Path

import pytest
from sklearn.metrics import adjusted_rand_score

from semspec.demo.documents import DELIMITER, write_document
from semspec.demo.meaning import Proposition, valid_next
from semspec.demo.nli_data import AUTHORS, CONTRADICTION, ENTAILMENT, NEUTRAL, pairs, relation, slip
from semspec.demo.probe_data import ParserEquivalence
from semspec.demo.problems import SPLITS
from semspec.demo.train_nli import COURSE, WINDOW, Examples, build_nli_tokenizer
from semspec.demo.wording import TARGET_AUTHOR, read
from semspec.engine.checkpoint import load_tokenizer
from semspec.training.clustering.entailment import EntailmentConfig, EntailmentEquivalence
from semspec.training.clustering.equivalence import Alternatives
from semspec.training.clustering.nli import NliConfig, NliModel, PairFormat

MODEL = Path("demo/nli")
CHANGE = Proposition("change", (2, "Tom", "pens", "+", 4, 25, 29))


def alternatives(seed: int) -> Alternatives:
    """A place in a solution, and what may be said there: rightly or with a slip, by either author."""
    rng = random.Random(seed)
    document = write_document(seed, TARGET_AUTHOR)
    place = rng.randrange(len(document.meanings))
    right = list(valid_next(document.problem, list(document.meanings[:place])))
    meanings = [*right, *(slip(step, rng) for step in right for _ in range(2))]
    segments = tuple(rng.choice(AUTHORS).write(rng.choice(meanings), rng) + DELIMITER for _ in range(12))
    reasoning = "".join(text + DELIMITER for text in document.segments[:place])
    return Alternatives(str(seed), document.problem.question, reasoning, segments)


def test_model_is_at_most_8_mebibytes() -> None:
    assert sum(path.stat().st_size for path in MODEL.rglob("*") if path.is_file()) <= 8 << 20


def test_clusters_agree_with_the_parser() -> None:
    groups = [alternatives(seed) for seed in SPLITS["tune"][200:240]]
    truths = ParserEquivalence().clusters(groups)
    config = EntailmentConfig(model=str(MODEL), device="cpu", with_context=False)  # it learned other contexts
    equivalence = EntailmentEquivalence.load(config, max_segment_tokens=64)
    scores = [adjusted_rand_score(*both) for both in zip(truths, equivalence.clusters(groups), strict=True)]
    assert sum(max(truth) for truth in truths) > 2 * len(groups)
    assert sum(scores) / len(scores) >= 0.95


def test_tokenizer_beside_the_model_is_the_one_it_learned_with() -> None:
    assert load_tokenizer(str(MODEL)).get_vocab() == build_nli_tokenizer().get_vocab()


def test_training_sees_pairs_as_clustering_does() -> None:
    model, tokenizer = NliModel.load(NliConfig(model=str(MODEL), device="cpu")), build_nli_tokenizer()
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


@pytest.mark.parametrize(
    ("premise", "hypothesis", "forward", "backward"),
    [
        (CHANGE, CHANGE, ENTAILMENT, ENTAILMENT),
        (CHANGE, Proposition("recap", (2, "pens", 29)), ENTAILMENT, NEUTRAL),
        (Proposition("skip", (2, 3)), Proposition("skip", (3, 3)), ENTAILMENT, CONTRADICTION),
        (CHANGE, Proposition("change", (2, "Tom", "pens", "+", 4, 25, 28)), CONTRADICTION, CONTRADICTION),
        (CHANGE, Proposition("change", (2, "Ivy", "pens", "+", 4, 25, 29)), NEUTRAL, NEUTRAL),
        (CHANGE, Proposition("done", (4,)), NEUTRAL, NEUTRAL),
        (Proposition("unreadable", ("a",)), Proposition("unreadable", ("a",)), NEUTRAL, NEUTRAL),
    ],
)
def test_relation(premise: Proposition, hypothesis: Proposition, forward: int, backward: int) -> None:
    assert (relation(premise, hypothesis), relation(hypothesis, premise)) == (forward, backward)


def test_pairs_carry_the_meaning_the_parser_reads_and_no_held_out_question() -> None:
    labels = set()
    for seed in range(60):
        num_days = len(write_document(seed, TARGET_AUTHOR).problem.events)
        for pair in pairs(seed, contextual=0.0):
            for step in (pair.premise, pair.hypothesis):
                assert read(step.text, num_days) == step.meaning
                assert all(step.text[start:end] == str(step.stated[name]) for start, end, name in step.fields)
            labels.add(pair.label)
    assert labels == {CONTRADICTION, NEUTRAL, ENTAILMENT}
    [first, *_] = pairs(7, contextual=1.0)
    question = first.context.split(DELIMITER)[0]
    assert all(pair.context.split(DELIMITER)[0] != question for pair in pairs(7, contextual=1.0, held_out={question}))
