"""What every engine that runs a causal LM offers, and how a service loads one."""

from typing import Protocol

from semspec.decoding.protocols import Target
from semspec.engine.tokenization import ModelTokenizer
from semspec.settings import ModelSettings
from semspec.types import Writer


class Engine(Target, Protocol):
    """A model that generates and scores. Served as draft or as target: the difference is the weights."""

    async def aclose(self) -> None:
        """Cancel what runs and free the model. Later calls raise Unavailable."""
        ...


class LocalEngine(Engine, Protocol):
    """An engine whose tokenizer is in this process, for those who build on it, such as a remote writer."""

    @property
    def tokenizer(self) -> ModelTokenizer: ...


def load_engine(settings: ModelSettings, writer: Writer) -> LocalEngine:
    """The model the settings name. Raises: Mismatch when it cannot be served."""
    from semspec.engine.tensor_parallel.split import Split  # slow to import, as is the engine: liveness answers first
    from semspec.engine.transformers_engine import TransformersEngine

    return TransformersEngine.load(
        settings.model,
        writer=writer,
        revision=settings.revision,
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        cache_bytes=settings.cache_bytes,
        max_context_tokens=settings.max_context_tokens,
        engine=settings.engine,
        split=Split(settings.tensor_parallel, f"SEMSPEC_{writer.upper()}_TENSOR_PARALLEL"),
    )
