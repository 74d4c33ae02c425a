"""The training of the bundled models goes on where it was."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from studies.pair.trainer import Course, Trainer

pytestmark = pytest.mark.slow
COURSE = Course(num_steps=130, matrix_learning_rate=0.02, learning_rate=0.01)


def batches(first_step: int, last_step: int = COURSE.num_steps) -> Iterator[Tensor]:
    for step in range(first_step, last_step):
        yield torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
    if last_step < COURSE.num_steps:
        raise KeyboardInterrupt


def trainer(folder: Path) -> Trainer[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(batch: Tensor) -> Tensor:
        prediction: Tensor = model(batch)
        return ((prediction[:, 0] - batch.sum(1)) ** 2).mean()

    return Trainer(model, COURSE, folder, loss)


def test_interrupted_training_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, broken, resumed = (
        trainer(tmp_path / "whole"),
        trainer(tmp_path / "other"),
        trainer(tmp_path / "other"),
    )
    assert not whole.resume()
    whole.run(batches(0))
    with pytest.raises(KeyboardInterrupt):
        broken.run(batches(0, 120))
    assert resumed.resume() and resumed.step == 100
    resumed.run(batches(resumed.step))
    assert resumed.step == whole.step == COURSE.num_steps
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name])
    fresh = trainer(tmp_path / "fresh").model.state_dict()
    assert not torch.equal(fresh["0.weight"], whole.model.state_dict()["0.weight"])
