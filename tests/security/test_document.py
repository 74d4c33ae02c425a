"""docs/security.md keeps its word."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from semspec.rpc.clients import RemoteDrafter
from semspec.rpc.connection import ClientOptions
from semspec.rpc.servicers import DraftServicer
from semspec.rpc.tls import Certificates
from tests.helpers.rpc import FakeEngine, serving, settings

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "security.md").read_text()


def test_every_threat_has_a_defence_and_a_test() -> None:
    table = DOCUMENT.partition("\n## Threats\n")[2].partition("\n## ")[0]
    _, *rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) >= 25
    for row in rows:
        threat, defence, tests = (cell.strip() for cell in row.strip("|").split("|"))
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", tests)
        assert defence and named, threat
        for file, test in named:
            text = (ROOT / "tests" / file).read_text()
            assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), test


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on the PATH")
async def test_certificates_made_as_described_are_good_for_mutual_tls(tmp_path: Path) -> None:
    commands = next(
        block
        for block in re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL)
        if "openssl req" in block
    )
    made = subprocess.run(
        ["sh", "-ec", commands], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    if "unknown option" in made.stderr.lower():
        pytest.skip("openssl is older than 3")
    assert made.returncode == 0, made.stderr
    authority = tmp_path / "ca.crt"
    own = settings(
        tls_certificate=tmp_path / "draft.crt",
        tls_key=tmp_path / "draft.key",
        tls_client_ca=authority,
    )
    certificates = Certificates(authority, tmp_path / "gateway.crt", tmp_path / "gateway.key")
    async with serving(DraftServicer(FakeEngine), own) as server:
        for name in ("draft", ""):
            client = RemoteDrafter(
                server.address, ClientOptions(certificates=certificates, server_name=name)
            )
            assert (await client.info()).model == "fake"
            await client.aclose()
