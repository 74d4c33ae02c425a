"""Stage 2: N next segments a context from each model, with what each model feels at them."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from semspec.core import Writer, derive_seed
from semspec.engine.batch import ContextBatch
from semspec.engine.causal_lm import CausalLM
from training.contexts import ProbeContext, TraceRecipe
from training.files import read_lines, read_tensors, write_lines, write_tensors

log = logging.getLogger(__name__)

SHARD_CONTEXTS = 50


def sample_shards(
    folder: Path,
    contexts: Sequence[ProbeContext],
    draft: CausalLM,
    target: CausalLM,
    recipe: TraceRecipe,
    num_samples: int = 20,
    shard: tuple[int, int] = (0, 1),
) -> None:
    """Write the shards of which `shard` = (i, n) names every n-th; finished ones are skipped.

    A shard is `NNNNN.jsonl` (context, writer, text; a row a segment, target's first) and `NNNNN.safetensors`, row by
    row: `target_states` [rows, layers + 1, hidden] and `surprisal` [rows, features] of all segments, `draft_states` of
    the draft's own, fp16.
    """
    for number in range(shard[0], -(-len(contexts) // SHARD_CONTEXTS), shard[1]):
        path = folder / f"{number:05d}.jsonl"
        if path.exists():
            continue
        rows, tensors = [], []
        for context in contexts[number * SHARD_CONTEXTS : (number + 1) * SHARD_CONTEXTS]:
            context_rows, context_tensors = _sample(context, draft, target, recipe, num_samples)
            rows += context_rows
            tensors.append(context_tensors)
        write_tensors(path.with_suffix(".safetensors"), _stacked(tensors))
        write_lines(path, rows)
        log.info("shard %d: %d segments", number, len(rows))


def shard_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def _sample(
    context: ProbeContext, draft: CausalLM, target: CausalLM, recipe: TraceRecipe, num_samples: int
) -> tuple[list[dict[str, object]], dict[str, torch.Tensor]]:
    batches = {
        Writer.TARGET: ContextBatch(target, context.token_ids),
        Writer.DRAFT: ContextBatch(draft, context.token_ids),
    }
    segments: list[list[int]] = []
    rows: list[dict[str, object]] = []
    for writer, batch in batches.items():
        base = derive_seed(recipe.sampling.seed, f"sample {writer}", context.id)
        seeds = [derive_seed(base, "sample", index) for index in range(num_samples)]
        written = batch.sample(recipe.sampling, seeds, recipe.segmentation, recipe.max_segment_tokens)
        segments += written
        rows += [{"context": context.id, "writer": writer, "text": batch.text_of(segment)} for segment in written]
    target_read = batches[Writer.TARGET].read(segments)
    draft_read = batches[Writer.DRAFT].read(segments[num_samples:])
    tensors = {
        "target_states": target_read.states,
        "surprisal": target_read.surprisal,
        "draft_states": draft_read.states,
    }
    return rows, tensors


def _stacked(parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([part[name] for part in parts]).half() for name in parts[0]}


def read_rows(folder: Path) -> list[dict[str, object]]:
    """All rows of all shards, in order."""
    return [row for path in shard_paths(folder) for row in read_lines(path)]


def read_states(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of all shards, aligned with `read_rows` (`draft_states`: with its draft-written rows)."""
    return _stacked([read_tensors(path.with_suffix(".safetensors")) for path in shard_paths(folder)])
