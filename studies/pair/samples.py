"""`python -m studies.pair.samples`: what both models write at four places of a trace, and what both compute of it.

A shard of 16 questions is one file; a run goes on where the last one ended. An array's row is a distinct segment of a
context, with how often each model wrote it.
"""

import argparse
import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor
from transformers import DynamicCache, Qwen2ForCausalLM

from semspec_demo.problems import SPLITS, Problem, make_problem
from semspec_demo.reading import read
from semspec_demo.solutions import Solution, Step
from studies.pair.gates import MODELS, TOKENIZER, load, prompt_of

QUESTIONS, PLACES, SAMPLES, LONGEST = 16, 4, 20, 48
TEMPERATURES = 0.6, 1.0
ROLES = "draft", "target"
ENDS = {index for piece, index in TOKENIZER.get_vocab().items() if "ĊĊ" in piece} | {
    TOKENIZER.eos_token_id
}


@dataclass(frozen=True, slots=True)
class Place:
    """A context: the tokens so far, and the solution that they state."""

    problem: Problem
    ids: tuple[int, ...]
    solution: Solution

    def after(self, segment: Sequence[int]) -> "Place | None":
        """The place behind a segment; None if the trace ends there, or cannot be followed."""
        solution = deepcopy(self.solution)
        is_followed = solution.advance(self.meaning(segment))
        return (
            Place(self.problem, (*self.ids, *segment), solution)
            if is_followed and not solution.is_over
            else None
        )

    def meaning(self, segment: Sequence[int]) -> Step:
        text = TOKENIZER.decode(list(segment), skip_special_tokens=True)
        return read(text, self.problem.facts, self.solution.holder)


@dataclass(slots=True)
class Prefix:
    """Contexts that a model has read: keys and values, `mask` `[contexts, length]`, `logits` and the `states` of all
    layers at their last token."""

    cache: DynamicCache
    mask: Tensor
    logits: Tensor
    states: Tensor

    @classmethod
    def of(cls, model: Qwen2ForCausalLM, places: Sequence[Place]) -> "Prefix":
        length = max(len(place.ids) for place in places)
        ids = torch.tensor([[0] * (length - len(place.ids)) + list(place.ids) for place in places])
        mask = torch.tensor(
            [[0] * (length - len(place.ids)) + [1] * len(place.ids) for place in places]
        )
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True,
                    logits_to_keep=1, output_hidden_states=True)  # fmt: skip
        states = torch.stack([layer[:, -1] for layer in out.hidden_states[1:]], 1)
        return cls(out.past_key_values, mask, out.logits[:, -1].float(), states)


def sample(
    model: Qwen2ForCausalLM, prefix: Prefix, count: int, temperature: float
) -> list[list[int]]:
    """Sample `count` segments for each context, those of the first context first. A context's samples are one row, in
    which each sees the context and its own tokens."""
    cache, own_tokens = deepcopy(prefix.cache), torch.eye(count, dtype=torch.bool)
    shape = len(prefix.mask), 1, count
    mask = prefix.mask.bool()[:, None, None].expand(*shape, -1)
    logits, positions = (
        prefix.logits[:, None].expand(-1, count, -1),
        prefix.mask.sum(1, keepdim=True).expand(-1, count),
    )
    written: list[Tensor] = []
    is_over = torch.zeros(len(prefix.mask), count, dtype=torch.bool)
    ends = torch.tensor(sorted(ENDS))
    for _ in range(LONGEST):
        token = torch.multinomial((logits / temperature).softmax(-1).flatten(0, 1), 1).view(
            is_over.shape
        )
        written.append(torch.where(is_over, -1, token))
        is_over |= torch.isin(token, ends)
        if is_over.all():
            break
        mask = torch.cat([mask, own_tokens.expand(*shape, count)], 3)
        out = model(
            input_ids=token,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
        logits, positions = out.logits.float(), positions + 1
    return [
        [token_id for token_id in row if token_id >= 0]
        for row in torch.stack(written, 2).flatten(0, 1).tolist()
    ]


def look(
    model: Qwen2ForCausalLM, prefix: Prefix, index: int, segments: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """Compute a model's statistics of segments after the context `index`: by token, at each temperature,
    log-probability, entropy, log rank and margin, `[segments, temperatures, LONGEST, 4]`; states of all layers at the
    last token, their mean and maximum, and those before the segment, `[segments, layers * hidden]`."""
    lengths = [len(item) for item in segments]
    ids = torch.tensor([token for item in segments for token in item])
    segment_index = torch.arange(len(segments)).repeat_interleave(torch.tensor(lengths))
    position = torch.cat([torch.arange(length) for length in lengths])
    visible = (segment_index[:, None] == segment_index) & (position[:, None] >= position)
    cache = DynamicCache(
        [(item.keys[index, None], item.values[index, None]) for item in prefix.cache.layers]
    )
    mask = torch.cat([prefix.mask[index].bool().expand(len(ids), -1), visible], 1)
    out = model(input_ids=ids[None], attention_mask=mask[None, None], use_cache=True, output_hidden_states=True,
                position_ids=(prefix.mask[index].sum() + position)[None], past_key_values=cache)  # fmt: skip
    logits = torch.where(
        position[:, None] == 0, prefix.logits[index], out.logits[0].float().roll(1, 0)
    )
    statistics: list[Tensor] = []
    for temperature in TEMPERATURES:
        logs = (logits / temperature).log_softmax(-1)
        mine, top = logs.gather(1, ids[:, None]), logs.topk(2).values
        measures = [mine, -(logs.exp() * logs).sum(1, keepdim=True), (logs > mine).sum(1, keepdim=True).log1p(),
                top[:, :1] - top[:, 1:]]  # fmt: skip
        statistics.append(torch.cat(measures, 1))
    by_token = torch.zeros(len(segments), len(TEMPERATURES), LONGEST, 4)
    by_token[segment_index, :, position] = torch.stack(statistics, 1)
    states = torch.stack(out.hidden_states[1:], 2)[0].float().flatten(1).split(lengths)
    return {
        "statistics": by_token,
        "last": torch.stack([item[-1] for item in states]),
        "mean": torch.stack([item.mean(0) for item in states]),
        "max": torch.stack([item.amax(0) for item in states]),
        "before": prefix.states[index].float().flatten().expand(len(segments), -1),
    }


def walk(
    models: dict[str, Qwen2ForCausalLM], problems: Sequence[Problem], rng: random.Random
) -> list[Place]:
    """A trace of each problem, of which the draft writes 70%; one place from each quarter."""
    begun = [
        Place(p, tuple(TOKENIZER.encode(prompt_of(p), add_special_tokens=False)), Solution(p.facts))
        for p in problems
    ]
    traces = [[place] for place in begun]
    going = list(range(len(traces)))
    while going:
        writers = {index: "draft" if rng.random() < 0.7 else "target" for index in going}
        ahead: list[int] = []
        for role in ROLES:
            indices = [index for index in going if writers[index] == role]
            written = (
                sample(
                    models[role], Prefix.of(models[role], [traces[i][-1] for i in indices]), 1, 0.6
                )
                if indices
                else []
            )
            for index, segment in zip(indices, written, strict=True):
                place = traces[index][-1].after(segment)
                if place and len(traces[index]) < 40:
                    traces[index].append(place)
                    ahead.append(index)
        going = ahead
    found: list[Place] = []
    for trace in traces:
        bounds = [round(len(trace) * part / PLACES) for part in range(PLACES + 1)]
        found += [trace[rng.randrange(a, b)] for a, b in pairwise(bounds) if a < b]
    return found


@torch.no_grad()
def shard(models: dict[str, Qwen2ForCausalLM], seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """The rows of these questions."""
    torch.manual_seed(seeds[0])
    places = walk(models, [make_problem(seed) for seed in seeds], random.Random(seeds[0]))
    prefixes = {role: Prefix.of(model, places) for role, model in models.items()}
    counts: list[dict[tuple[int, ...], np.ndarray]] = [{} for _ in places]
    for column, (role, temperature) in enumerate((role, t) for role in ROLES for t in TEMPERATURES):
        written = sample(models[role], prefixes[role], SAMPLES, temperature)
        for index, segment in enumerate(written):
            of_place = counts[index // SAMPLES]
            of_place.setdefault(tuple(segment), np.zeros(4, np.int16))[column] += 1
    rows = [
        (index, segment, written_counts)
        for index, of_place in enumerate(counts)
        for segment, written_counts in of_place.items()
    ]
    found: dict[str, list[np.ndarray]] = {}
    for index, of_place in enumerate(counts):
        for role, model in models.items():
            for name, value in look(model, prefixes[role], index, list(of_place)).items():
                if role == "target" or name in ("mean", "statistics"):
                    saved = value.numpy().astype(
                        np.float16, order="C"
                    )  # `save_file` writes memory as it lies
                    found.setdefault(f"{role}_{name}", []).append(saved)
    meanings = [places[index].meaning(segment) for index, segment, _ in rows]
    numbers: dict[object, int] = {}
    arrays = {name: np.concatenate(parts) for name, parts in found.items()}
    return arrays | {
        "tokens": np.array([list(s) + [-1] * (LONGEST - len(s)) for _, s, _ in rows], np.int16),
        "counts": np.array([written_counts for _, _, written_counts in rows]),
        "is_right": np.array(
            [places[r[0]].solution.is_right(m) for r, m in zip(rows, meanings, strict=True)]
        ),
        "meaning": np.array([numbers.setdefault(m, len(numbers)) for m in meanings], np.int32),
        "context": np.array([index for index, _, _ in rows], np.int32),
        "question": np.array([places[index].problem.seed for index, _, _ in rows], np.int64),
        "style": np.array([places[index].problem.style for index, _, _ in rows], np.int8),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("split", choices=("probe", "tune", "report"))
    parser.add_argument("--work", type=Path, default=Path(".work/demo-models"))
    parser.add_argument("--limit", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models = {role: load(role, MODELS) for role in ROLES}
    folder = arguments.work / arguments.split
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, arguments.limit, QUESTIONS):
        file, seeds = (
            folder / f"{first}.safetensors",
            SPLITS[arguments.split][first : first + QUESTIONS],
        )
        if not file.exists():
            partial = file.with_suffix(".partial")
            save_file(shard(models, seeds), partial)
            partial.replace(file)
            print(file, flush=True)


if __name__ == "__main__":
    main()
