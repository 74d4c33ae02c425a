"""What `import semspec` offers to a notebook."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import semspec
from tests.commands.support import ANSWER, QUESTION, Live

LIGHT = """
import sys, semspec
semspec.Gateway, semspec.Answer, semspec.SegmentTrace, semspec.decode
print({"torch", "grpc", "fastapi", "redis"} & {*sys.modules})
"""


def test_every_name_is_there_with_its_type() -> None:
    stub = Path(semspec.__file__).with_suffix(".pyi").read_text()
    typed = {
        name.name
        for one in ast.parse(stub).body
        if isinstance(one, ast.ImportFrom)
        for name in one.names
    }
    assert typed == {*semspec.__all__} and all(getattr(semspec, name) for name in typed)
    with pytest.raises(AttributeError, match="no attribute 'gateways'"):
        semspec.gateways  # type: ignore[attr-defined]  # noqa: B018


def test_client_needs_no_server_side_library() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=60
    )
    assert shown.stdout == "set()\n", shown.stderr


async def test_answer_has_its_trace(live: Live) -> None:
    gateway = semspec.Gateway.at(live.url, live.api_key)
    own = {"strategy": "target"}
    alone = await gateway.ask(QUESTION, temperature=0, semspec=own)
    assert ANSWER in alone.content
    assert alone.finish_reason == "stop"
    assert alone.statistics["strategy"] == "target"
    assert "".join(one.text for one in alone.trace).endswith(alone.content)
    assert {one.verdict for one in alone.trace} == {"unjudged"} and own == {"strategy": "target"}
    judged = await gateway.ask(
        [{"role": "user", "content": QUESTION}], seed=1, semspec={"strategy": "semantic"}
    )
    assert (
        sum(one.verdict == "accepted" for one in judged.trace)
        == judged.statistics["num_accepted"]
        > 0
    )
    with pytest.raises(semspec.SemspecError, match="temperature"):
        await gateway.ask(QUESTION, temperature=-1)
    await gateway.aclose()
