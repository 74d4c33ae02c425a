"""The draft service with a datastore."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.retrieval.support import DOCUMENTS, TARGET, write


@pytest.mark.slow
def test_service_with_a_half_built_datastore_ends_with_one_line(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    write(tmp_path, TARGET, DOCUMENTS)
    (tmp_path / "card.json").unlink()
    own = {"MODEL": str(checkpoints["llama"]), "PORT": "0", "DATASTORE": str(tmp_path)}
    environment = os.environ | {f"SEMSPEC_DRAFT_{name}": value for name, value in own.items()}
    command = [sys.executable, "-m", "semspec.services.draft"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    [line] = [line for line in ended.stderr.splitlines() if "datastore" in line]
    assert "is half-built" in line and "semspec train datastore" in line and str(tmp_path) in line
