"""Entry point: `python -m services.target`."""

from functools import partial

from semspec.core import Writer
from semspec.engine.loading import load_engine
from semspec.rpc.server import run
from semspec.rpc.servicers import target_service
from semspec.settings import load_settings
from services.target.settings import TargetSettings


def main() -> None:
    """Serve until told to stop."""
    settings = load_settings(TargetSettings)
    run(target_service(partial(load_engine, settings, Writer.TARGET)), settings)


if __name__ == "__main__":
    main()
