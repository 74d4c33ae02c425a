"""How many ranks a model is split over, and whether it can be."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from semspec.engine.decoder import unsupported_reason
from semspec.errors import Mismatch


@dataclass(frozen=True, slots=True)
class Split:
    """A model over `num_ranks` processes: this one is rank 0."""

    num_ranks: int = 1
    setting: str = "tensor_parallel"
    """What the operator calls `num_ranks`."""

    def devices(self, device: str) -> list[str]:
        """Of each rank. Raises: Mismatch when there are too few, or not the first ones are asked for."""
        if device == "cpu":
            return [device] * self.num_ranks
        if device != "cuda":
            raise Mismatch(
                f"{self.setting} is {self.num_ranks}, which takes the first {self.num_ranks} GPUs, not {device}; set "
                "the device to auto, and choose GPUs by CUDA_VISIBLE_DEVICES"
            )
        if (num_devices := torch.cuda.device_count()) < self.num_ranks:
            raise Mismatch(
                f"{self.setting} is {self.num_ranks}, but torch.cuda.device_count() is {num_devices}; lower it, or let "
                "this process see more GPUs"
            )
        return [f"cuda:{rank}" for rank in range(self.num_ranks)]

    def check_engine(self, engine: str) -> None:
        """Raises: Mismatch when `engine` is one that cannot split a model."""
        if engine == "transformers" and self.num_ranks > 1:
            raise Mismatch(
                f"{self.setting} is {self.num_ranks}, but the transformers engine runs a model in one process; set the "
                f"engine to auto or fast, or {self.setting} to 1"
            )

    def check(self, model: PreTrainedModel, name: str) -> None:
        """Raises: Mismatch when `model`, whose weights need not be there, cannot be split so."""
        if reason := "its weights are quantised" if _is_quantised(model) else unsupported_reason(model):
            raise Mismatch(f"{name} cannot be split: {reason}; set {self.setting} to 1")
        num_kv_heads, num_columns = model.config.num_key_value_heads, model.config.intermediate_size
        allowed = [n for n in range(1, num_kv_heads + 1) if num_kv_heads % n == num_columns % n == 0]
        if self.num_ranks not in allowed:
            raise Mismatch(
                f"{name} has {num_kv_heads} key heads and {num_columns} columns between its projections, which "
                f"{self.num_ranks} ranks cannot share evenly; set {self.setting} to one of "
                f"{', '.join(map(str, allowed))}"
            )


ALONE = Split()
"""No split at all: the model in this process."""


def _is_quantised(model: PreTrainedModel) -> bool:
    return getattr(model.config, "quantization_config", None) is not None
