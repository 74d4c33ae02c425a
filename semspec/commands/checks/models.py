"""Checks of the two checkpoints: present, readable, supported, and small enough for the memory."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.commands.checks import Check, fail, ok, warn
from semspec.stack import StackConfig

FAST = ("Qwen2ForCausalLM", "LlamaForCausalLM")
"""Model classes that `semspec.engine.decoder` supports."""
MODELS = ("DRAFT", "TARGET")
"""The services with a model, as their settings name them."""
CPU_BYTES, GPU_BYTES = 4, 2
"""Bytes per weight: fp32 on a CPU, bf16 on a GPU."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The check of a model, and its number of weights; 0 if unknown."""

    check: Check
    num_weights: int = 0


def check_models(config: StackConfig) -> Iterator[Check]:
    models = {"draft": config.draft_model, "target": config.target_model}
    findings = [look_at(role, str(model)) for role, model in models.items() if model is not None]
    yield from (each.check for each in findings)
    if all(each.num_weights for each in findings):
        yield _memory(sum(each.num_weights for each in findings), sum(_kv_bytes(config, role) for role in MODELS))


def look_at(role: str, model: str) -> Findings:
    """Check one model, given as folder or hub id."""
    name = f"{role} model"
    folder = find_folder(model)
    if folder is None:
        return Findings(_absent(role, model))
    try:
        config = json.loads((folder / "config.json").read_text())
        architecture = str((config.get("architectures") or [""])[0])
        num_weights = count_weights(folder)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        return Findings(fail(name, f"{folder}: {error}", "fetch the checkpoint again"))
    problem = _problem(name, folder, architecture, str(config.get("model_type", "")), num_weights)
    runner = "fast decoder" if architecture in FAST else "transformers"
    good = ok(name, f"{model}: {architecture}, {runner}, {num_weights / 1e6:.1f} M weights")
    return Findings(problem or good, num_weights)


def find_folder(model: str) -> Path | None:
    """The folder of a model on this machine, including the hub's cache; None if there is none."""
    if Path(model).is_dir():
        return Path(model)
    if _is_path(model):
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        config = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def count_weights(folder: Path) -> int:
    """Number of weights in all safetensors files of a folder, read from their headers. Raises: OSError, ValueError."""
    return sum(
        math.prod(tensor["shape"])
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in _header(path).items()
        if name != "__metadata__"
    )


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > path.stat().st_size:
            raise ValueError(f"{path.name} is damaged or incomplete")
        header: dict[str, Any] = json.loads(file.read(size))
    end = 8 + size + max((tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"))
    if path.stat().st_size < end:
        raise ValueError(f"{path.name} is incomplete")
    return header


def _is_path(model: str) -> bool:
    return Path(model).is_absolute() or model.startswith((".", "~")) or model.count("/") > 1


def _absent(role: str, model: str) -> Check:
    name, option = f"{role} model", f"--{role}-model"
    if _is_path(model) or not model:
        return fail(name, f"there is no folder {model}", f"give {option} a checkpoint's folder or a hub id")
    remedy = f"fetch it beforehand (`hf download {model}`), or give {option} a folder"
    return warn(name, f"{model} is neither a folder nor in the hub's cache; the service will fetch it", remedy)


def _problem(name: str, folder: Path, architecture: str, model_type: str, num_weights: int) -> Check | None:
    if not num_weights:
        return fail(name, f"{folder} has no safetensors weights", "convert the checkpoint; pickled ones are not read")
    if architecture not in FAST and not _is_known(model_type):
        remedy = "serve a causal LM that the installed transformers has, or upgrade transformers"
        return fail(name, f"{folder}: {architecture or 'no architecture'} ({model_type}) is not known", remedy)
    if not (folder / "tokenizer.json").is_file():
        return warn(name, f"{folder} has no tokenizer.json, so its tokenizer is rebuilt", "add the file to the folder")
    return None


def _is_known(model_type: str) -> bool:
    """Whether transformers has a causal LM of this type."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:
        return True  # missing packages have their own check
    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def _kv_bytes(config: StackConfig, role: str) -> int:
    """Bound on keys and values of a model service; its default if the setting is none that the service accepts."""
    from semspec.engine.settings import ModelSettings  # needs pydantic, whose absence has its own check

    given = config.given(f"SEMSPEC_{role}_KV_BYTES")
    return int(given) if given.isdecimal() else int(ModelSettings.model_fields["kv_bytes"].default)


def _memory(num_weights: int, kv_bytes: int) -> Check:
    place, free_bytes, weight_bytes = _free()
    needed = num_weights * weight_bytes
    if not free_bytes:
        return warn("memory", f"weights {_size(needed)}; what is free is unknown here", "see that they fit")
    words = f"weights {_size(needed)}, keys and values up to {_size(kv_bytes)}, {_size(free_bytes)} free on the {place}"
    if needed > free_bytes:
        return fail("memory", f"{words}: too little", "free some, or serve smaller models")
    if needed + kv_bytes > free_bytes:
        remedy = "lower SEMSPEC_DRAFT_KV_BYTES and SEMSPEC_TARGET_KV_BYTES"
        return warn("memory", f"{words}: too little for both", remedy)
    return ok("memory", words)


def _free() -> tuple[str, int, int]:
    """Location of the models, free bytes there (0: unknown), and bytes per weight."""
    try:
        import torch

        if torch.cuda.is_available():
            return "GPU", torch.cuda.mem_get_info()[0], GPU_BYTES
    except ImportError:
        pass
    return "machine", _free_host_bytes(), CPU_BYTES


def _free_host_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        names = os.sysconf_names
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in names else 0


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
