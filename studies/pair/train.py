"""`python -m studies.pair.train base|draft|target`: train a bundled model from scratch. Resumable: run it again.

Each skill alone first, in short prompts and the plainest style: passes, one to four, each to 98% before the next, then
what is looked up; so far draft and target are one model, the base. Then whole solutions in that style; then in all
styles, with planted mistakes to correct and steps to grade; depth is grown last. An auxiliary loss, in training only,
asks layers on the way for the people on the way and for what is looked up.
"""

import argparse
import json
import logging
import os
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast

from semspec_demo.problems import MEN, WOMEN
from semspec_demo.tokenizer import build_tokenizer
from semspec_demo.wording import TENS, UNITS
from studies.pair.trainer import Course, Trainer
from studies.pair.training import build_model, compiled, grow
from studies.pair.training_texts import IGNORED, NUM_HOPS, Batch, Texts, token_weights

log = logging.getLogger("studies.pair.train")


@dataclass(frozen=True, slots=True)
class Stage:
    """Training at one depth. It ends when the skill of its first kind is learnt, at the latest after `num_steps`."""

    num_layers: int
    num_steps: int
    kinds: dict[str, float]
    """Shares of the kinds of texts in `Texts.text`; the first is what the stage is for."""
    rate: float
    batch_size: int = 32


PLAIN = {"plain solutions": 0.55, "plain claims": 0.4, "look-ups": 0.05}
"""Texts in the plainest style, without planted mistakes and grades. The drill of passes would teach that the ball is
where it starts."""
WHOLE = {
    "solutions": 0.5,
    "claims": 0.1,
    "passes": 0.05,
    "chats": 0.1,
    "checks": 0.1,
    "grades": 0.15,
}
REFINED = {
    "solutions": 0.25,
    "numbers": 0.2,
    "graded drafts": 0.25,
    "drafts": 0.1,
    "checks": 0.1,
    "chats": 0.1,
}
"""Numbers in all their forms, and the trained draft's own mistakes (`python -m studies.pair.drafts`)."""
SHALLOW = 3
"""Layers of the base, from which both models go on, and of the draft."""
COURSES: dict[str, tuple[Stage, ...]] = {
    "base": (
        Stage(SHALLOW, 1500, {"passes": 1.0}, 0.01),
        Stage(SHALLOW, 2000, {"look-ups": 0.7, "passes": 0.3}, 0.01),
    ),
    "target": (
        Stage(6, 3000, {"passes": 0.7, "look-ups": 0.3}, 0.01),
        Stage(6, 1500, PLAIN, 0.003),
        Stage(6, 2000, WHOLE, 0.005),
        Stage(12, 1200, WHOLE, 0.004, 24),
        Stage(24, 800, WHOLE, 0.003, 16),
        *[Stage(24, 600, WHOLE, 0.003, 16)] * 3,
        Stage(36, 1200, WHOLE, 0.005, 16),
        Stage(36, 2400, REFINED, 0.004, 16),
        Stage(36, 1400, REFINED, 0.003, 16),
    ),
    "draft": (
        Stage(SHALLOW, 1500, PLAIN, 0.003),
        Stage(SHALLOW, 3000, WHOLE, 0.005),
        *[Stage(SHALLOW, 400, WHOLE, 0.003)] * 3,
        Stage(SHALLOW, 800, WHOLE, 0.003),
        Stage(
            SHALLOW, 600, {"solutions": 0.5, "numbers": 0.25, "checks": 0.1, "chats": 0.15}, 0.003
        ),
    ),
}


@cache
def _texts(drafts: Path | None = None) -> tuple[Texts, np.ndarray]:
    tokenizer = build_tokenizer()
    return Texts(tokenizer, drafts), token_weights(tokenizer)


def make_batch(
    role: str, stage: Stage, index: int, step: int, top: int, drafts: Path | None = None
) -> Batch:
    """The batch of one step of the stage with this index."""
    rng = random.Random(f"{role} {index} {step}")
    [kind] = rng.choices(list(stage.kinds), list(stage.kinds.values()))
    first = (
        {"base": 30_000_000, "target": 50_000_000, "draft": 70_000_000}[role]
        + index * 4_000_000
        + step * stage.batch_size
    )
    texts, weights = _texts(drafts)
    made = [texts.text(kind, seed, top, rng) for seed in range(first, first + stage.batch_size)]
    return Batch.of(kind, made, weights)


class Skills:
    """Accuracies of what is learnt, moving averages; kept in a file beside the checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "skills.json"
        self.top, self._since, self._shares = 1, 0, dict[str, float]()
        for file in (folder.parent / "base" / "skills.json", self._file):
            if file.exists():
                self.top, self._since, self._shares = json.loads(file.read_text())

    def has(self, kind: str, is_shallow: bool) -> bool:
        """Return whether a stage for texts of this kind is over; a shallow model does not learn four passes."""
        if kind == "passes":
            return (
                self.top == NUM_HOPS and self._since > 100 and (is_shallow or self._least() > 0.97)
            )
        names = (
            ("digits",)
            if kind == "look-ups"
            else ("end", "1", "2", *("4" for _ in range(not is_shallow)))
        )
        is_learnt = min(self._shares.get(f"{kind} {name}", 0.0) for name in names) > 0.96
        return kind in ("look-ups", "plain solutions") and is_learnt

    def note(self, name: str, hits: np.ndarray) -> None:
        """Update an accuracy by that in a batch, if there is any."""
        if hits.size:
            before = self._shares.get(name, 0.0)
            self._shares[name] = round(before + 0.05 * (float(hits.mean()) - before), 4)

    def end_batch(self, kind: str, is_shallow: bool) -> None:
        """Go on to more hops when these are learnt, in a shallow model after a while."""
        if kind == "passes":
            self._since += 1
            is_learnt = self._since > 40 and self._least() > 0.98
            is_beyond = is_shallow and self.top > 2 and self._since > 200
            if self.top < NUM_HOPS and (is_learnt or is_beyond):
                self.top, self._since = self.top + 1, 0
        self._file.write_text(json.dumps([self.top, self._since, self._shares]))

    def __str__(self) -> str:
        return f"{self.top} hops: {self._shares}"

    def _least(self) -> float:
        return min(self._shares.get(f"passes {passes}", 0.0) for passes in range(1, self.top + 1))


class Learner:
    """A model on its course."""

    def __init__(self, role: str, work: Path, device: str = "cpu", times: int = 1) -> None:
        """`times`: factor of the planned batch size; the number of steps is divided by its root."""
        self._role, self._folder, self._device, self._times = (
            role,
            work / role,
            torch.device(device),
            times,
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer = build_tokenizer()
        self._people = torch.tensor(_texts()[0].people, device=device)
        kinds = {
            "people": {*WOMEN, *MEN},
            "digits": {*"0123456789"},
            "So": {"So"},
            "No": {"No"},
            "end": {"</think>Ċ"},
        }
        entries = {index: piece.strip("Ġ") for piece, index in self.tokenizer.get_vocab().items()}
        self._kinds = {
            name: [i for i, word in entries.items() if word in words]
            for name, words in kinds.items()
        }
        numbers = [
            i for i, word in entries.items() if word.isdigit() or word in {*UNITS, *TENS[2:]}
        ]
        self._is_number = np.isin(np.arange(len(self.tokenizer)), numbers)
        self._skills = Skills(self._folder)
        torch.manual_seed(5)
        self.model = self._build(SHALLOW)

    def _build(self, num_layers: int) -> Qwen2ForCausalLM:
        return build_model(num_layers, self.tokenizer).to(self._device)

    def train(self, is_dry: bool = False) -> None:
        """Train to the end of the course from the last checkpoint; `is_dry` only loads the checkpoint."""
        if self._role != "base":
            base = Learner("base", self._folder.parent, str(self._device))
            base.train(is_dry=True)
            self.model = base.model
        last = max((int(path.name[5:]) for path in self._folder.glob("stage*")), default=-1)
        for index, planned in enumerate(COURSES[self._role]):
            num_steps = round(planned.num_steps / self._times**0.5)
            stage = replace(
                planned, batch_size=planned.batch_size * self._times, num_steps=num_steps
            )
            folder = self._folder / f"stage{index}"
            if is_dry and index > last:
                return
            if stage.num_layers != len(self.model.model.layers):
                deeper = self._build(stage.num_layers)
                grow(self.model, deeper)
                self.model = deeper
            course = Course(stage.num_steps, stage.rate, stage.rate * 0.3)
            trainer: Trainer[Batch] = Trainer(self.model, course, folder, self._loss)
            trainer.resume()
            if not is_dry and index >= last:  # else it is over
                with compiled(self.model):
                    trainer.run(self._batches(stage, index, trainer))
                trainer.save()

    def _batches(self, stage: Stage, index: int, trainer: Trainer[Batch]) -> Iterator[Batch]:
        """Each of one kind, so that texts of a batch are about as long; made ahead by as many processes as leave a core
        to the training. Those of a step are the same in every run, but for the number of passes."""
        num_makers = max(1, (os.cpu_count() or 2) - 1)
        drafts = self._folder.parent / "drafts.jsonl" if "drafts" in stage.kinds else None
        with ProcessPoolExecutor(num_makers, get_context("spawn")) as makers:
            ahead = deque[Future[Batch]]()
            while not self._skills.has(next(iter(stage.kinds)), stage.num_layers == SHALLOW):
                while len(ahead) < 2 * num_makers:
                    step = trainer.step + len(ahead)
                    ahead.append(
                        makers.submit(
                            make_batch, self._role, stage, index, step, self._skills.top, drafts
                        )
                    )
                yield ahead.popleft().result()
                if trainer.step % 25 == 0:
                    log.info("%s", self._skills)

    def _loss(self, batch: Batch) -> Tensor:
        ids, labels = self._to_device(batch.ids), self._to_device(batch.labels)
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            out = self.model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
            at = (labels[:, 1:] != IGNORED).nonzero(as_tuple=True)
            logits = self.model.lm_head(out.last_hidden_state[:, :-1][at]).float()
        weight, wanted = self._to_device(batch.weights)[:, 1:][at], labels[:, 1:][at]
        losses = torch.nn.functional.cross_entropy(logits, wanted, reduction="none")
        loss = (losses * weight).sum() / weight.sum()
        self._note(batch, logits.argmax(1).cpu().numpy(), wanted.cpu().numpy())
        return loss + 0.3 * self._auxiliary(out, batch)

    def _note(self, batch: Batch, found: np.ndarray, wanted: np.ndarray) -> None:
        """Update accuracies by kind of word; of `passes` only the ends are learnt."""
        if batch.kind != "passes":
            for name, ids in self._kinds.items():
                self._skills.note(f"{batch.kind} {name}", (found == wanted)[np.isin(wanted, ids)])
        self._skills.end_batch(batch.kind, len(self.model.model.layers) == SHALLOW)

    def _auxiliary(self, out: BaseModelOutputWithPast, batch: Batch) -> Tensor:
        """Loss of naming what layers on the way should know: of a move hop j at layer j + 1 of six, numbers at the
        second and third; as deep in a model of up to 24; near the last, whether a claim is right."""
        depth, total = len(self.model.model.layers), torch.zeros((), device=self._device)
        assert out.hidden_states is not None and out.last_hidden_state is not None
        labels = batch.labels[:, 1:]
        looked_up = (self._is_number[labels.clip(min=0)] & (labels != IGNORED)).nonzero()
        asked = [(layer, *looked_up, labels[looked_up]) for layer in (2, 3)]
        for hop in range(1, NUM_HOPS + 1):
            has_hop = batch.ways[:, hop - 1] >= 0
            asked.append(
                (hop + 1, batch.rows[has_hop], batch.columns[has_hop], batch.ways[has_hop, hop - 1])
            )
        asked = [(layer * max(min(depth, 24) // 6, 1), *positions) for layer, *positions in asked]
        asked.append((depth * 11 // 12, *batch.judged.T))
        for layer, rows, columns, wanted in asked:
            if layer < depth and wanted.size:
                with torch.autocast(self._device.type, dtype=torch.bfloat16):
                    state = out.hidden_states[layer][
                        self._to_device(rows), self._to_device(columns)
                    ]
                    guess = self.model.lm_head(self.model.model.norm(state)).float()
                total = total + torch.nn.functional.cross_entropy(guess, self._to_device(wanted))
        if batch.ways.size:
            with torch.no_grad():
                state = out.last_hidden_state[
                    self._to_device(batch.rows), self._to_device(batch.columns)
                ]
                scores = self.model.lm_head(state).float()[:, self._people]
            lengths = (batch.ways >= 0).sum(1)
            ends = batch.ways[np.arange(len(lengths)), lengths - 1]
            hits = self._people[scores.argmax(1)].cpu().numpy() == ends
            for passes in range(1, NUM_HOPS + 1):
                self._skills.note(f"{batch.kind} {passes}", hits[lengths == passes])
        return total

    def _to_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("role", choices=COURSES, help="base first")
    parser.add_argument("--work", type=Path, default=Path(".work/demo-models"))
    parser.add_argument("--output", type=Path, default=Path("examples/demo/semspec_demo/pair"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--times", type=int, default=1, help="batches as many times as large, fewer steps"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    learner = Learner(arguments.role, arguments.work, arguments.device, arguments.times)
    learner.train()
    if arguments.output:
        learner.model.to(torch.bfloat16).save_pretrained(arguments.output / arguments.role)
        learner.tokenizer.save_pretrained(arguments.output / arguments.role)


if __name__ == "__main__":
    main()
