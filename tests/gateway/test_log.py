"""Each generation ends with one line in the log; texts are in it only where the operator asked for them."""

import logging

import pytest

from semspec.observability import KeyValueFormatter
from tests.gateway.fakes import Fakes
from tests.gateway.support import OWNER, GatewayFactory


async def ended(start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture, **settings: object) -> str:
    """The line of one generation."""
    gateway = await start_gateway(Fakes.make(), **settings)
    with caplog.at_level(logging.DEBUG):
        answer = await gateway.openai.completions.create(model="semspec-demo:target", prompt="Once\nmore", seed=1)
    [record] = [record for record in caplog.records if record.getMessage() == "generation ended"]
    line = KeyValueFormatter().format(record)
    assert record.levelno == logging.INFO and "\n" not in line
    assert f"generation={answer.id} owner={OWNER} strategy=target status=finished " in line
    assert answer.usage and f" num_tokens={answer.usage.completion_tokens} " in line and " duration_ms=" in line
    assert answer.choices[0].text
    assert (repr(answer.choices[0].text)[1:-1] in line) is ("prompt" in line)
    return line


async def test_line_without_texts(start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture) -> None:
    assert "Once" not in await ended(start_gateway, caplog) and "Once" not in caplog.text


async def test_line_with_texts_if_wanted(start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture) -> None:
    assert r'prompt="Once\nmore" answer=' in await ended(start_gateway, caplog, log_prompts=True)
