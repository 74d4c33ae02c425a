"""`python -m studies.pair.train base|draft|target`: train a model of the pair. Resumable: run it again.

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
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast

from semspec.decoding.spec_reason import PREFILL, QUESTION
from semspec.demo.documents import DELIMITER
from semspec.demo.problems import SPLITS
from semspec.demo.tokenizer import build_tokenizer, train_tokenizer
from semspec.demo.train_models import compiled
from semspec.demo.trainer import Course, Trainer
from semspec.demo.training import IGNORED, Recipe, build_model
from semspec.demo.wording import DRAFT_AUTHOR
from semspec.engine.conversation import turn_after
from studies.pair.language import MEN, WOMEN, Claim, Facts, Problem, Solution, Step, make_problem
from studies.pair.wording import ADVERBS, MARK, PLANTED, SLOTS, TENS, UNITS, Document, Writer, write_document

log = logging.getLogger("studies.pair.train")
NUM_HOPS = 4
TOKENIZER = Path(__file__).with_name("tokenizer.json")


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
WHOLE = {"solutions": 0.6, "claims": 0.3, "passes": 0.05, "look-ups": 0.05}
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
        Stage(12, 1500, WHOLE, 0.004, 24),
        Stage(24, 1000, WHOLE, 0.003, 16),
    ),
    "draft": (Stage(SHALLOW, 1500, PLAIN, 0.003), Stage(SHALLOW, 3000, WHOLE, 0.005)),
}


def tokenizer_of_pair() -> PreTrainedTokenizerFast:
    """The tokenizer of both models, with their chat template; trained if it is not there."""
    if not TOKENIZER.exists():
        train_tokenizer(_vocabulary_texts()).save(str(TOKENIZER))
    return build_tokenizer(TOKENIZER)


def _vocabulary_texts() -> Iterator[str]:
    words = [*WOMEN, *MEN, *ADVERBS, *UNITS, *TENS, *(word for slot in SLOTS.values() for word in slot)]
    for text in (QUESTION, PREFILL, "user\n", "assistant\n<think>\n\n", *words, *(f" {word}" for word in words)):
        yield from [text] * 50
    for seed in SPLITS["train"][:1500]:
        document = write_document(seed)
        yield document.problem.question + DELIMITER.join(document.segments).replace(MARK, "")


@dataclass(slots=True)
class Text:
    """Token ids, the labels of those to learn, loss weights, and hops: (position that predicts, people on the way)."""

    ids: list[int]
    labels: list[int]
    heavy: list[int] = field(default_factory=list)
    hops: list[tuple[int, list[int]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of one kind, padded: `ids`, `labels` and loss `weights`, `[texts, length]`; of each hop that is asked for,
    where (`rows`, `columns`) and `ways`, `[hops, NUM_HOPS]`, the people on the way, -1 after the last."""

    kind: str
    ids: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    ways: np.ndarray

    @classmethod
    def of(cls, kind: str, texts: list[Text], token_weights: np.ndarray) -> "Batch":
        """`token_weights`: `[vocabulary]`, of the labels; a text's heavy places weigh 5."""
        shape = len(texts), max(len(text.ids) for text in texts)
        ids, labels = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text.ids)], labels[row, : len(text.labels)] = text.ids, text.labels
        weights = token_weights[labels.clip(min=0)]
        for row, text in enumerate(texts):
            weights[row, text.heavy] = 5.0
        hops = [(row, place, way) for row, text in enumerate(texts) for place, way in text.hops]
        ways = [way + [-1] * (NUM_HOPS - len(way)) for _, _, way in hops]
        rows, columns = np.array([hop[:2] for hop in hops], np.int64).reshape(-1, 2).T
        return cls(kind, ids, labels, weights, rows, columns, np.array(ways, np.int64).reshape(-1, NUM_HOPS))


class Texts:
    """Training texts: single skills, solutions, solutions with planted mistakes, graded steps."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._held_out = {make_problem(s, 0).question for k in ("probe", "tune", "report") for s in SPLITS[k]}
        self._names = {name: self._ids(f" {name}")[0] for name in WOMEN + MEN}
        self.people = sorted(self._names.values())

    def chat(self, seed: int, rng: random.Random) -> Text:
        """A text of the problem of this seed."""
        if make_problem(seed, 0).question in self._held_out:
            return self.chat(seed + 4_000_000, rng)
        draw = rng.random()
        if draw < 0.08:
            return self._graded(write_document(seed, planted=0.5), rng)
        return self._solution(write_document(seed, planted=PLANTED if draw < 0.45 else 0.0))

    def text(self, kind: str, seed: int, top: int, rng: random.Random) -> Text:
        """A text of one kind; `top`: most passes of a move in `passes`."""
        match kind:
            case "passes":
                return self._passes(make_problem(seed, 0), top, rng)
            case "look-ups":
                return self._look_ups(make_problem(seed, 0), rng)
            case "plain claims":
                return self._claims(make_problem(seed, 0), rng)
            case "claims":
                return self._claims(make_problem(seed), rng)
            case "plain solutions" if make_problem(seed, 0).question not in self._held_out:
                return self._solution(write_document(seed, 0))
        return self.chat(seed, rng)

    def _passes(self, problem: Problem, top: int, rng: random.Random) -> Text:
        """Ends of sixteen moves, no two alike, after a prompt of who passes to whom."""
        facts, writer, text = problem.facts, Writer(problem, rng), self._begin(_told_of(problem, " passes to "))
        moves = [
            (start, ("move", passes, facts.after(start, passes)))
            for start in range(len(facts.names))
            for passes in (*range(1, top + 1), top)
        ]
        for start, claim in dict.fromkeys(rng.sample(moves, 16)):
            self._add(text, f"So the ball starts with {facts.names[start]}.{DELIMITER}", is_learnt=False)
            self._add_claim(text, writer, start, claim, is_learnt=False)
        return text

    def _look_ups(self, problem: Problem, rng: random.Random) -> Text:
        """Cards, after a prompt of these; the last word of each claim is learnt. Easy ones first: where two or more are
        told, to copy any helps; half the claims lack their verb. They repeat: what is left does not tell the answer."""
        facts, writer = problem.facts, Writer(problem, rng)
        people = rng.sample(range(len(facts.names)), rng.randint(2, len(facts.names)))
        text = self._begin(f"Style {problem.style}. {facts.tell_cards(people)}")
        for person in rng.choices(people, k=2 * len(facts.names)):
            claim: Claim = ("card", person, facts.cards[person])
            written = writer.write(Step((claim,)), person) + DELIMITER
            head, space, end = written.replace(" shows", " shows" * rng.randrange(2)).rpartition(" ")
            self._add(text, head, is_learnt=False)
            self._add(text, space + end, is_learnt=True)
        return text

    def _claims(self, problem: Problem, rng: random.Random) -> Text:
        """Claims about many people in the problem's style, none twice, each after others that say where the ball is."""
        facts, writer, text = problem.facts, Writer(problem, rng), self._begin(problem.question)
        moves, others = list[tuple[int, Claim]](), list[tuple[int, Claim]]()
        for start in range(len(facts.names)):
            moves += [(start, ("move", passes, facts.after(start, passes))) for passes in range(1, NUM_HOPS + 1)]
            others += [(start, claim) for claim in Solution(facts, start).about(rng)]
        drawn = rng.sample(moves, 6) + rng.sample(others, 4)
        for start, claim in rng.sample(drawn, len(drawn)):
            self._add(text, self._before(writer, start), is_learnt=False)
            self._add_claim(text, writer, start, claim, is_learnt=True)
        return text

    def _add_claim(self, text: Text, writer: Writer, start: int, claim: Claim, is_learnt: bool) -> None:
        """A paragraph of one claim when `start` has the ball; of a move the end is learnt in any case."""
        written = writer.write(Step((claim,)), start) + DELIMITER
        self._add_marked(text, written, is_learnt, self._way(writer.problem.facts, start, claim))

    def _before(self, writer: Writer, start: int) -> str:
        """A right move after which `start` has the ball, with what may follow it in a solution."""
        facts, rng = writer.problem.facts, writer.rng
        passes = rng.randint(1, NUM_HOPS)
        card, compared, *remarks = Solution(facts, start).about(rng)
        steps = [Step((("move", passes, start), *(card, compared)[: rng.randrange(3)])), Step((rng.choice(remarks),))]
        holders = facts.after(start, -passes), start
        written = [writer.write(*pair) + DELIMITER for pair in zip(steps[: rng.randint(1, 2)], holders, strict=False)]
        return "".join(written).replace(MARK, "")

    def _solution(self, document: Document) -> Text:
        text = self._begin(document.problem.question)
        was_planted = False
        for index, (step, segment) in enumerate(zip(document.steps, document.segments, strict=True)):
            if was_planted or not all(document.is_learnt):
                text.heavy.append(len(text.ids))
            is_learnt, holder = document.is_learnt[index], document.holders[index]
            is_move = is_learnt and not step.corrects and holder is not None
            way = self._way(document.problem.facts, holder, step.claims[0]) if is_move and holder is not None else []
            self._add_marked(text, segment + ("" if step is document.steps[-1] else DELIMITER), is_learnt, way)
            was_planted = not is_learnt
        text.ids.append(self._tokenizer.eos_token_id)
        text.labels.append(self._tokenizer.eos_token_id)
        return text

    def _way(self, facts: Facts, holder: int, claim: Claim) -> list[int]:
        """The tokens of the people on the right way of a move, the last of whom has the ball; none for other claims."""
        passes = int(claim[1]) if claim[0] == "move" else 0
        return [self._names[facts.names[facts.after(holder, hop)]] for hop in range(1, passes + 1)]

    def _add_marked(self, text: Text, piece: str, is_learnt: bool, way: list[int]) -> None:
        """Add a paragraph; a word that stands at its mark, at the end of a known way, is learnt in any case."""
        head, _, tail = piece.partition(MARK)
        if not way:
            self._add(text, head + tail, is_learnt)
            return
        self._add(text, head[:-1], is_learnt)  # the space belongs to the word that follows
        text.hops.append((len(text.ids) - 1, way))
        word, space, rest = tail.partition(" ")
        self._add(text, f" {word}", is_learnt=True)
        self._add(text, space + rest, is_learnt)

    def _graded(self, document: Document, rng: random.Random) -> Text:
        place = rng.randrange(len(document.segments) - 1)
        solution = Solution(document.problem.facts)
        for step in document.steps[:place]:
            solution.advance(step)
        is_right = solution.is_right(document.steps[place])
        grade = rng.choices((9, 8, 7), (6, 3, 1))[0] if is_right else rng.choices((0, 1, 2, 3), (1, 4, 4, 1))[0]
        text = self._begin(document.problem.question)
        self._add(
            text,
            "".join(segment.replace(MARK, "") + DELIMITER for segment in document.segments[: place + 1]),
            is_learnt=False,
        )
        turn = turn_after(self._tokenizer, QUESTION, PREFILL)
        text.ids += turn
        text.labels += [IGNORED] * len(turn)
        text.heavy.append(len(text.ids))
        self._add(text, str(grade), is_learnt=True)
        return text

    def _begin(self, question: str) -> Text:
        messages = [{"role": "user", "content": question}]
        ids = self._ids(str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)))
        return Text(ids, [IGNORED] * len(ids))

    def _add(self, text: Text, piece: str, is_learnt: bool) -> None:
        ids = self._ids(piece)
        text.ids += ids
        text.labels += ids if is_learnt else [IGNORED] * len(ids)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _told_of(problem: Problem, what: str) -> str:
    """The sentences of a question that match `what`, after its style."""
    first, *others = re.findall(r"[^.?]+[.?]", problem.question)
    return "".join([first, *(sentence for sentence in others if re.search(what, sentence))])


def token_weights(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Loss weight of each vocabulary entry, [vocab_size]: people and numbers weigh more."""
    weights = np.ones(len(tokenizer), np.float32)
    people, numbers = {*WOMEN, *MEN, "he", "him", "she", "her", "his"}, {*UNITS, *TENS, "short", "past"}
    signs = {*"higher lower greater smaller larger lesser bigger less not No So </think>Ċ".split()}
    for piece, index in tokenizer.get_vocab().items():
        word = piece.strip("Ġ")
        if word in people or word.isdigit() or word in numbers or word in signs:
            weights[index] = 3.0
    return weights


@cache
def _texts() -> tuple[Texts, np.ndarray]:
    tokenizer = tokenizer_of_pair()
    return Texts(tokenizer), token_weights(tokenizer)


def make_batch(role: str, stage: Stage, index: int, step: int, top: int) -> Batch:
    """The batch of one step of the stage with this index."""
    rng = random.Random(f"{role} {index} {step}")
    [kind] = rng.choices(list(stage.kinds), list(stage.kinds.values()))
    first = (
        {"base": 30_000_000, "target": 50_000_000, "draft": 70_000_000}[role]
        + index * 4_000_000
        + step * stage.batch_size
    )
    texts, weights = _texts()
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
        """Whether a stage for texts of this kind is over; a shallow model does not learn four passes."""
        if kind == "passes":
            return self.top == NUM_HOPS and self._since > 100 and (is_shallow or self._least() > 0.97)
        names = ("digits",) if kind == "look-ups" else ("end", "1", "2", *("4" for _ in range(not is_shallow)))
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


def grow(shallow: Qwen2ForCausalLM, deep: Qwen2ForCausalLM) -> None:
    """Put the layers of `shallow` first in `deep`; every other layer is a copy of its last that initially adds zero."""
    deep.model.embed_tokens.load_state_dict(shallow.model.embed_tokens.state_dict())
    deep.model.norm.load_state_dict(shallow.model.norm.state_dict())
    known = list(shallow.model.layers)
    for index, layer in enumerate(deep.model.layers):
        layer.load_state_dict(known[min(index, len(known) - 1)].state_dict())
        if index >= len(known):
            layer.self_attn.o_proj.weight.data.zero_()
            layer.mlp.down_proj.weight.data.zero_()


class Learner:
    """A model on its course."""

    def __init__(self, role: str, work: Path, device: str = "cpu", times: int = 1) -> None:
        """`times`: how many times as large as planned batches are; their number is smaller by its root."""
        self._role, self._folder, self._device, self._times = role, work / role, torch.device(device), times
        self._folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer = tokenizer_of_pair()
        self._people = torch.tensor(_texts()[0].people, device=device)
        kinds = {"people": {*WOMEN, *MEN}, "digits": {*"0123456789"}, "So": {"So"}, "No": {"No"}, "end": {"</think>Ċ"}}
        entries = {index: piece.strip("Ġ") for piece, index in self.tokenizer.get_vocab().items()}
        self._kinds = {name: [i for i, word in entries.items() if word in words] for name, words in kinds.items()}
        self._is_digit = np.isin(np.arange(len(self.tokenizer)), self._kinds["digits"])
        self._skills = Skills(self._folder)
        torch.manual_seed(5)
        self.model = self._build(SHALLOW)

    def _build(self, num_layers: int) -> Qwen2ForCausalLM:
        recipe = Recipe(self._role, DRAFT_AUTHOR, 128, 352, 4, 0, ())
        return build_model(recipe, num_layers, self.tokenizer).to(self._device)

    def train(self, is_dry: bool = False) -> None:
        """To the end of the course, on from the last checkpoint; `is_dry` only loads what there is."""
        if self._role != "base":
            base = Learner("base", self._folder.parent, str(self._device))
            base.train(is_dry=True)
            self.model = base.model
        last = max((int(path.name[5:]) for path in self._folder.glob("stage*")), default=-1)
        for index, planned in enumerate(COURSES[self._role]):
            num_steps = round(planned.num_steps / self._times**0.5)
            stage = replace(planned, batch_size=planned.batch_size * self._times, num_steps=num_steps)
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
                with compiled(self.model) if self._device.type == "cpu" else _compiled_layers(self.model):
                    trainer.run(self._batches(stage, index, trainer))
                trainer.save()

    def _batches(self, stage: Stage, index: int, trainer: Trainer[Batch]) -> Iterator[Batch]:
        """Each of one kind, so that texts of a batch are about as long; made ahead by as many processes as leave a core
        to the training. Those of a step are the same in every run, but for the number of passes."""
        num_makers = max(1, (os.cpu_count() or 2) - 1)
        with ProcessPoolExecutor(num_makers, get_context("spawn")) as makers:
            ahead = deque[Future[Batch]]()
            while not self._skills.has(next(iter(stage.kinds)), stage.num_layers == SHALLOW):
                while len(ahead) < 2 * num_makers:
                    step = trainer.step + len(ahead)
                    ahead.append(makers.submit(make_batch, self._role, stage, index, step, self._skills.top))
                yield ahead.popleft().result()
                if trainer.step % 25 == 0:
                    log.info("%s", self._skills)

    def _loss(self, batch: Batch) -> Tensor:
        ids, labels = self._there(batch.ids), self._there(batch.labels)
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            out = self.model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
            at = (labels[:, 1:] != IGNORED).nonzero(as_tuple=True)
            logits = self.model.lm_head(out.last_hidden_state[:, :-1][at]).float()
        weight, wanted = self._there(batch.weights)[:, 1:][at], labels[:, 1:][at]
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
        """Loss of naming what layers on the way should know: of a move hop j at layer j + 1 of six, digits at the
        second and third; as deep in a deeper model."""
        depth, total = len(self.model.model.layers), torch.zeros((), device=self._device)
        assert out.hidden_states is not None and out.last_hidden_state is not None
        labels = batch.labels[:, 1:]
        looked_up = (self._is_digit[labels.clip(min=0)] & (labels != IGNORED)).nonzero()
        asked = [(layer, *looked_up, labels[looked_up]) for layer in (2, 3)]
        for hop in range(1, NUM_HOPS + 1):
            some = batch.ways[:, hop - 1] >= 0
            asked.append((hop + 1, batch.rows[some], batch.columns[some], batch.ways[some, hop - 1]))
        for layer, rows, columns, wanted in asked:
            layer *= max(depth // 6, 1)
            if layer < depth and wanted.size:
                with torch.autocast(self._device.type, dtype=torch.bfloat16):
                    state = out.hidden_states[layer][self._there(rows), self._there(columns)]
                    guess = self.model.lm_head(self.model.model.norm(state)).float()
                total = total + torch.nn.functional.cross_entropy(guess, self._there(wanted))
        if batch.ways.size:
            with torch.no_grad():
                state = out.last_hidden_state[self._there(batch.rows), self._there(batch.columns)]
                scores = self.model.lm_head(state).float()[:, self._people]
            lengths = (batch.ways >= 0).sum(1)
            ends = batch.ways[np.arange(len(lengths)), lengths - 1]
            hits = self._people[scores.argmax(1)].cpu().numpy() == ends
            for passes in range(1, NUM_HOPS + 1):
                self._skills.note(f"{batch.kind} {passes}", hits[lengths == passes])
        return total

    def _there(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)


@contextmanager
def _compiled_layers(model: Qwen2ForCausalLM) -> Iterator[None]:
    for layer in model.model.layers:
        layer.compile(dynamic=True)
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("role", choices=COURSES, help="base first")
    parser.add_argument("--work", type=Path, default=Path(".work/pair"))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--times", type=int, default=1, help="batches as many times as large, fewer steps")
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
