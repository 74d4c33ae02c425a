"""Loads the engine of a service: `TorchEngine` or `VllmEngine`."""

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from semspec.types import Writer

if TYPE_CHECKING:
    from semspec.engine.causal_lm import EngineName
    from semspec.engine.local import LocalEngine
    from semspec.engine.settings import ModelSettings  # with pydantic, which an engine alone lacks

OPTIONS = {
    "revision",
    "device",
    "dtype",
    "threads",
    "cache_bytes",
    "kv_bytes",
    "max_context_tokens",
}
"""Settings that are parameters of `TorchEngine.load`."""

LoadModel = Callable[["ModelSettings", Writer], "LocalEngine"]
"""Type of `load_engine`, for tests that replace it."""


def choose_engine(settings: "ModelSettings") -> "EngineName | Literal['vllm']":
    """Return the engine of `settings`. "auto" on the device cuda is vLLM if it is installed; not for a GGUF file."""
    if (
        settings.engine == "auto"
        and settings.device.startswith("cuda")
        and not settings.model.endswith(".gguf")
    ):
        if find_spec("vllm"):
            return "vllm"
        logging.getLogger(__name__).warning(
            "vLLM is not installed: serving without it; long contexts need vLLM"
        )
    return settings.engine


def load_engine(settings: "ModelSettings", writer: Writer) -> "LocalEngine":
    """Load the model of `settings`. Raises: Mismatch when it cannot be served."""
    if (engine := choose_engine(settings)) == "vllm":
        from semspec.engine.vllm.engine import load_vllm

        return load_vllm(settings, writer)
    # Slow imports, deferred until health checks are answered.
    from semspec.engine.checkpoint import loading, model_fingerprint
    from semspec.engine.numeric_form import resolve_form
    from semspec.engine.torch_engine import TorchEngine
    from semspec.release import check_model

    if settings.pair:  # checked before the weights take memory
        with loading(settings.model, settings.revision) as folder:
            form = resolve_form(
                settings.model, folder, settings.device, settings.dtype, settings.threads
            )
            check_model(settings, writer, model_fingerprint(folder, form))
    options = settings.model_dump(include=OPTIONS)
    return TorchEngine.load(
        settings.model, writer=writer, engine=engine, probes=settings.pair, **options
    )
