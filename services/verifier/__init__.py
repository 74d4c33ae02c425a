"""The verifier service: two probes. Run with `python -m services.verifier`."""
