"""OpenAI's own client, against a stack of real models."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.clients.conftest import GENEROUS_S, Server

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

MODEL = "semspec-demo"


@pytest_asyncio.fixture(loop_scope="package")
async def client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=server.openai_url, api_key=server.api_key, max_retries=0, timeout=GENEROUS_S
    ) as client:
        yield client


def asked(server: Server, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": server.question}], "seed": 1, **fields}


def said(chunk: Any) -> str:
    """All text of a chunk, reasoning and answer."""
    deltas = [choice.delta for choice in chunk.choices]
    return "".join((delta.model_extra.get("reasoning_content") or "") + (delta.content or "") for delta in deltas)


async def test_chat_reasons_and_answers(server: Server, client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**asked(server))
    [choice], usage = answer.choices, answer.usage
    assert server.answer in str(choice.message.content) and choice.finish_reason == "stop"
    assert choice.message.model_extra is not None and "\n\n" in choice.message.model_extra["reasoning_content"]
    assert usage is not None and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert answer.model_extra is not None and answer.model_extra["semspec"]["num_accepted"] > 0


async def test_stream_says_the_same_and_counts(server: Server, client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**asked(server))
    stream = await client.chat.completions.create(**asked(server, stream=True, stream_options={"include_usage": True}))
    chunks = [chunk async for chunk in stream]
    message = whole.choices[0].message
    assert "".join(map(said, chunks)) == f"{message.model_extra['reasoning_content']}{message.content}"
    assert chunks[-1].usage == whole.usage
    assert [choice.finish_reason for chunk in chunks[:-1] for choice in chunk.choices][-1] == "stop"


async def test_plain_completion_stops_and_tells_logprobs(server: Server, client: AsyncOpenAI) -> None:
    completion = await client.completions.create(
        model=f"{MODEL}:target", prompt=f"{server.question}\n\n<think>\n\n", stop=["</think>"], logprobs=2, seed=1
    )
    [choice] = completion.choices
    assert choice.text and "</think>" not in choice.text and choice.finish_reason == "stop"
    assert choice.logprobs is not None and "".join(choice.logprobs.tokens or []).startswith(choice.text)
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs or [])


async def test_chat_tells_logprobs(server: Server, client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        **asked(server, model=f"{MODEL}:target", logprobs=True, top_logprobs=1, temperature=0, max_tokens=20)
    )
    content = answer.choices[0].logprobs and answer.choices[0].logprobs.content
    assert content and len(content) == 20
    assert all(token.top_logprobs[0].logprob == token.logprob <= 0 for token in content), "greedy takes the likeliest"


async def test_responses_say_the_same_and_follow_each_other(server: Server, client: AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(**asked(server))
    fields: dict[str, Any] = {"model": MODEL, "input": server.question, "extra_body": {"seed": 1}}
    response = await client.responses.create(**fields)
    assert response.output_text == chat.choices[0].message.content and server.answer in response.output_text
    events = [event async for event in await client.responses.create(**fields, stream=True)]
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta") == response.output_text
    )
    stored = await client.responses.retrieve(response.id)
    assert stored.output == response.output and stored.usage == response.usage == events[-1].response.usage
    following = await client.responses.create(**fields, previous_response_id=response.id)
    assert following.usage.input_tokens > response.usage.input_tokens
