"""A pytest plugin for the targets of the Makefile: a run in which no test of the kind it names ran has failed.

`pytest -p tests.must_run --must-run tests/compose/live.py ...`: tests that are not collected, deselected or skipped do
not count.
"""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--must-run", metavar="PATH", default="", help="fail unless a test in PATH ran to its end")


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.option.must_run) and not hasattr(config, "workerinput"):  # xdist's workers report to the first
        config.pluginmanager.register(_MustRun(config.rootpath, Path(path)))


class _MustRun:
    def __init__(self, root: Path, path: Path) -> None:
        self._root, self._path = root, root / path
        self._has_run = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        is_own = (self._root / report.nodeid.partition("::")[0]).is_relative_to(self._path)
        self._has_run |= is_own and report.when == "call" and not report.skipped

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not self._has_run and exitstatus == pytest.ExitCode.OK and not session.config.option.collectonly:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._has_run:
            terminalreporter.write_line(
                f"no test of {self._path} ran; see with -rs what was skipped, and why", red=True
            )
