"""`make demo-models`: train the bundled draft and target from scratch. Resumable: run it again after any interruption.

What it took to learn this language on a CPU: digits are single tokens; equations alone first, mixed into the text;
depth grown from a trained shallow model, whose inserted layers start as the identity; positions where a number or a
verb of change must stand weigh more; Muon for the matrices, AdamW for the rest.
"""

import argparse
import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from semspec.demo.documents import END, write_document
from semspec.demo.evaluate_models import pass_at_1
from semspec.demo.problems import SPLITS, Operator, apply, make_problem
from semspec.demo.tokenizer import build_tokenizer
from semspec.demo.trainer import Course, Trainer
from semspec.demo.wording import DRAFT_AUTHOR, SLOTS, TARGET_AUTHOR, Author

log = logging.getLogger("semspec.demo.train_models")

POOL_STEPS = 12
"""Documents are sampled for this many steps at a time and batched by length."""
IGNORED = -100
AuthorT = TypeVar("AuthorT")


@dataclass(frozen=True, slots=True)
class Stage:
    """A training stage at one depth."""

    num_layers: int
    num_steps: int
    equation_share: float
    """Share of training texts that are bare equations, in the first 60% of the stage."""
    matrix_learning_rate: float
    learning_rate: float
    batch_size: int = 32

    @property
    def course(self) -> Course:
        return Course(self.num_steps, self.matrix_learning_rate, self.learning_rate)


@dataclass(frozen=True, slots=True)
class Recipe(Generic[AuthorT]):
    """The training recipe of one model of the pair."""

    name: str
    author: AuthorT
    hidden_size: int
    intermediate_size: int
    num_heads: int
    first_seed: int
    """The first problem seed of the training split this model sees."""
    stages: tuple[Stage, ...]
    window: int = 1024


RECIPES: dict[str, Recipe[Author]] = {
    "target": Recipe(
        "target", TARGET_AUTHOR, 128, 352, 4, 100_000,
        (Stage(6, 1800, 0.3, 0.01, 3e-3), Stage(24, 500, 0.1, 0.006, 2e-3)),
    ),
    "draft": Recipe(
        "draft", DRAFT_AUTHOR, 80, 224, 4, 5_000_000,
        (Stage(2, 1500, 0.3, 0.01, 3e-3),),
    ),
}  # fmt: skip


def build_model(recipe: Recipe[AuthorT], num_layers: int, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """A new Qwen2 model, initialised so that many layers train well."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        max_position_embeddings=recipe.window,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
            gain = 1 / math.sqrt(2 * num_layers) if is_output else 0.7
            std = 0.02 if "embed" in name else gain / math.sqrt(parameter.shape[1])
            torch.nn.init.normal_(parameter, 0, std)
    return model


def grow(shallow: Qwen2ForCausalLM, deep: Qwen2ForCausalLM) -> None:
    """Distribute the layers of `shallow` over `deep`; every inserted copy initially adds zero."""
    deep.model.embed_tokens.load_state_dict(shallow.model.embed_tokens.state_dict())
    deep.model.norm.load_state_dict(shallow.model.norm.state_dict())
    factor = len(deep.model.layers) // len(shallow.model.layers)
    for index, layer in enumerate(deep.model.layers):
        layer.load_state_dict(shallow.model.layers[index // factor].state_dict())
        if index % factor:
            layer.self_attn.o_proj.weight.data.zero_()
            layer.mlp.down_proj.weight.data.zero_()


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts, each `[batch, length]`."""

    ids: Tensor
    labels: Tensor
    weights: Tensor


class Texts(ABC, Generic[AuthorT]):
    """Training batches, a pure function of the step, so that a resumed run gets the same ones."""

    equals: str
    """The token after which a bare equation's result stands, and the one that ends it."""
    stop: str

    def __init__(
        self, recipe: Recipe[AuthorT], stage_index: int, tokenizer: PreTrainedTokenizerFast, heavy: Tensor
    ) -> None:
        """`heavy`: loss weight of each vocabulary entry, [vocab_size]."""
        self._recipe, self._stage = recipe, recipe.stages[stage_index]
        self._first_seed = recipe.first_seed + 1_000_000 * stage_index
        self._tokenizer, self._heavy = tokenizer, heavy
        self._equals, self._stop = tokenizer.convert_tokens_to_ids([self.equals, self.stop])

    @abstractmethod
    def text(self, seed: int, rng: random.Random) -> tuple[list[int], list[int]]:
        """Token ids and labels of the text of this seed, or of a later one where its question is held out."""

    @abstractmethod
    def equations(self, equations: list[str]) -> list[int]:
        """Token ids of bare equations."""

    def batches(self, first_step: int) -> Iterator[Batch]:
        for pool in range(first_step // POOL_STEPS, 10**9):
            skip = first_step - pool * POOL_STEPS
            yield from self._pool(pool)[max(skip, 0) :]

    def _pool(self, pool: int) -> list[Batch]:
        rng = random.Random(f"{self._recipe.name} {self._stage.num_layers} {pool}")
        size, is_early = self._stage.batch_size, pool * POOL_STEPS < 0.6 * self._stage.num_steps
        share = self._stage.equation_share if is_early else 0.0
        first = self._first_seed + pool * size * POOL_STEPS
        texts = [
            self._results(self.equations([equation(rng) for _ in range(18)]))
            if rng.random() < share
            else self.text(seed, rng)
            for seed in range(first, first + size * POOL_STEPS)
        ]
        texts.sort(key=lambda text: len(text[0]))
        batches = [texts[i : i + size] for i in range(0, len(texts), size)]
        rng.shuffle(batches)
        return [self._collate(batch) for batch in batches]

    def _results(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """`ids`, and labels of the results of equations only."""
        labels, in_result = [], False
        for token in ids:
            in_result = token == self._equals or (in_result and token != self._stop)
            labels.append(token if in_result and token != self._equals else IGNORED)
        return ids, labels

    def _collate(self, batch: list[tuple[list[int], list[int]]]) -> Batch:
        length = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([row + [0] * (length - len(row)) for row, _ in batch])
        labels = torch.tensor([row + [IGNORED] * (length - len(row)) for _, row in batch])
        return Batch(ids, labels, self._heavy[labels.clamp(min=0)] * (labels != IGNORED))


class Solutions(Texts[Author]):
    """Problems with their solutions."""

    equals, stop = " =", "."

    def __init__(self, recipe: Recipe[Author], stage_index: int, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__(recipe, stage_index, tokenizer, _heavy_tokens(tokenizer))
        held_out = (seed for split in ("probe", "tune", "report") for seed in SPLITS[split])
        self._held_out = {make_problem(seed).question for seed in held_out}

    def text(self, seed: int, rng: random.Random) -> tuple[list[int], list[int]]:
        document = write_document(seed, self._recipe.author)
        if document.problem.question in self._held_out:
            return self.text(seed + 4_000_000, rng)
        prompt = self._tokenizer.encode(document.prompt)
        solution = self._tokenizer.encode(document.solution)
        return prompt + solution, [IGNORED] * len(prompt) + solution

    def equations(self, equations: list[str]) -> list[int]:
        ids: list[int] = self._tokenizer.encode("\n\n" + "\n\n".join(equations) + END)
        return ids


def equation(rng: random.Random) -> str:
    """A sentence with one sum or difference of counts."""
    operator: Operator = rng.choice(("+", "-"))
    delta = rng.randint(1, 9)
    value = rng.randint(10, 99 - delta) if operator == "+" else rng.randint(10 + delta, 99)
    return f"the count is {value} {operator} {delta} = {apply(value, operator, delta)}."


def _heavy_tokens(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Loss weight of each vocabulary entry, [vocab_size]. A heavy token stands only where no light one could."""
    weights = torch.ones(len(tokenizer))
    verbs = {f" {words.split()[0]}" for slot in ("gain", "lose") for words in SLOTS[slot]}
    for piece, index in tokenizer.get_vocab().items():
        if piece.strip().isdigit() or piece in (" +", " -"):
            weights[index] = 4.0
        elif piece in verbs:
            weights[index] = 6.0
    return weights


def loss_of(model: Qwen2ForCausalLM, batch: Batch) -> Tensor:
    """Weighted cross-entropy of the next token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=batch.ids, use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), batch.labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="none"
    )
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def train(recipe: Recipe[Author], work: Path, output: Path) -> None:
    """Train all stages of `recipe`, checkpoints under `work`, the finished model in `output`."""
    torch.manual_seed(recipe.first_seed)
    tokenizer = build_tokenizer()
    model: Qwen2ForCausalLM | None = None
    for index, stage in enumerate(recipe.stages):
        deeper = build_model(recipe, stage.num_layers, tokenizer)
        if model is not None:
            grow(model, deeper)
        model = deeper
        trainer = Trainer(model, stage.course, work / recipe.name / f"stage{index}", partial(loss_of, model))
        trainer.resume()
        trainer.run(Solutions(recipe, index, tokenizer).batches(trainer.step))
    assert model is not None
    model.eval()
    log.info("%s pass@1 on 200 tune problems: %.3f", recipe.name, pass_at_1(model, tokenizer, SPLITS["tune"][:200]))
    model.to(torch.bfloat16).save_pretrained(output / recipe.name)
    tokenizer.save_pretrained(output / recipe.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("role", choices=sorted(RECIPES))
    parser.add_argument("--output", type=Path, default=Path("demo/pair"))
    parser.add_argument("--work", type=Path, default=Path(".work/demo-models"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the steps, for a trial run")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    recipe = RECIPES[arguments.role]
    stages = tuple(replace(stage, num_steps=round(stage.num_steps * arguments.scale)) for stage in recipe.stages)
    train(replace(recipe, stages=stages), arguments.work, arguments.output)


if __name__ == "__main__":
    main()
