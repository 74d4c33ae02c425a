"""The states of all layers of a model that transformers runs."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from semspec.errors import Mismatch


class StateHooks:
    """Collects the input of the first block and the output of every block, while open."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.is_open = False
        self._caught: list[Tensor] = []
        blocks = _blocks(model)
        blocks[0].register_forward_pre_hook(self._catch_input, with_kwargs=True)
        for block in blocks:
            block.register_forward_hook(self._catch_output)

    def drain(self) -> Tensor:
        """`[num_layers + 1, batch, length, hidden_size]` of the last forward."""
        caught, self._caught, self.is_open = self._caught, [], False
        return torch.stack([layer.to(caught[-1].device) for layer in caught])

    def _catch_input(self, block: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        if self.is_open:
            self._caught = [args[0] if args else kwargs["hidden_states"]]

    def _catch_output(self, block: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
        if self.is_open:
            self._caught.append(output[0] if isinstance(output, tuple) else output)


def _blocks(model: PreTrainedModel) -> nn.ModuleList:
    num_layers = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return module
    raise Mismatch(f"{type(model).__name__} has no list of {num_layers} blocks; it cannot stream its hidden states")
