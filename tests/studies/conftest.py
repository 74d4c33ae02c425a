"""The finished run of a tiny pair, as the tests of the pipeline have it."""

from tests.training.conftest import models, run

__all__ = ["models", "run"]
