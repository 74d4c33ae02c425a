"""What a run will take: time from a pilot and a few timed steps, disk from the models' sizes."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from semspec.probes.probe import Probe, num_features
from semspec.training.config import PipelineConfig, SamplesConfig
from semspec.training.data.pair import Pair, states_dtype
from semspec.training.progress import duration
from semspec.types import Writer

NUM_TIMED_STEPS = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated time and disk space of a whole run on one worker."""

    num_questions: int
    num_contexts: int
    stage_s: dict[str, float]
    states_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        lines = [f"{self.num_questions} questions, about {self.num_contexts} contexts"]
        lines += [f"{name:<9} {duration(seconds)}" for name, seconds in self.stage_s.items()]
        lines += [
            f"{'together':<9} {duration(sum(self.stage_s.values()))} on one worker; --shard i/n divides the first three"
        ]
        lines += [f"{'disk':<9} {gigabytes(self.states_bytes)} for the states ({gigabytes(self.free_bytes)} free)"]
        return "\n".join(lines)


def state_row_bytes(pair: Pair, config: PipelineConfig) -> int:
    """Size of the states of one context with N target-written and N draft-written segments, in bytes."""
    dtype = states_dtype(config.samples.states_dtype, pair.target.model.dtype)
    infos = {writer: model.lm.info for writer, model in pair.models.items()}
    sizes = {writer: (info.num_layers + 1) * info.hidden_size for writer, info in infos.items()}
    return context_bytes(config.samples, sizes[Writer.TARGET], sizes[Writer.DRAFT], dtype.itemsize)


def context_bytes(samples: SamplesConfig, target_size: int, draft_size: int, itemsize: int) -> int:
    """Size of the states of one context in bytes; `target_size`, `draft_size`: numbers in a segment's states."""
    return samples.num_samples * itemsize * (2 * target_size + draft_size)


def fit_seconds(config: PipelineConfig, pair: Pair, num_rows: int) -> float:
    """Estimated seconds per epoch of fitting the target's probe, from a few timed steps on its device."""
    recipe, info = config.probes, pair.target.info
    width = num_features(recipe.features, recipe.layers, (info.num_layers + 1, info.hidden_size))
    if recipe.projection:
        width = (info.num_layers + 1) * recipe.projection.width
    device = "cuda" if torch.cuda.is_available() and recipe.device != "cpu" else "cpu"
    probe, batch = Probe(width).to(device), torch.randn(recipe.batch_size, width, device=device)
    optimizer = torch.optim.AdamW(probe.parameters())

    def step() -> None:
        probe(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    step()
    start = time.perf_counter()
    for _ in range(NUM_TIMED_STEPS):
        step()
    return (time.perf_counter() - start) / NUM_TIMED_STEPS * num_rows / recipe.batch_size


def timed(work: Callable[[], object]) -> float:
    """Duration of `work` in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
