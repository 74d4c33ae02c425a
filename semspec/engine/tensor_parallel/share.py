"""A rank's share of a model: slices of its weights, read from safetensors without the rest."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import cached_file

from semspec.errors import Mismatch

WIDENING = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})
"""Projections whose outputs, heads or columns, are shared out: each rank holds some rows of `[out, in]`."""
NARROWING = frozenset({"o_proj", "down_proj"})
"""Projections that take those as inputs: each rank holds some columns, and the outputs are summed."""
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Share:
    """Which of the equal parts of a model."""

    rank: int
    num_ranks: int

    def of(self, name: str, weight: Any) -> Tensor:
        """What this rank holds of the parameter `name`. `weight`: a safetensors slice, or anything indexed like one."""
        module, kind = name.split(".")[-2:]
        shape = weight.get_shape()
        if module in WIDENING:
            part: Tensor = weight[self._part(shape[0])]
        elif module in NARROWING and kind == "weight":
            part = weight[:, self._part(shape[1])]
        else:
            part = weight[:]
        return part

    def _part(self, size: int) -> slice:
        part = size // self.num_ranks
        return slice(self.rank * part, (self.rank + 1) * part)


def checkpoint_folder(name: str, revision: str | None) -> Path:
    """Where the checkpoint `name` lies, fetched from the hub where needed. Raises: OSError when it cannot be had."""
    index = cached_file(
        name, "model.safetensors.index.json", revision=revision, _raise_exceptions_for_missing_entries=False
    )
    files = set(_weight_map(Path(index)).values()) if index else {"model.safetensors"}
    for file in ("config.json", *sorted(files)):
        folder = Path(cached_file(name, file, revision=revision)).parent
    cached_file(name, "generation_config.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    return folder


def _weight_map(index: Path) -> dict[str, str]:
    files: dict[str, str] = json.loads(index.read_text())["weight_map"]
    return files


def empty_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a checkpoint with weights that take no memory: what is asked of it is its shape."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def fill(model: PreTrainedModel, folder: Path, share: Share, device: torch.device) -> None:
    """Give an empty model its share of a checkpoint's weights. Only rank 0 has a head.

    Raises: Mismatch when a weight is missing.
    """
    wanted = {name: weight.dtype for name, weight in model.named_parameters() if share.rank == 0 or name != HEAD}
    for file, names in _by_file(folder, wanted).items():
        with safe_open(file, framework="pt") as weights:
            for name in names:
                part = share.of(name, weights.get_slice(name))
                _put(model, name, part.to(device, wanted[name], copy=True))  # a copy: not a view of the file
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config=model.config).to(device)


def _by_file(folder: Path, wanted: dict[str, torch.dtype]) -> dict[Path, list[str]]:
    files = _files(folder)
    if missing := sorted(wanted.keys() - files.keys()):
        raise Mismatch(f"the checkpoint in {folder} has no {missing[0]}; give one saved by save_pretrained")
    by_file = defaultdict(list)
    for name in wanted:
        by_file[folder / files[name]].append(name)
    return by_file


def _files(folder: Path) -> dict[str, str]:
    """The file of each weight."""
    if (index := folder / "model.safetensors.index.json").is_file():
        return _weight_map(index)
    file = "model.safetensors"
    with safe_open(folder / file, framework="pt") as weights:
        return dict.fromkeys(weights.keys(), file)


def _put(model: nn.Module, name: str, weight: Tensor) -> None:
    module, _, kind = name.rpartition(".")
    setattr(model.get_submodule(module), kind, nn.Parameter(weight, requires_grad=False))
