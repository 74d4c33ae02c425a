"""Stage 1: contexts, the points of a reasoning trace where a next segment is sampled and judged."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from semspec.core import Sampling, Segmentation, derive_seed
from semspec.engine.batch import ContextBatch
from semspec.engine.causal_lm import CausalLM
from training.files import read_lines, write_lines

DRAFT_SHARE = 0.7
"""Share of a trace's segments taken from the draft: about what it gets to write when served."""


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """A prompt and the reasoning so far."""

    id: int
    source: int
    """Which prompt it comes from; contexts of one prompt never stand on both sides of a split."""
    token_ids: tuple[int, ...]
    reasoning: str
    """The text after the prompt."""


@dataclass(frozen=True, slots=True)
class TraceRecipe:
    """How segments are sampled, those of a trace and those at a context alike."""

    sampling: Sampling
    segmentation: Segmentation = Segmentation.PARAGRAPH
    max_segment_tokens: int = 64
    max_segments: int = 24


def write_contexts(
    path: Path, prompts: Sequence[tuple[int, Sequence[int]]], draft: CausalLM, target: CausalLM, recipe: TraceRecipe
) -> None:
    """Write traces from `prompts` (source, token ids) in which draft and target take turns at random, right or wrong,
    and cut them at every segment boundary. Both models must share a tokenizer."""
    if path.exists():
        return
    rows: list[ProbeContext] = []
    for source, prompt in prompts:
        for token_ids, reasoning in _trace(source, list(prompt), draft, target, recipe):
            rows.append(ProbeContext(len(rows), source, token_ids, reasoning))
    write_lines(path, map(asdict, rows))


def read_contexts(path: Path) -> list[ProbeContext]:
    return [
        ProbeContext(row["id"], row["source"], tuple(row["token_ids"]), row["reasoning"]) for row in read_lines(path)
    ]


def _trace(
    source: int, tokens: list[int], draft: CausalLM, target: CausalLM, recipe: TraceRecipe
) -> Iterator[tuple[tuple[int, ...], str]]:
    rng = random.Random(f"trace {recipe.sampling.seed} {source}")
    reasoning = ""
    for index in range(recipe.max_segments):
        yield tuple(tokens), reasoning
        writer = draft if rng.random() < DRAFT_SHARE else target
        batch = ContextBatch(writer, tokens)
        seed = derive_seed(recipe.sampling.seed, f"trace {source}", index)
        [segment] = batch.sample(recipe.sampling, [seed], recipe.segmentation, recipe.max_segment_tokens)
        if segment[-1] in writer.eos_ids or len(segment) == recipe.max_segment_tokens:
            return
        reasoning += batch.text_of(segment)
        tokens = tokens + segment
