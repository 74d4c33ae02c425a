"""`make reasoning-models`: train the harder pair from scratch. Resumable: run it again after any interruption.

What it took to learn this language on a CPU: digits are single tokens; equations alone first, mixed into the text;
depth grown from a trained shallow model, whose inserted layers start as the identity; positions where a number or a
verb of change must stand weigh more; Muon for the matrices, AdamW for the rest.
"""

import argparse
import logging
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedTokenizerFast, Qwen2ForCausalLM

from semspec.decoding.spec_reason import PREFILL, QUESTION
from semspec.demo.problems import SPLITS
from semspec.demo.reasoning.documents import DELIMITER, write_document, write_graded, write_mixed
from semspec.demo.reasoning.problems import BOXES, make_problem
from semspec.demo.reasoning.tokenizer import WINDOW, build_tokenizer
from semspec.demo.reasoning.wording import DRAFT_AUTHOR, SLOTS, TARGET_AUTHOR, Author
from semspec.demo.train_models import (
    IGNORED,
    Recipe,
    Stage,
    Texts,
    build_model,
    grow,
    loss_of,
)
from semspec.demo.trainer import Trainer
from semspec.engine.tokenization import turn_after

log = logging.getLogger("semspec.demo.reasoning.train_models")

RECIPES: dict[str, Recipe[Author]] = {
    "target": Recipe(
        "target", TARGET_AUTHOR, 128, 352, 4, 100_000,
        (
            Stage(6, 1500, 0.25, 0.01, 3e-3),
            Stage(24, 600, 0.0, 0.006, 2e-3, batch_size=16),
            Stage(24, 1000, 0.0, 0.006, 2e-3, batch_size=16),
            Stage(24, 400, 0.0, 0.004, 1.5e-3, batch_size=16),
        ),
        WINDOW,
    ),
    "draft": Recipe(
        "draft", DRAFT_AUTHOR, 128, 352, 4, 5_000_000,
        (Stage(3, 2000, 0.25, 0.01, 3e-3),),
        WINDOW,
    ),
}  # fmt: skip
GRADED_SHARE, MIXED_SHARE, TWO_TURN_SHARE = 0.08, 0.3, 0.08
"""Shares of training chats that end with a grade, of those that both authors wrote, and of those with two questions."""


class Chats(Texts[Author]):
    """Chats of one or two questions, some of which end with the grade of a step."""

    equals, stop = "Ġ=", ".ĊĊ"

    def __init__(self, recipe: Recipe[Author], stage_index: int, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__(recipe, stage_index, tokenizer, _heavy_tokens(tokenizer))
        held_out = (seed for split in ("probe", "tune", "report") for seed in SPLITS[split])
        self._held_out = {make_problem(seed).question for seed in held_out}

    def text(self, seed: int, rng: random.Random) -> tuple[list[int], list[int]]:
        """A chat's token ids, and the labels of what the assistant writes."""
        if make_problem(seed).question in self._held_out:
            return self.text(seed + 4_000_000, rng)
        draw = rng.random()
        if draw < GRADED_SHARE:
            return self._graded(seed)
        if draw < GRADED_SHARE + MIXED_SHARE:
            return self._mixed(seed)
        earlier: list[dict[str, str]] = []
        if draw > 1 - TWO_TURN_SHARE:
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

    def _mixed(self, seed: int) -> tuple[list[int], list[int]]:
        """A solution as it is served, of which only the author's own right steps are learnt."""
        author = self._recipe.author
        mixed = write_mixed(seed, author, DRAFT_AUTHOR if author is TARGET_AUTHOR else TARGET_AUTHOR)
        ids = self._prompt([{"role": "user", "content": mixed.problem.question}])
        labels = [IGNORED] * len(ids)
        for index, (segment, is_model) in enumerate(zip(mixed.segments, mixed.is_model, strict=True), 1):
            is_last = index == len(mixed.segments)
            own = [*self._ids(segment), self._tokenizer.eos_token_id] if is_last else self._ids(segment + DELIMITER)
            ids += own
            labels += own if is_model else [IGNORED] * len(own)
        return ids, labels

    def _graded(self, seed: int) -> tuple[list[int], list[int]]:
        """The first steps of a solution, and the grade of the last one, which alone is learnt."""
        graded = write_graded(seed, self._recipe.author)
        ids = self._prompt([{"role": "user", "content": graded.problem.question}])
        ids += self._ids(graded.text) + turn_after(self._tokenizer, QUESTION, PREFILL)
        return [*ids, *self._ids(str(graded.grade))], [IGNORED] * len(ids) + self._ids(str(graded.grade))

    def _prompt(self, messages: list[dict[str, str]]) -> list[int]:
        return self._ids(str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def equations(self, equations: list[str]) -> list[int]:
        return self._ids("".join(sentence + DELIMITER for sentence in equations))


def _heavy_tokens(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Loss weight of each vocabulary entry, [vocab_size]. A heavy token stands only where no light one could."""
    weights = torch.ones(len(tokenizer))
    verbs = {f"Ġ{words.split()[0]}" for slot in ("gain", "lose") for words in SLOTS[slot]}
    ways = {f"Ġ{word}" for slot in ("forth", "back") for words in SLOTS[slot] for word in words.split()}
    ways -= {"Ġone", "Ġbox", "Ġthe", "Ġto", "Ġby", "Ġon"}
    for piece, index in tokenizer.get_vocab().items():
        if piece.strip("Ġ").isdigit() or piece in ("Ġ+", "Ġ-"):
            weights[index] = 4.0
        elif piece in verbs:
            weights[index] = 6.0
        elif piece in ways:
            weights[index] = 4.0
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
        with compiled(model):
            trainer.run(Chats(recipe, index, tokenizer).batches(trainer.step))
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
