"""What each of many clients can do with the gateway; `docs/clients.md` has the table.

`make test-clients` runs all of them and writes the table anew. Without it only those run that need no environment of
their own. Each asks the bundled pair: a puzzle, a call of a tool, JSON. With `SEMSPEC_CLIENTS_PAIR=real` it asks a pair
of real checkpoints instead, in the folder that `SEMSPEC_REAL_MODELS` names.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import OWN, ROOT, Server, interpreter
from tests.clients.matrix_program import ANOTHER, CLIENTS

pytestmark = pytest.mark.slow

TABLE = ROOT / "benchmarks" / "results" / "clients.json"
REAL_TABLE = TABLE.with_name("clients-real.json")
"""What the real pair answers."""
CLIENT_S = 900.0
"""For all that one client asks."""
FIELD = r"""['"](of|number)\\?['"]|number=-?\d|The (tool says|result is)"""
"""In a call and in JSON, as clients show them; or what was said after the call's result."""


def cell(capability: str, found: dict[str, Any], answer: str) -> str:
    """What the table says of one capability; `answer`: a pattern of what the question's answers have."""
    text, parts, error = found.get("text", ""), found.get("parts", ()), found.get("error", "")
    if not found:
        return "-"
    if capability == "errors":
        return (
            "message" if ANOTHER in error or "not supported" in error else f"lost: {error or text}"
        )
    if "leave them out" in error or "leave it out" in error:
        return "refused"
    if error:
        return f"fails: {error}"
    said = text or "".join(parts)
    return (
        "yes"
        if re.search(FIELD if capability in ("tools", "json") else answer, said)
        else f"wrong: {said}"
    )


async def outcomes(client: str, server: Server) -> dict[str, str]:
    """What the table says of each capability at a server."""
    program = str(Path(__file__).with_name("matrix_program.py"))
    command = [interpreter(client), program, client, server.url, server.api_key, server.model]
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "SEMSPEC_CLIENTS_QUESTION": server.matrix_question},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), CLIENT_S)
    assert process.returncode == 0, errors.decode()
    return {
        name: cell(name, found, server.pattern)
        for name, found in json.loads(output.splitlines()[-1]).items()
    }


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("client", CLIENTS)
async def test_client_can_do_what_the_table_says(matrix_server: Server, client: str) -> None:
    report = os.environ.get("SEMSPEC_CLIENTS_REPORT")
    if client not in OWN and not report:
        pytest.skip("has an environment of its own: make test-clients")
    if client == "curl" and shutil.which("curl") is None:
        pytest.skip("no curl here")
    row = await outcomes(client, matrix_server)
    if report:
        path = Path(report)
        rows = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(rows | {client: row}, indent=1, ensure_ascii=False) + "\n")
    else:
        assert row == json.loads(TABLE.read_text())[client]


def test_table_of_the_page_is_what_was_found() -> None:
    checked = subprocess.run(
        [ROOT / "scripts" / "clients-table", "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    rows = json.loads(TABLE.read_text())
    assert set(rows) == set(CLIENTS) and len(rows) >= 12
    assert json.loads(REAL_TABLE.read_text()) == rows
    assert all(
        not value.startswith(("fails", "wrong", "lost"))
        for row in rows.values()
        for value in row.values()
    )
