"""The form in which weights are served: floating point, or packed as in a GGUF file.

Decoding reads every weight for every token, so the smallest form is the fastest if the processor supports it well. The
processor's flags do not show that, so `auto` measures it.
"""

import logging
from functools import cache, partial
from time import perf_counter
from typing import Literal

import torch
from torch.nn.functional import linear
from transformers import AutoConfig, PretrainedConfig

from semspec.device import device_of, num_cores
from semspec.engine.gguf import weights_file
from semspec.engine.gguf_weights import GgufTensor, read_tensor
from semspec.engine.packed import Compute
from semspec.errors import Mismatch

Form = Literal["float32", "bfloat16", "float16", "packed"]

LEAST_WEIGHTS = 1 << 26
"""Models with fewer weights are served in fp32 without a measurement, because they fit into the caches."""
NUM_COPIES, NUM_RUNS = 4, 5
"""Copies of a matrix that are read in turn, so that none is in a cache; runs of each form."""
LEAST_GAIN = 1.2
"""`auto` chooses another form than fp32 only if it is faster by this factor."""

logger = logging.getLogger(__name__)


@cache
def resolve_form(
    name: str, folder: str, device: str, dtype: str, threads: int | None = None
) -> Form:
    """Return the form for the checkpoint `name` in `folder`. "auto" is bfloat16 on a GPU, and measured on a CPU.

    `threads`: see `TorchEngine.load`.

    Raises: Mismatch when `dtype` is packed, but the weights are not, or the device is not a CPU.
    """
    device = device_of(device, f"the model {name!r}")
    if dtype == "packed":
        _check_packed(name, folder, device)
    if dtype != "auto":
        form: Form = dtype  # type: ignore[assignment]
        return form
    if device != "cpu":
        return "bfloat16"
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return _fastest(name, config, _matrix(folder), threads)


def _check_packed(name: str, folder: str, device: str) -> None:
    """Raises: Mismatch when the weights cannot be served packed."""
    if device != "cpu":
        raise Mismatch(
            f"dtype packed: {name} is on {device}, and packed weights are for CPUs",
            remedy="set dtype to auto",
        )
    if weights_file(folder) is None:
        raise Mismatch(
            f"dtype packed: {name} has no packed weights",
            remedy="give a GGUF file, or set dtype to auto",
        )


def _matrix(folder: str) -> GgufTensor | None:
    """Return the largest matrix of the first layer; None unless it is packed in a type that can be multiplied."""
    if (file := weights_file(folder)) is None:
        return None
    matrix = read_tensor(file, "blk.0.ffn_gate.weight")
    return matrix if matrix and matrix.is_packable else None


def _fastest(
    name: str, config: PretrainedConfig, matrix: GgufTensor | None, threads: int | None
) -> Form:
    """Measure the product of one row with a matrix of the model's size in each form, and return the fastest."""
    text = config.get_text_config()
    hidden = int(text.hidden_size)
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    inner = max(inner) if isinstance(inner, list) else int(inner)  # a list has a size a layer
    if matrix is None and int(text.num_hidden_layers) * 3 * hidden * inner < LEAST_WEIGHTS:
        return "float32"
    computes: dict[Form, list[Compute]] = {"float32": [], "bfloat16": []}
    for _ in range(NUM_COPIES):
        weight = torch.randn(inner, hidden)
        computes["float32"].append(partial(linear, weight=weight))
        computes["bfloat16"].append(partial(linear, weight=weight.bfloat16()))
    if matrix is not None:
        from semspec.engine.onnx_layers import product

        packed = matrix.packed()
        computes["packed"] = [
            product(packed, None, threads or num_cores()) for _ in range(NUM_COPIES)
        ]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(threads or 1)
    seconds = {form: _seconds(form, hidden, of_form) for form, of_form in computes.items()}
    torch.set_num_threads(num_threads)
    fastest = min(seconds, key=lambda form: seconds[form])
    chosen: Form = fastest if seconds["float32"] > LEAST_GAIN * seconds[fastest] else "float32"
    times = ", ".join(f"{form} {1e3 * time:.2f} ms" for form, time in seconds.items())
    logger.info(
        "model %r is served in %s; the product of one token with a matrix of its size took: %s",
        name,
        chosen,
        times,
    )
    return chosen


@torch.inference_mode()
def _seconds(form: Form, num_columns: int, computes: list[Compute]) -> float:
    """Return the time of a product with one row: the best mean over all `computes` in turn."""
    row = torch.randn(1, num_columns, dtype=torch.bfloat16 if form == "bfloat16" else torch.float32)
    best = float("inf")
    for _ in range(NUM_RUNS):
        begin = perf_counter()
        for compute in computes:
            compute(row)
        best = min(best, perf_counter() - begin)
    return best / len(computes)
