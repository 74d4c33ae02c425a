"""Fixtures for all tests. A module is left to `make test-slow` by its line `pytestmark = pytest.mark.slow`."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from semspec.grammars import compiler
from tests.helpers.served import bundled

__all__ = ["bundled"]
pytest.register_assert_rewrite("tests.manifests")

IS_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow\b", re.MULTILINE)


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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the modules that `-m "not slow"` excludes, since importing them takes long."""
    is_left_out = config.option.markexpr == "not slow" and collection_path.suffix == ".py"
    return True if is_left_out and IS_SLOW.search(collection_path.read_text()) else None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run whose every test was skipped has failed, as one that found none: `make test-compose` without Docker."""
    if (
        exitstatus == pytest.ExitCode.OK
        and session.testscollected
        and not session.config.option.collectonly
    ):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if not getattr(reporter, "stats", {"passed": []}).keys() & {"passed", "xfailed"}:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """As engines run: on short rows, threads only wait for one another."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a tiny Qwen2 and a tiny Llama model."""
    from tests.helpers.checkpoints import (
        save_checkpoints,
    )  # transformers: seconds before the first process could start others

    return save_checkpoints(tmp_path_factory.mktemp("checkpoints"))
