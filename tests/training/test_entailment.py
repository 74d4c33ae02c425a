"""Clusters by bidirectional entailment: the model's inputs, the definition of a cluster, and what it costs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    DebertaConfig,
    DebertaForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from semspec.clustering.entailment import EntailmentEquivalence
from semspec.clustering.nli import EntailmentConfig, NliModel, find_label
from semspec.errors import Mismatch
from tests.training.support import FakeJudge, group

MNLI = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}
WORDS = "one two three four five six seven eight nine ten".split()
SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "pooler_hidden_size": 16,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
    "max_position_embeddings": 32,
}


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {
        word: index for index, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *WORDS])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )


def tiny_model(kind: str, labels: dict[int, str] = MNLI) -> PreTrainedModel:
    names = {"id2label": labels, "label2id": {name: index for index, name in labels.items()}}
    if kind == "v1":
        model: PreTrainedModel = DebertaForSequenceClassification(DebertaConfig(**SIZES, **names))
    else:
        config = DebertaV2Config(
            **SIZES, **names, type_vocab_size=2, position_buckets=8, norm_rel_ebd="layer_norm"
        )
        model = DebertaV2ForSequenceClassification(config)
    torch.manual_seed(5)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.5)
    words, specials = torch.randint(4, 14, (64, 12)), {0: 1, 6: 2, 11: 2}
    for place, special in specials.items():
        words[:, place] = special
    types = torch.tensor([[0] * 7 + [1] * 5] * 64)
    with torch.no_grad():  # no label is the likeliest everywhere
        model.classifier.bias -= model.eval()(input_ids=words, token_type_ids=types).logits.mean(0)
    return model


def tiny(**settings: Any) -> NliModel:
    return NliModel(tiny_model("v2"), tiny_tokenizer(), EntailmentConfig(model="tiny", **settings))


def on_cpu(name: str, **settings: Any) -> EntailmentConfig:
    return EntailmentConfig(model=name, device="cpu", **settings)


def save_tiny(folder: Path, kind: str = "v2", labels: dict[int, str] = MNLI) -> str:
    tiny_model(kind, labels).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_verdict_is_the_models_own_in_batches_of_any_size(kind: str, tmp_path: Path) -> None:
    name = save_tiny(tmp_path, kind)
    tokenizer = tiny_tokenizer()
    reference = tiny_model(kind).eval()
    texts = [" ".join(WORDS[start : start + length]) for start in range(4) for length in (1, 3, 6)]
    wanted = []
    for premise, hypothesis in zip(texts, texts[::-1], strict=True):
        inputs = tokenizer(premise, hypothesis, return_tensors="pt", return_token_type_ids=True)
        wanted.append(MNLI[int(reference(**inputs).logits.argmax())] == "ENTAILMENT")
    assert len(set(wanted)) > 1
    for batch_size in (1, 5, 64):
        model = NliModel.load(on_cpu(name, batch_size=batch_size))
        sides = [side for side in model.encode("", texts) if side]
        assert model.judge(list(zip(sides, sides[::-1], strict=True))) == wanted


HALF = (32 - 3) // 2
"""Tokens of a side of the tiny model."""


def test_all_texts_of_a_group_follow_the_same_end_of_the_context() -> None:
    model = tiny(context_tokens=3)
    sides = model.encode("one " * 10_000 + "two three ", ["four", " ".join(["five"] * (HALF - 3))])
    assert sides == [(4, 5, 6, 7), (4, 5, 6, *[8] * (HALF - 3))]
    assert model.encode("two ", ["four"]) == [(5, 7)]
    assert tiny().encode("one " * 9, ["two"]) == [(4,) * (32 // 8) + (5,)]


def test_text_that_does_not_fit_is_not_truncated() -> None:
    model = tiny(context_tokens=3)
    tail = " ".join(["three"] * HALF)
    assert model.encode("one ", [f"one {tail}", f"two {tail}", "two"]) == [None, None, (4, 5)]
    fitting = " ".join(["two"] * (HALF - 2))
    assert model.encode("one ", [fitting]) == [None]
    assert model.encode("", [fitting]) == [(5,) * (HALF - 2)]


def test_long_texts_with_equal_ends_are_not_merged_but_counted(tmp_path: Path) -> None:
    equivalence = EntailmentEquivalence.load(on_cpu(save_tiny(tmp_path)))
    tail = " ".join(["three"] * HALF)
    segments = [f"one {tail}", "four", f"two {tail}", f"one {tail}", "four"]
    assert equivalence.clusters([group(*segments)]) == [[None, 0, None, None, 0]]
    counts = equivalence.take_counts()
    assert (counts["num_too_long"], counts["num_forwards"]) == (3, 0)


def test_pair_gets_the_same_verdict_beside_texts_of_any_length(tmp_path: Path) -> None:
    model = NliModel.load(on_cpu(save_tiny(tmp_path)))
    cases = [
        (f"{word} " * 8, pair) for word in WORDS for pair in zip(WORDS, WORDS[3:], strict=False)
    ]
    verdicts = []
    for others in ([], ["one"], ["two three"], [" ".join(WORDS)], [" ".join(["ten"] * 100)]):
        sides = [model.encode(context, [*pair, *others]) for context, pair in cases]
        verdicts.append(model.judge([(one, other) for one, other, *_ in sides if one and other]))
    assert all(found == verdicts[0] for found in verdicts) and len(set(verdicts[0])) > 1


CHAIN = "ab ba bc cb"
"""a = b and b = c, but not a = c."""


@pytest.mark.parametrize(
    ("arrows", "segments", "clusters", "asked"),
    [
        ("ab ba", ["a", "b"], [0, 0], ["ab", "ba"]),
        ("ab", ["a", "b"], [0, 1], ["ab", "ba"]),
        ("ba", ["a", "b"], [0, 1], ["ab"]),
        ("", ["a", "b"], [0, 1], ["ab"]),
        (CHAIN, ["a", "b", "c"], [0, 0, 1], ["ab", "ba", "ac"]),
        (CHAIN, ["a", "c", "b"], [0, 1, 0], ["ac", "ab", "ba"]),
        (CHAIN, ["a", "b", "b", "c"], [0, 0, 0, 0], ["ba", "ab", "bc", "cb"]),
        ("", ["u v", "x y", "x z"], [0, 1, 2], ["u vx y", "x yx z", "u vx z"]),
        ("", ["", "\n\n", "a", "  ", "a"], [0, 0, 1, 0, 1], []),
        ("", ["a b.", " a  b\n\n", "a b", "A b"], [0, 0, 0, 1], ["a b.A b"]),
    ],
    ids=[
        "both-ways", "forward", "backward", "neither", "chain-ends", "chain-order", "most-frequent-represents",
        "most-words-in-common-first", "no-word", "duplicates",
    ],
)  # fmt: skip
def test_segments_mean_the_same_if_each_entails_their_representative(
    arrows: str, segments: list[str], clusters: list[int], asked: list[str]
) -> None:
    """No pair is asked twice, and the reverse only after a forward entailment."""
    judge = FakeJudge(arrows.split())
    equivalence = EntailmentEquivalence(judge)  # type: ignore[arg-type]
    assert equivalence.clusters([group(*segments)] * 2) == [clusters] * 2
    assert judge.asked == asked
    assert [equivalence.take_counts()["num_forwards"] for _ in range(2)] == [len(asked), 0]


def test_groups_together_are_clustered_as_one_by_one_in_fewer_batches(tmp_path: Path) -> None:
    config = on_cpu(save_tiny(tmp_path))
    groups = [group(*WORDS[start : start + 5], question=WORDS[start]) for start in range(6)]
    together, alone = EntailmentEquivalence.load(config), EntailmentEquivalence.load(config)
    wanted: list[list[int | None]] = [alone.clusters([one])[0] for one in groups]
    assert together.clusters(groups) == wanted
    assert together.counts == alone.counts
    assert len({tuple(one) for one in wanted}) > 1

    judge = FakeJudge([])
    EntailmentEquivalence(judge).clusters(  # type: ignore[arg-type]
        [group("a", "b"), group("c", "d"), group("e")]
    )
    assert judge.batches == [2]


def test_context_matters_only_when_asked_for(tmp_path: Path) -> None:
    name = save_tiny(tmp_path)
    groups = [group(*WORDS, question=" ".join([word] * 3)) for word in WORDS]

    def clusters(with_context: bool) -> list[list[int | None]]:
        return EntailmentEquivalence.load(on_cpu(name, with_context=with_context)).clusters(groups)

    assert len({tuple(own) for own in clusters(False)}) == 1
    assert len({tuple(own) for own in clusters(True)}) > 1


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], 2),
        (["entailment", "not_entailment"], 0),
        (["non-entailment", "entails"], 1),
    ],
)
def test_entailment_label_is_found_by_name(labels: list[str], found: int) -> None:
    assert find_label(dict(enumerate(labels)), None) == found


def test_model_without_entailment_label_is_refused_until_it_is_named(tmp_path: Path) -> None:
    name = save_tiny(tmp_path, labels={0: "LABEL_0", 1: "LABEL_1"})
    with pytest.raises(Mismatch, match=r"LABEL_0.*LABEL_1.*entailment_label"):
        NliModel.load(on_cpu(name))
    with pytest.raises(Mismatch, match=r"no label 'yes' among .*LABEL_1.*correct entailment_label"):
        NliModel.load(on_cpu(name, entailment_label="yes"))
    for label in (1, "label_1"):
        assert NliModel.load(on_cpu(name, entailment_label=label))


def test_model_that_cannot_be_loaded_is_refused_with_the_remedy(tmp_path: Path) -> None:
    name = save_tiny(tmp_path / "whole")
    pickled = save_tiny(tmp_path / "pickled")
    bare = tmp_path / "bare"
    (tmp_path / "pickled" / "model.safetensors").rename(tmp_path / "pickled" / "pytorch_model.bin")
    tiny_model("v2").save_pretrained(bare)
    for config, words in (
        (on_cpu(name, max_tokens=64), "max_tokens is 64"),
        (on_cpu(str(tmp_path / "nowhere")), "there is no folder"),
        (on_cpu(pickled), r"or a revision with safetensors weights"),
        (on_cpu(str(bare)), r"tokenizer.*bare"),
    ):
        with pytest.raises(Mismatch, match=words):
            NliModel.load(config)


def test_window_too_small_for_the_segments_is_refused(tmp_path: Path) -> None:
    name = save_tiny(tmp_path)
    longest = HALF - 32 // 8
    EntailmentEquivalence.load(on_cpu(name), 4 * longest)
    with pytest.raises(Mismatch, match=f"texts of at most {longest} tokens"):
        EntailmentEquivalence.load(on_cpu(name), 4 * longest + 1)
    with pytest.raises(Mismatch, match="lower context_tokens"):
        EntailmentEquivalence.load(on_cpu(name, context_tokens=HALF))
