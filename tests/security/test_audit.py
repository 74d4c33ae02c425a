"""The audit of what we install."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

STAND_IN = """#!/bin/sh
# Instead of an interpreter: makes an environment whose programs write down how they were called.
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "$0" "$@" >> %s\\nexit %s\\n' "$CALLS" 0 > "$3/bin/python"
printf '#!/bin/sh\\necho "$0" "$@" >> %s\\nexit %s\\n' "$CALLS" "$FOUND" > "$3/bin/pip-audit"
chmod +x "$3"/bin/*
"""


def audit(folder: Path, found: int) -> tuple[int, str]:
    """Exit status of the script when the audit's own is `found`, and what was called."""
    stand_in, calls = folder / "python", folder / f"calls-{found}"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(stand_in), "CALLS": str(calls), "FOUND": str(found)}
    status = subprocess.run([ROOT / "scripts" / "audit", "--desc"], env=environment, timeout=60).returncode
    return status, calls.read_text()


def test_audit_covers_every_version_that_is_installed(tmp_path: Path) -> None:
    status, calls = audit(tmp_path, 0)
    assert status == 0
    assert re.search(r"pip-audit --requirement constraints\.txt .*--strict.* --desc$", calls.strip())


def test_finding_fails_the_audit(tmp_path: Path) -> None:
    assert audit(tmp_path, 1)[0] == 1
