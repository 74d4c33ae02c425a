"""`make demo-models`: train the bundled draft and target from scratch. Resumable: run it again after any interruption.

What it took to learn this language on a CPU: digits are single tokens; equations alone first, mixed into the text;
depth grown from a trained shallow model, whose inserted layers start as the identity; positions where a number or a
verb of change must stand weigh more; Muon for the matrices, AdamW for the rest.
"""

import argparse
import logging
import math
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from semspec.decoding.spec_reason import PREFILL, QUESTION
from semspec.demo.reasoning.documents import DELIMITER, write_document, write_graded
from semspec.demo.reasoning.problems import BOXES, SPLITS, Operator, apply, make_problem
from semspec.demo.reasoning.tokenizer import WINDOW, build_tokenizer
from semspec.demo.reasoning.wording import DRAFT_AUTHOR, SLOTS, TARGET_AUTHOR, Author
from semspec.demo.trainer import Course, Trainer
from semspec.engine.tokenization import turn_after

log = logging.getLogger("semspec.demo.reasoning.train_models")

POOL_STEPS = 12
"""Documents are sampled for this many steps at a time and batched by length."""
IGNORED = -100


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
class Recipe:
    """The training recipe of one model of the pair."""

    name: str
    author: Author
    hidden_size: int
    intermediate_size: int
    num_heads: int
    first_seed: int
    """The first problem seed of the training split this model sees."""
    stages: tuple[Stage, ...]


RECIPES = {
    "target": Recipe(
        "target",
        TARGET_AUTHOR,
        128,
        352,
        4,
        100_000,
        (
            Stage(6, 1500, 0.25, 0.01, 3e-3),
            Stage(24, 600, 0.0, 0.006, 2e-3, batch_size=16),
            Stage(24, 500, 0.0, 0.005, 1.5e-3, batch_size=16),
        ),
    ),
    "draft": Recipe(
        "draft",
        DRAFT_AUTHOR,
        96,
        256,
        3,
        5_000_000,
        (Stage(2, 1500, 0.25, 0.01, 3e-3),),
    ),
}
GRADED_SHARE, TWO_TURN_SHARE = 0.15, 0.08
"""Shares of training chats that end with a grade, and of those with two questions."""  # fmt: skip


def build_model(recipe: Recipe, num_layers: int, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """A new Qwen2 model, initialised so that many layers train well."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        max_position_embeddings=WINDOW,
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


class Texts:
    """Training batches, a pure function of the step, so that a resumed run gets the same ones."""

    def __init__(self, recipe: Recipe, stage_index: int, tokenizer: PreTrainedTokenizerFast) -> None:
        self._recipe, self._stage = recipe, recipe.stages[stage_index]
        self._first_seed = recipe.first_seed + 1_000_000 * stage_index
        self._tokenizer = tokenizer
        held_out = (seed for split in ("probe", "tune", "report") for seed in SPLITS[split])
        self._held_out = {make_problem(seed).question for seed in held_out}
        self._heavy = _heavy_tokens(tokenizer)
        self._equals, self._stop = tokenizer.convert_tokens_to_ids(["Ġ=", ".ĊĊ"])

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
            self._equations(rng) if rng.random() < share else self._chat(seed, rng)
            for seed in range(first, first + size * POOL_STEPS)
        ]
        texts.sort(key=lambda text: len(text[0]))
        batches = [texts[i : i + size] for i in range(0, len(texts), size)]
        rng.shuffle(batches)
        return [self._collate(batch) for batch in batches]

    def _chat(self, seed: int, rng: random.Random) -> tuple[list[int], list[int]]:
        """A chat's token ids, and the labels of what the assistant writes."""
        if make_problem(seed).question in self._held_out:
            return self._chat(seed + 4_000_000, rng)
        draw = rng.random()
        if draw < GRADED_SHARE:
            return self._graded(seed)
        earlier: list[dict[str, str]] = []
        if draw < GRADED_SHARE + TWO_TURN_SHARE:
            first = write_document(seed + 1, self._recipe.author)
            answer = first.segments[-1].partition("\n")[2]
            said = rng.choice((f"<think>{DELIMITER}{first.solution}", answer))
            earlier = [
                {"role": "user", "content": first.problem.question},
                {"role": "assistant", "content": said},
            ]
        document = write_document(seed, self._recipe.author)
        prompt = self._prompt([*earlier, {"role": "user", "content": document.problem.question}])
        solution = [*self._ids(document.solution), self._tokenizer.eos_token_id]
        return prompt + solution, [IGNORED] * len(prompt) + solution

    def _graded(self, seed: int) -> tuple[list[int], list[int]]:
        """The first steps of a solution, and the grade of the last one, which alone is learnt."""
        graded = write_graded(seed, self._recipe.author)
        ids = self._prompt([{"role": "user", "content": graded.problem.question}])
        delimiter = "" if graded.segments[-1].startswith("</think>") else DELIMITER
        ids += self._ids(DELIMITER.join(graded.segments) + delimiter) + turn_after(self._tokenizer, QUESTION, PREFILL)
        return [*ids, *self._ids(str(graded.grade))], [IGNORED] * len(ids) + self._ids(str(graded.grade))

    def _prompt(self, messages: list[dict[str, str]]) -> list[int]:
        return self._ids(str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _equations(self, rng: random.Random) -> tuple[list[int], list[int]]:
        ids = self._ids("".join(_equation(rng) + DELIMITER for _ in range(18)))
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


def _equation(rng: random.Random) -> str:
    operator: Operator = rng.choice(("+", "-"))
    delta = rng.randint(1, 9)
    value = rng.randint(10, 99 - delta) if operator == "+" else rng.randint(10 + delta, 99)
    return f"the count is {value} {operator} {delta} = {apply(value, operator, delta)}."


def _heavy_tokens(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Loss weight of each vocabulary entry, [vocab_size]. A heavy token stands only where no light one could."""
    weights = torch.ones(len(tokenizer))
    verbs = {f"Ġ{words.split()[0]}" for slot in ("gain", "lose") for words in SLOTS[slot]}
    for piece, index in tokenizer.get_vocab().items():
        if piece.strip("Ġ").isdigit() or piece in ("Ġ+", "Ġ-"):
            weights[index] = 4.0
        elif piece in verbs:
            weights[index] = 6.0
        elif piece.strip("Ġ") in BOXES:
            weights[index] = 2.0
    return weights


def attention(
    module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Causal attention in bfloat16 by matrix products: on a CPU its backward pass takes half the time of the fused one.

    `q`, `k`, `v`: `[batch, heads, length, head_size]`. Padding stands on the right, where no token attends to it.
    """
    batch, heads, length, size = q.shape
    causal = torch.full((length, length), float("-inf"), dtype=torch.bfloat16).triu(1)
    with torch.autocast("cpu", enabled=False):
        flat_q, flat_k, flat_v = (x.to(torch.bfloat16).reshape(batch * heads, length, size) for x in (q, k, v))
        scores = torch.baddbmm(causal.expand(batch * heads, length, length), flat_q * scaling, flat_k.transpose(1, 2))
        mixed = torch.bmm(torch.softmax(scores, -1), flat_v).view(batch, heads, length, size)
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register("semspec_training", attention)


def loss_of(model: Qwen2ForCausalLM, batch: Batch) -> Tensor:
    """Weighted cross-entropy of the next token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=batch.ids, use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), batch.labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="none"
    )
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def train(recipe: Recipe, work: Path, output: Path) -> None:
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
        with compiled(model):
            trainer.run(Texts(recipe, index, tokenizer).batches(trainer.step))
    assert model is not None
    model.to(torch.bfloat16).save_pretrained(output / recipe.name)
    tokenizer.save_pretrained(output / recipe.name)


@contextmanager
def compiled(model: Qwen2ForCausalLM) -> Iterator[None]:
    """Our attention and compiled layers, which together take less than half the time; compiled if there is g++."""
    model.set_attn_implementation("semspec_training")
    if shutil.which("g++"):
        for layer in model.model.layers:
            layer.compile(dynamic=True)
    yield
    model.set_attn_implementation("sdpa")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("role", choices=sorted(RECIPES))
    parser.add_argument("--output", type=Path, default=Path("demo/reasoning-pair"))
    parser.add_argument("--work", type=Path, default=Path(".work/reasoning-pair"))
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
