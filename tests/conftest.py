"""Fixtures for all tests, and which of them `make test` leaves to `make test-slow`."""

from pathlib import Path

import pytest

from tests.checkpoints import checkpoints
from tests.served import bundled

__all__ = ["bundled", "checkpoints"]

TESTS = Path(__file__).parent
SLOW = (
    "bench/test_gpu.py",
    "bench/test_load.py",
    "bench/test_peers.py",
    "bench/test_report.py",
    "bench/test_run.py",
    "bench/test_vllm.py",
    "chaos",
    "clients",
    "commands/test_chat.py",
    "commands/test_doctor.py",
    "commands/test_trace.py",
    "demo/test_trainer.py",
    "engine/test_tensor_parallel.py",
    "engine/test_tensor_parallel_processes.py",
    "gateway/test_patience.py",
    "gateway/test_process.py",
    "manifests",
    "playground",
    "security/test_secrets.py",
    "security/test_services.py",
    "stack/test_losses.py",
    "stack/test_offline_writer.py",
    "stack/test_reattach.py",
    "stack/test_refusals.py",
    "test_demo_run.py",
    "test_observability/test_whole_way.py",
    "test_openapi",
    "training/test_pipeline.py",
)
"""Folders and files whose tests take long, or whose processes want the machine for themselves."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, before `-m` chooses."""
    slow = {TESTS / name for name in SLOW}
    for item in items:
        if not slow.isdisjoint((item.path, *item.path.parents)):
            item.add_marker(pytest.mark.slow)
