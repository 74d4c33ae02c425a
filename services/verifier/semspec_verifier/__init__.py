"""The verifier service: pairs of probes. Run with `python -m semspec_verifier`."""
