"""Training from scratch on a CPU: Muon for the matrices, AdamW for the rest, and a checkpoint to resume from."""

import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

log = logging.getLogger("studies.pair.trainer")

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class Course:
    """Number of steps and learning rates of a training."""

    num_steps: int
    matrix_learning_rate: float
    learning_rate: float


class Trainer(Generic[Batch]):
    """Trains one model on one course."""

    def __init__(
        self, model: nn.Module, course: Course, folder: Path, loss: Callable[[Batch], Tensor]
    ) -> None:
        self.model, self._course, self._folder, self._loss = model, course, folder, loss
        matrices = {n: p for n, p in model.named_parameters() if p.dim() == 2 and not _is_table(n)}
        others = [p for n, p in model.named_parameters() if n not in matrices]
        self._optimizers = (
            torch.optim.Muon(
                list(matrices.values()),
                lr=course.matrix_learning_rate,
                momentum=0.95,
                weight_decay=0.05,
            ),
            torch.optim.AdamW(others, lr=course.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
        )
        self._rates = (course.matrix_learning_rate, course.learning_rate)
        self.step = 0

    def run(self, batches: Iterator[Batch]) -> None:
        """Train to the end of the course; `batches` continues from `step`."""
        self.model.train()
        for batch in batches:
            if self.step >= self._course.num_steps:
                break
            loss = self._update(batch)
            self.step += 1
            if self.step % 25 == 0:
                log.info(
                    "%s step %d/%d loss %.4f",
                    self._folder.name,
                    self.step,
                    self._course.num_steps,
                    loss,
                )
            if self.step % 100 == 0 or self.step == self._course.num_steps:
                self.save()

    def _update(self, batch: Batch) -> float:
        for optimizer, rate in zip(self._optimizers, self._rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * _schedule(self.step, self._course.num_steps)
        loss = self._loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
        return loss.item()

    def save(self) -> None:
        """Write weights, optimizer state and step to a new file, then replace the old checkpoint."""
        tensors = {
            f"model.{name}": value
            for name, value in self.model.state_dict().items()
            if not _is_tied(name)
        }
        for number, optimizer in enumerate(self._optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                tensors |= {
                    f"optimizer.{number}.{index}.{name}": value for name, value in state.items()
                }
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / "checkpoint.partial"
        save_file(
            {k: v.contiguous() for k, v in tensors.items()}, partial, {"step": str(self.step)}
        )
        partial.replace(self._folder / "checkpoint.safetensors")

    def resume(self) -> bool:
        """Continue from the checkpoint, if there is one."""
        path = self._folder / "checkpoint.safetensors"
        if not path.exists():
            return False
        tensors = load_file(path)
        weights = {
            k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")
        }
        self.model.load_state_dict(weights, strict=False)
        for number, optimizer in enumerate(self._optimizers):
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                if key.startswith(f"optimizer.{number}."):
                    _, _, index, name = key.split(".")
                    state.setdefault(int(index), {})[name] = value
            optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        self.step = int(header["__metadata__"]["step"])
        return True


def _is_table(name: str) -> bool:
    """Embeddings and output layers, for which Muon is unsuitable."""
    return "embed" in name or "classifier" in name


def _is_tied(name: str) -> bool:
    """An output layer that shares its weights with the embeddings."""
    return name == "lm_head.weight"


def _schedule(step: int, num_steps: int) -> float:
    """Warm up, hold, then a cosine to 3%."""
    progress = step / num_steps
    decay = 1.0 if progress < 0.35 else 0.5 * (1 + math.cos(math.pi * (progress - 0.35) / 0.65))
    return min(1.0, (step + 1) / 30) * (0.03 + 0.97 * decay)
