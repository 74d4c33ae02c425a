"""The tests of the engine over vLLM, which run in an environment of their own."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_engine_over_vllm_passes_its_own_tests() -> None:
    """`make test-vllm`. An environment that cannot be installed is a failure, too."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    result = subprocess.run(["make", "test-vllm"], cwd=ROOT, env=own, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout[-6000:]}\n{result.stderr[-2000:]}"
