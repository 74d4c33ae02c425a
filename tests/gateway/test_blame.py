"""Errors of the services after the prompt was accepted: none is told to the client as its own."""

import pytest

from semspec.errors import ContextTooLong, InternalError, InvalidRequest, SemspecError
from semspec.types import Piece, Prompt
from tests.gateway.support import Gateway

ERRORS = [InvalidRequest("bad ids", "token_ids"), ContextTooLong("full"), InternalError("not a number")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("role", ["drafter", "verifier"])
async def test_broken_helper_means_target_alone(gateway: Gateway, role: str, error: SemspecError) -> None:
    getattr(gateway.fakes, role).lost = error
    answer = await gateway.chat()
    assert answer.status_code == 200
    assert answer.json()["semspec"]["target_ratio"] == 1 and answer.json()["semspec"]["fallback"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_broken_target_is_unavailable(gateway: Gateway, error: SemspecError) -> None:
    encode = gateway.fakes.target.encode

    async def then_break(prompt: Prompt) -> Piece:
        piece = await encode(prompt)
        gateway.fakes.target.lost = error
        return piece

    gateway.fakes.target.encode = then_break  # type: ignore[method-assign]  # the prompt itself is valid
    answer = await gateway.chat()
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert answer.json()["error"]["code"] == "service_unavailable" and error.message not in answer.text
