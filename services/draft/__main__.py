"""Entry point: `python -m services.draft`."""

from functools import partial

from semspec.core import Writer
from semspec.engine.protocol import Engine
from semspec.rpc.server import run
from semspec.rpc.servicers import draft_service
from semspec.settings import load_settings
from services.draft.settings import DraftSettings


def main() -> None:
    """Serve until told to stop."""
    settings = load_settings(DraftSettings)
    run(draft_service(partial(load_engine, settings)), settings)


def load_engine(settings: DraftSettings) -> Engine:
    """The model the settings name. Raises: Mismatch or InvalidRequest when it cannot be served."""
    from semspec.engine.transformers_engine import TransformersEngine  # slow to import: liveness answers first

    return TransformersEngine.load(
        settings.model,
        writer=Writer.DRAFT,
        revision=settings.revision,
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        cache_bytes=settings.cache_bytes,
        max_context_tokens=settings.max_context_tokens,
    )


if __name__ == "__main__":
    main()
