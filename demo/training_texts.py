"""Texts that the pair learns from: chats, some of which end with a grade, and bare equations."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from semspec.decoding.spec_reason import PREFILL, QUESTION
from semspec.demo.documents import DELIMITER, write_document, write_graded, write_mixed
from semspec.demo.problems import BOXES, SPLITS, Operator, apply, make_problem
from semspec.demo.training import IGNORED, Batch, Recipe
from semspec.demo.wording import DRAFT_AUTHOR, SLOTS, TARGET_AUTHOR
from semspec.engine.conversation import turn_after

POOL_STEPS = 12
"""Texts are sampled for this many steps at a time and batched by length."""
GRADED_SHARE, MIXED_SHARE, TWO_TURN_SHARE = 0.08, 0.3, 0.08
"""Shares of training chats that end with a grade, of those that both authors wrote, and of those with two questions."""
EQUALS, STOP = "Ġ=", ".ĊĊ"
"""The token after which an equation's result stands, and the one that ends it."""


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids, and the labels of those to learn (`IGNORED` elsewhere)."""

    ids: list[int]
    labels: list[int]


class Texts:
    """Training batches, a pure function of the step, so that a resumed run gets the same ones."""

    def __init__(self, recipe: Recipe, stage_index: int, tokenizer: PreTrainedTokenizerFast) -> None:
        self._recipe, self._stage = recipe, recipe.stages[stage_index]
        self._first_seed = recipe.first_seed + 1_000_000 * stage_index
        self._tokenizer, self._weights = tokenizer, _token_weights(tokenizer)
        self._equals, self._stop = tokenizer.convert_tokens_to_ids([EQUALS, STOP])
        held_out = (seed for split in ("probe", "tune", "report") for seed in SPLITS[split])
        self._held_out = {make_problem(seed).question for seed in held_out}

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
            self._equations(rng) if rng.random() < share else self.chat(seed, rng)
            for seed in range(first, first + size * POOL_STEPS)
        ]
        texts.sort(key=lambda text: len(text.ids))
        batches = [texts[i : i + size] for i in range(0, len(texts), size)]
        rng.shuffle(batches)
        return [self._collate(batch) for batch in batches]

    def chat(self, seed: int, rng: random.Random) -> Text:
        """The chat about the problem of this seed, or of a later one where its question is held out."""
        if make_problem(seed).question in self._held_out:
            return self.chat(seed + 4_000_000, rng)
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
        return Text(prompt + solution, [IGNORED] * len(prompt) + solution)

    def _mixed(self, seed: int) -> Text:
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
        return Text(ids, labels)

    def _graded(self, seed: int) -> Text:
        """The first steps of a solution, and the grade of the last one, which alone is learnt."""
        graded = write_graded(seed, self._recipe.author)
        ids = self._prompt([{"role": "user", "content": graded.problem.question}])
        ids += self._ids(graded.text) + turn_after(self._tokenizer, QUESTION, PREFILL)
        return Text([*ids, *self._ids(str(graded.grade))], [IGNORED] * len(ids) + self._ids(str(graded.grade)))

    def _equations(self, rng: random.Random) -> Text:
        """Sentences with one sum or difference each, of which the results are learnt."""
        ids = self._ids("".join(_equation(rng) + DELIMITER for _ in range(18)))
        labels, in_result = [], False
        for token in ids:
            in_result = token == self._equals or (in_result and token != self._stop)
            labels.append(token if in_result and token != self._equals else IGNORED)
        return Text(ids, labels)

    def _prompt(self, messages: list[dict[str, str]]) -> list[int]:
        return self._ids(str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _collate(self, batch: list[Text]) -> Batch:
        length = max(len(text.ids) for text in batch)
        ids = torch.tensor([text.ids + [0] * (length - len(text.ids)) for text in batch])
        labels = torch.tensor([text.labels + [IGNORED] * (length - len(text.labels)) for text in batch])
        return Batch(ids, labels, self._weights[labels.clamp(min=0)] * (labels != IGNORED))


def _equation(rng: random.Random) -> str:
    operator: Operator = rng.choice(("+", "-"))
    delta = rng.randint(1, 9)
    value = rng.randint(10, 99 - delta) if operator == "+" else rng.randint(10 + delta, 99)
    return f"the count is {value} {operator} {delta} = {apply(value, operator, delta)}."


def _token_weights(tokenizer: PreTrainedTokenizerFast) -> Tensor:
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
