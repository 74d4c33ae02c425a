"""Entry point: `python -m semspec_target`."""

from functools import partial

from semspec.engine.load import LoadModel, load_engine
from semspec.engine.selftest import self_test
from semspec.protocols import Engine
from semspec.remote.writer import load_remote_writer
from semspec.rpc.server import run
from semspec.rpc.servicers import TargetServicer
from semspec.settings import parse_command
from semspec.types import Writer
from semspec_target.settings import TargetSettings


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    settings = parse_command(TargetSettings, "python -m semspec_target")
    run(TargetServicer(partial(load, settings), partial(self_test, settings=settings)), settings)


def load(settings: TargetSettings, load_model: LoadModel = load_engine) -> Engine:
    """Load the model, with a remote writer if configured. Raises: Mismatch when it cannot be served."""
    if server := settings.server:
        return load_remote_writer(settings, server, Writer.TARGET, load_model)
    return load_model(settings, Writer.TARGET)


if __name__ == "__main__":
    main()
