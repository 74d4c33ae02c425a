"""`python -m semspec.demo.train_models draft|target`: train a bundled model from scratch. Resumable: run it again.

What it took to learn this language on a CPU: digits are single tokens; equations alone first, mixed into the text;
depth grown from a trained shallow model, whose inserted layers start as the identity; positions where a number or a
verb of change must stand weigh more; Muon for the matrices, AdamW for the rest.
"""

import argparse
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import AttentionInterface, Qwen2ForCausalLM

from semspec.demo.tokenizer import build_tokenizer
from semspec.demo.trainer import Trainer
from semspec.demo.training import Recipe, Stage, build_model, grow, loss_of
from semspec.demo.training_texts import Texts
from semspec.demo.wording import DRAFT_AUTHOR, TARGET_AUTHOR

log = logging.getLogger("semspec.demo.train_models")

RECIPES: dict[str, Recipe] = {
    "target": Recipe(
        "target", TARGET_AUTHOR, 128, 352, 4, 100_000,
        (
            Stage(6, 1500, 0.25, 0.01, 3e-3),
            Stage(24, 600, 0.0, 0.006, 2e-3, batch_size=16),
            Stage(24, 1000, 0.0, 0.006, 2e-3, batch_size=16),
            Stage(24, 400, 0.0, 0.004, 1.5e-3, batch_size=16),
        ),
    ),
    "draft": Recipe(
        "draft", DRAFT_AUTHOR, 128, 352, 4, 5_000_000,
        (Stage(3, 2000, 0.25, 0.01, 3e-3), Stage(3, 400, 0.0, 0.005, 1.5e-3), Stage(3, 200, 0.0, 0.004, 1.5e-3)),
    ),
}  # fmt: skip


BLOCK = 200


def attention(
    module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Causal attention in bfloat16 by matrix products over blocks of `BLOCK` queries, each with the keys up to its end:
    on CPUs its backward pass is faster than the fused one's.

    `q`, `k`, `v`: `[batch, heads, length, head_size]`. Padding stands on the right, where no token attends to it.
    """
    batch, heads, length, size = q.shape
    with torch.autocast("cpu", enabled=False):
        q, k, v = (x.to(torch.bfloat16).reshape(batch * heads, length, size) for x in (q * scaling, k, v))
        mixed: list[Tensor] = []
        for first in range(0, length, BLOCK):
            end = min(first + BLOCK, length)
            causal = torch.full((end - first, end), float("-inf"), dtype=torch.bfloat16).triu(first + 1)
            masks = causal.expand(batch * heads, end - first, end)
            scores = torch.baddbmm(masks, q[:, first:end], k[:, :end].transpose(1, 2))
            mixed.append(torch.bmm(torch.softmax(scores, -1), v[:, :end]))
    return torch.cat(mixed, 1).view(batch, heads, length, size).transpose(1, 2).contiguous(), None


AttentionInterface.register("semspec_training", attention)


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
