"""Trains the NLI model of the language: `python -m studies.nli.train`. Resumable: run it again.

To train on a CPU it needs two steps: pairs alone come before pairs after their context, as they are judged; and an
auxiliary question, dropped at the end, asks at every field of either step whether the other one states the same.
"""

import argparse
import json
import logging
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import (
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    PreTrainedTokenizerFast,
)

from semspec.clustering.nli import EntailmentConfig, NliModel
from semspec.engine.checkpoint import model_fingerprint
from semspec_demo.problems import SPLITS
from semspec_demo.solutions import UNREADABLE
from semspec_demo.tokenizer import END_OF_TEXT, build_tokenizer
from studies.nli.data import ENTAILMENT, LABELS, Pair, Step, held_out_questions, pairs
from studies.pair.trainer import Course, Trainer

log = logging.getLogger("studies.nli.train")

WINDOW = 112
"""Tokens of a pair: two of the longest steps, and the end of the context before each."""
CONTEXT_TOKENS = WINDOW // 8
"""Tokens of context before a step, as clustering has by default."""
COURSE = Course(num_steps=3000, matrix_learning_rate=0.01, learning_rate=3e-3)
FIRST_SEED = 8_000_000
BATCH_SIZE = 64
POOL_STEPS = 8
"""Pairs are sampled for this many steps at a time and batched by length."""
PAIRS_A_PROBLEM = 4
CONTEXT_SHARE = 0.85
ALONE_UNTIL = 0.5
"""Fraction of the course without contexts."""
IGNORED = -100


def build_nli_tokenizer() -> PreTrainedTokenizerFast:
    """The pair's tokenizer with what a pair of texts needs."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer().backend_tokenizer,
        pad_token=END_OF_TEXT,
        model_max_length=WINDOW,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    first, separator = tokenizer.cls_token_id, tokenizer.sep_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", first), ("[SEP]", separator)],
    )
    return tokenizer


def build_nli_model(tokenizer: PreTrainedTokenizerFast) -> DebertaV2ForSequenceClassification:
    """A new model for pairs of `WINDOW` tokens, initialised so that it trains fast."""
    config = DebertaV2Config(
        vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=352,
        max_position_embeddings=WINDOW, type_vocab_size=2, relative_attention=True, pos_att_type=["c2p", "p2c"],
        position_biased_input=False, position_buckets=32, share_att_key=True, norm_rel_ebd="layer_norm",
        conv_kernel_size=3, conv_act="gelu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        pooler_hidden_size=128, pad_token_id=tokenizer.pad_token_id, id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )  # fmt: skip
    model = DebertaV2ForSequenceClassification(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(
                parameter, 0, 0.05 if "embed" in name else 0.7 / math.sqrt(parameter.shape[1])
            )
    return model


@dataclass(frozen=True, slots=True)
class Batch:
    """`[batch, length]`, but `labels` `[batch]`."""

    ids: Tensor
    types: Tensor
    mask: Tensor
    labels: Tensor
    agreements: Tensor
    """1 where a field is as the other step states it, 0 where it differs, `IGNORED` elsewhere."""


class Learner(nn.Module):
    """The model with auxiliary training outputs."""

    def __init__(self, model: DebertaV2ForSequenceClassification) -> None:
        super().__init__()
        self.model = model
        self.field_classifier = nn.Linear(model.config.hidden_size, 1)

    def loss(self, batch: Batch) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = self.model(
                input_ids=batch.ids,
                token_type_ids=batch.types,
                attention_mask=batch.mask,
                output_hidden_states=True,
            )
            fields = self.field_classifier(output.hidden_states[-2])[..., 0]
        is_field = batch.agreements != IGNORED
        targets = batch.agreements[is_field].float()
        weights = torch.where(targets == 0, 2.0, 1.0)
        field_loss = nn.functional.binary_cross_entropy_with_logits(
            fields.float()[is_field], targets, weights
        )
        return nn.functional.cross_entropy(output.logits.float(), batch.labels) + field_loss


@dataclass(frozen=True, slots=True)
class Example:
    """A pair in tokens."""

    ids: list[int]
    types: list[int]
    agreements: list[int]
    label: int


class Examples:
    """Training batches, a pure function of the step, so that a resumed run gets the same ones."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, course: Course) -> None:
        self._course, self._backend = course, tokenizer.backend_tokenizer
        self._padding = int(tokenizer.pad_token_id)
        self._first, self._separator = int(tokenizer.cls_token_id), int(tokenizer.sep_token_id)
        self._held_out = held_out_questions()

    def batches(self, first_step: int) -> Iterator[Batch]:
        for pool in range(first_step // POOL_STEPS, 10**9):
            skip = first_step - pool * POOL_STEPS
            yield from self._pool(pool)[max(skip, 0) :]

    def _pool(self, pool: int) -> list[Batch]:
        share = 0.0 if pool * POOL_STEPS < ALONE_UNTIL * self._course.num_steps else CONTEXT_SHARE
        size = BATCH_SIZE * POOL_STEPS
        seeds = range(
            FIRST_SEED + pool * size // PAIRS_A_PROBLEM,
            FIRST_SEED + (pool + 1) * size // PAIRS_A_PROBLEM,
        )
        examples = [
            self.example(pair)
            for seed in seeds
            for pair in pairs(seed, share, self._held_out, PAIRS_A_PROBLEM)
        ]
        examples.sort(key=lambda example: len(example.ids))
        batches = [examples[i : i + BATCH_SIZE] for i in range(0, len(examples), BATCH_SIZE)]
        random.Random(pool).shuffle(batches)
        return [self._collate(batch) for batch in batches]

    def example(self, pair: Pair) -> Example:
        ids, types, agreements = [self._first], [0], [IGNORED]
        context = self._backend.encode(pair.context, add_special_tokens=False).ids[-CONTEXT_TOKENS:]
        for side, (step, other) in enumerate(
            ((pair.premise, pair.hypothesis), (pair.hypothesis, pair.premise))
        ):
            own_ids, own_agreements = self._step(step, other)
            ids += [*context, *own_ids, self._separator]
            agreements += [*[IGNORED] * len(context), *own_agreements, IGNORED]
            types += [side] * (len(context) + len(own_ids) + 1)
        return Example(ids, types, agreements, pair.label)

    def _step(self, step: Step, other: Step) -> tuple[list[int], list[int]]:
        stated, values = other.stated, step.stated
        fields = [
            (start, end, stated[name] == values[name])
            for start, end, name in step.fields
            if name in stated
        ]
        encoding = self._backend.encode(step.text, add_special_tokens=False)
        agreements = [
            next(
                (int(is_same) for start, end, is_same in fields if start < last and first < end),
                IGNORED,
            )
            for first, last in encoding.offsets
        ]
        return encoding.ids, agreements

    def _collate(self, batch: list[Example]) -> Batch:
        length = max(len(example.ids) for example in batch)

        def padded(rows: list[list[int]], filler: int) -> Tensor:
            return torch.tensor([row + [filler] * (length - len(row)) for row in rows])

        ids = padded([example.ids for example in batch], self._padding)
        types = padded([example.types for example in batch], 0)
        agreements = padded([example.agreements for example in batch], IGNORED)
        labels = torch.tensor([example.label for example in batch])
        return Batch(ids, types, (ids != self._padding).long(), labels, agreements)


def train(course: Course, work: Path, output: Path) -> None:
    """Train by `course`, checkpoints under `work`, the finished model in `output`."""
    torch.manual_seed(FIRST_SEED)
    tokenizer = build_nli_tokenizer()
    learner = Learner(build_nli_model(tokenizer))
    trainer = Trainer(learner, course, work, learner.loss)
    trainer.resume()
    examples = Examples(tokenizer, course)
    trainer.run(examples.batches(trainer.step))
    learner.model.eval().to(torch.bfloat16).save_pretrained(output)
    tokenizer.save_pretrained(output)
    card = {
        "fingerprint": model_fingerprint(str(output)),
        "training": asdict(course) | {"batch_size": BATCH_SIZE},
    }
    card |= {
        "num_parameters": learner.model.num_parameters(),
        "metrics": pair_metrics(output, SPLITS["tune"][:500]),
    }
    log.info("%s", card)
    (output / "card.json").write_text(json.dumps(card, indent=2) + "\n")


def pair_metrics(folder: Path, seeds: Sequence[int]) -> dict[str, float]:
    """Accuracy of a finished model at recognising entailment, on pairs about other problems."""
    model = NliModel.load(EntailmentConfig(model=str(folder), device="cpu"))
    held_out, sides = [], []
    for pair in (pair for seed in seeds for pair in pairs(seed, CONTEXT_SHARE)):
        premise, hypothesis = model.encode(pair.context, [pair.premise.text, pair.hypothesis.text])
        if premise and hypothesis:
            held_out.append(pair)
            sides.append((premise, hypothesis))
    is_right: dict[str, list[bool]] = {"readable": [], "unreadable": []}
    for pair, entails in zip(held_out, model.judge(sides), strict=True):
        part = (
            "unreadable"
            if UNREADABLE in (pair.premise.meaning, pair.hypothesis.meaning)
            else "readable"
        )
        is_right[part].append(entails == (pair.label == ENTAILMENT))
    return {f"accuracy_{name}": round(sum(part) / len(part), 4) for name, part in is_right.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("examples/demo/semspec_demo/nli"))
    parser.add_argument("--work", type=Path, default=Path(".work/demo-nli"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="fraction of the steps, for a trial run"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    num_steps = round(COURSE.num_steps * arguments.scale)
    train(
        Course(num_steps, COURSE.matrix_learning_rate, COURSE.learning_rate),
        arguments.work,
        arguments.output,
    )


if __name__ == "__main__":
    main()
