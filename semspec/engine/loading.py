"""From a service's settings to its engine."""

from semspec.engine.protocol import Engine
from semspec.settings import ModelSettings
from semspec.types import Writer


def load_engine(settings: ModelSettings, writer: Writer) -> Engine:
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
