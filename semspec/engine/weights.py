"""Loads weights of a checkpoint, and refuses a model if its files lack any of them."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from semspec.errors import Mismatch

AutoModel = type[AutoModelForCausalLM] | type[AutoModelForSequenceClassification]

NUM_NAMED = 3
"""Number of weights that a message names."""

logger = logging.getLogger(__name__)


def load_weights(
    auto_model: AutoModel, name: str, folder: str, dtype: torch.dtype
) -> PreTrainedModel:
    """Load the model `name` from the safetensors in `folder`, without remote code, onto the CPU.

    transformers initialises weights at random that the files lack or have in another size. Such a model is refused.

    Raises: Mismatch with the names of these weights; transformers' errors for other faults.
    """
    with _without_report():
        model, info = auto_model.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,  # None would prompt at the terminal
            ignore_mismatched_sizes=True,  # refused below, by name
            output_loading_info=True,
        )
    _check_complete(name, info["missing_keys"], info["mismatched_keys"])
    if unexpected := info["unexpected_keys"]:
        kind, names = type(model).__name__, _listed(unexpected)
        logger.warning(
            "model %r: %s does not use %d weights of the checkpoint: %s",
            name,
            kind,
            len(unexpected),
            names,
        )
    loaded: PreTrainedModel = model
    return loaded


def check_weights(name: str, found: Mapping[str, Sequence[int]], outline: PreTrainedModel) -> None:
    """Compare names and sizes of the weights `found` in files with those of `outline`, a model without values.

    If the files have names of another layout, which transformers converts, only `load_weights` checks them.

    Raises: Mismatch with the names of weights that are missing or have another size.
    """
    wanted = {key: [*tensor.shape] for key, tensor in outline.state_dict().items()}
    if not found.keys() <= wanted.keys():
        return
    sources_by_target = outline.all_tied_weights_keys
    held = found.keys() | {
        sources_by_target[key] for key in found.keys() & sources_by_target.keys()
    }
    tied = {target for target, source in sources_by_target.items() if source in held}
    mismatched = [(key, size, wanted[key]) for key, size in found.items() if [*size] != wanted[key]]
    _check_complete(name, wanted.keys() - held - tied, mismatched)


def safetensors_sizes(folder: str) -> dict[str, list[int]]:
    """Return the size of each tensor in the safetensors of `folder` by its name."""
    sizes = dict[str, list[int]]()
    for path in Path(folder).glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            sizes |= {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118  # not a dictionary
    return sizes


def _check_complete(
    name: str,
    missing: Collection[str],
    mismatched: Iterable[tuple[str, Sequence[int], Sequence[int]]],
) -> None:
    """Raises: Mismatch when weights are `missing`, or `mismatched`: name, size in the files, size in the model."""
    sizes = [f"{key} ({[*found]}, not {[*wanted]})" for key, found, wanted in mismatched]
    if missing:
        words = f"its files lack {len(missing)} of its weights: {_listed(missing)}"
    elif sizes:
        words = f"{len(sizes)} of its weights have other sizes than its config.json says: {_listed(sizes)}"
    else:
        return
    raise Mismatch(
        f"cannot load model {name!r}: {words}",
        remedy="fetch the checkpoint's files again, or correct config.json",
    )


def _listed(names: Collection[str]) -> str:
    """Return the first of `names` in alphabetical order, and the number of the others."""
    first = ", ".join(sorted(names)[:NUM_NAMED])
    return first if len(names) <= NUM_NAMED else f"{first} and {len(names) - NUM_NAMED} more"


@contextmanager
def _without_report() -> Iterator[None]:
    """Keep transformers' table of missing and unexpected weights out of the log; `load_weights` logs one line."""

    def is_kept(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    source = logging.getLogger("transformers.modeling_utils")
    source.addFilter(is_kept)
    try:
        yield
    finally:
        source.removeFilter(is_kept)
