"""Entry point: `python -m semspec_verifier`."""

import os
from functools import partial

from semspec.release import load_release
from semspec.rpc.server import run
from semspec.rpc.servicers import ServedVerifier, VerifierServicer
from semspec.settings import parse_command
from semspec_verifier.settings import VerifierSettings


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    settings = parse_command(VerifierSettings, "python -m semspec_verifier")
    run(VerifierServicer(partial(load, settings)), settings)


def load(settings: VerifierSettings) -> ServedVerifier:
    """Load the probes of the settings. Raises: Mismatch when they are not those of the release."""
    # It has to be set before torch is imported.
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.threads or 1))
    # Slow import, deferred until health checks are answered.
    from semspec.probes.verifier import ProbeVerifier

    release = load_release(settings.pair)
    verifier = ProbeVerifier.load(settings.pair, settings.device, settings.equivalence)
    if reason := release.probes_mismatch(verifier.handshake()):
        raise reason
    return verifier


if __name__ == "__main__":
    main()
