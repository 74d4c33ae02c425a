"""A run without a test of the kind it is for fails."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "options", "status"),
    [
        ("def test_it(): pass", ["live.py"], 0),
        ("import pytest\ndef test_it(): pytest.skip('no engine')", ["live.py"], 5),
        (
            "import pytest\npytestmark = pytest.mark.skipif(True, reason='no engine')\ndef test_it(): pass",
            ["live.py"],
            5,
        ),
        ("def test_it(): pass", ["test_other.py"], 5),
        ("def test_it(): pass", [".", "live.py"], 5),  # pytest drops a file whose folder is given as well
        ("def test_it(): pass", [".", "-o", "python_files=test_*.py live.py"], 0),
        ("def test_it(): assert False", ["live.py"], 1),
    ],
)
def test_run_fails_unless_the_named_tests_ran(tmp_path: Path, text: str, options: list[str], status: int) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "live.py").write_text(text)
    (tmp_path / "test_other.py").write_text("def test_other(): pass")
    command = ["-m", "pytest", "-q", "-p", "tests.must_run", "-p", "no:schemathesis", "--must-run", "live.py", *options]
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert ("no test of" in ended.stdout) == (status == 5)


def test_compose_target_collects_the_live_tests() -> None:
    [line] = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pytest tests/compose" in line]
    assert "--must-run tests/compose/live.py" in line
    options = line.partition("pytest ")[2].replace("$(ARGS)", "").replace('"', "").split(" -o ")
    command = ["-m", "pytest", *options[0].split(), "-o", options[1].strip(), "--collect-only", "-q"]
    listed = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert listed.stdout.count("tests/compose/live.py::") >= 16, listed.stdout[-2000:]
