"""Fixtures for all tests, and which of them `make test` leaves to `make test-slow`."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from semspec.grammars import compiler
from tests.served import bundled

__all__ = ["bundled"]

TESTS = Path(__file__).parent
SLOW = (
    "attacks",
    "bench/test_gpu.py",
    "bench/test_peers.py",
    "bench/test_rehearsal.py",
    "bench/test_report.py",
    "bench/test_run.py",
    "bench/test_vllm.py",
    "chaos",
    "clients",
    "commands/test_chat.py",
    "commands/test_doctor.py",
    "commands/test_health.py",
    "commands/test_trace.py",
    "demo/test_bundled_pair.py",
    "demo/test_language.py",
    "demo/test_trainer.py",
    "engine/test_logprobs.py",
    "engine/test_speculative.py",
    "engine/test_token_level.py",
    "gateway/test_contention.py",
    "gateway/test_patience.py",
    "gateway/test_process.py",
    "gateway/test_replicas.py",
    "gateway/test_resume.py",
    "gateway/test_tls.py",
    "manifests",
    "playground",
    "remote/test_target.py",
    "remote/test_writer.py",
    "rpc/test_token_calls.py",
    "security/test_fuzz.py",
    "security/test_secrets.py",
    "security/test_services.py",
    "stack/test_hangs.py",
    "stack/test_losses.py",
    "stack/test_neighbour.py",
    "stack/test_offline_writer.py",
    "stack/test_reattach.py",
    "stack/test_retrieval.py",
    "stack/test_surroundings.py",
    "stack/test_refusals.py",
    "stack/test_without_probes.py",
    "studies/test_nli.py",
    "test_cli.py",
    "test_demo_run.py",
    "test_observability/test_whole_way.py",
    "test_openapi",
    "test_stack.py",
    "test_wheel.py",
    "training/test_collection_run.py",
    "training/test_files.py",
    "training/test_fit.py",
    "training/test_pipeline.py",
    "training/test_report.py",
    "training/test_stages.py",
)
"""Folders and files whose tests take long or need an otherwise idle machine."""


@pytest.fixture(autouse=True)
def _patient_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar ends by its limit of CPU time, however busy the machine is."""
    monkeypatch.setattr(compiler, "TIMEOUT_S", 300.0)


def pytest_configure() -> None:
    """No example of Hypothesis is timed: a busy machine fails no test."""
    if find_spec("hypothesis"):  # vLLM's environment has none
        from hypothesis import settings

        settings.register_profile("untimed", settings.default, deadline=None)
        settings.load_profile("untimed")


def is_slow(path: Path) -> bool:
    return any(path.is_relative_to(TESTS / name) for name in SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip collecting what `-m "not slow"` excludes, since importing it takes long."""
    return True if config.option.markexpr == "not slow" and is_slow(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests before `-m` selects."""
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a tiny Qwen2 and a tiny Llama model."""
    from tests.checkpoints import save_checkpoints  # transformers: seconds before the first process could start others

    return save_checkpoints(tmp_path_factory.mktemp("checkpoints"))
