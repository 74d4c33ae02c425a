"""The tests of the engine over vLLM, which run in an environment of their own."""

import pytest

from tests.vllm.lane import Lane


@pytest.mark.slow
def test_engine_over_vllm_passes_its_own_tests(own_lane: Lane) -> None:
    """`make test-vllm`. An environment that cannot be installed is a failure, too."""
    status, output = own_lane.wait()
    assert status == 0, output
