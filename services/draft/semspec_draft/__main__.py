"""Entry point: `python -m semspec_draft`."""

from functools import partial

from semspec.engine.load import LoadModel, load_engine
from semspec.engine.selftest import self_test
from semspec.protocols import Engine
from semspec.rpc.server import run
from semspec.rpc.servicers import DraftServicer
from semspec.settings import parse_command
from semspec.types import Writer
from semspec_draft.settings import DraftSettings


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    settings = parse_command(DraftSettings, "python -m semspec_draft")
    run(DraftServicer(partial(load, settings), partial(self_test, settings=settings)), settings)


def load(settings: DraftSettings, load_model: LoadModel = load_engine) -> Engine:
    """Load the model, the datastore, or both. Raises: Mismatch when one of them cannot be served."""
    if settings.datastore is None:
        return load_model(settings, Writer.DRAFT)
    from semspec.decoding.retrieval.datastore import Datastore  # needs numpy and safetensors
    from semspec.decoding.retrieval.drafter import RetrievingDraft

    datastore = Datastore.load(settings.datastore)
    return RetrievingDraft(
        load_model(settings, Writer.DRAFT) if settings.model else None, datastore
    )


if __name__ == "__main__":
    main()
