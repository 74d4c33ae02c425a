"""A prompt that holds a token which a model has no embedding for is the client's error, in every form of a prompt."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gateway.engines import served
from tests.helpers.checkpoints import (
    TOOLS_TEMPLATE,
    loaded,
    model_of,
    randomise,
    spelling_tokenizer,
)
from tests.helpers.gateway import Gateway

EXTRA = "<|extra|>"
TOKENIZER = spelling_tokenizer()
NUM_EMBEDDINGS = len(TOKENIZER)
TOKENIZER.add_special_tokens({"additional_special_tokens": [EXTRA]})
SIZES = {"smaller": NUM_EMBEDDINGS, "whole": NUM_EMBEDDINGS + 1}
MESSAGES = [{"role": "user", "content": f"How{EXTRA} many?"}]


def save(folder: Path, size: str) -> Path:
    """Save a model with or without an embedding for `EXTRA`, which its tokenizer has; returns its folder."""
    torch.manual_seed(1)
    sizes = {"vocab_size": SIZES[size], "max_position_embeddings": 1200, "bos_token_id": None}
    ends = TOKENIZER.convert_tokens_to_ids(["<|endoftext|>"])
    randomise(model_of("qwen2", **sizes, eos_token_id=ends), 0.1).save_pretrained(folder / size)
    TOKENIZER.chat_template = TOOLS_TEMPLATE
    TOKENIZER.save_pretrained(folder / size)
    return folder / size


@pytest.fixture(params=[("smaller", "smaller")])
async def gateway(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str
) -> AsyncIterator[Gateway]:
    """Start a gateway over a draft and a target of these sizes."""
    draft, target = (save(tmp_path, size) for size in request.param)
    async with (
        loaded(draft, target) as engines,
        served(engines, tmp_path, redis_url=redis_url) as running,
    ):
        yield running


def strategy(name: str) -> dict[str, Any]:
    return {"semspec": {"strategy": name}, "max_tokens": 4, "temperature": 0}


@pytest.mark.parametrize(
    ("path", "body", "parameter", "status"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}, "messages", 400),
        ("/v1/completions", {"prompt": f"How{EXTRA} many?"}, "prompt", 400),
        ("/v1/completions", {"prompt": [5, NUM_EMBEDDINGS]}, "prompt", 400),
        ("/v1/responses", {"input": f"How{EXTRA} many?"}, "input", 400),
        ("/tokenize", {"prompt": f"How{EXTRA}"}, "", 422),
        ("/tokenize", {"messages": MESSAGES}, "", 422),
        ("/generate", {"inputs": f"How{EXTRA}"}, "", 422),
    ],
)
async def test_prompt_token_without_an_embedding_is_refused(
    gateway: Gateway, path: str, body: dict[str, Any], parameter: str, status: int
) -> None:
    response = await gateway.http.post(path, json=body)
    assert response.status_code == status, response.text
    words = f"(id {NUM_EMBEDDINGS}) is outside the vocabulary of {NUM_EMBEDDINGS} tokens"
    assert words in response.text and "retry-after" not in response.headers
    assert not parameter or response.json()["error"]["param"] == parameter


@pytest.mark.parametrize("gateway", [("smaller", "whole")], indirect=True)
async def test_target_writes_alone_where_only_the_draft_lacks_an_embedding(
    gateway: Gateway,
) -> None:
    response = await gateway.http.post(
        "/v1/chat/completions", json={"messages": MESSAGES, **strategy("token-level")}
    )
    assert response.status_code == 200, response.text
    assert "the draft refuses what it was sent" in response.text


@pytest.mark.parametrize("gateway", [("smaller", "whole")], indirect=True)
@pytest.mark.parametrize(("name", "status"), [("target", 200), ("draft", 400)])
async def test_bias_of_a_token_that_a_writer_lacks_is_refused(
    gateway: Gateway, name: str, status: int
) -> None:
    body = {"messages": [{"role": "user", "content": "How?"}], **strategy(name)}
    response = await gateway.http.post(
        "/v1/chat/completions", json=body | {"logit_bias": {str(NUM_EMBEDDINGS): 1}}
    )
    assert response.status_code == status, response.text
    assert status == 200 or response.json()["error"]["param"] == "logit_bias"
