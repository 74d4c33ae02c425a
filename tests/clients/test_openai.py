"""OpenAI's own client, against a stack of real models; `tests/gateway` asks fakes more, by the same client."""

from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.clients.conftest import GENEROUS_S, Server

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]


def said(chunk: Any) -> str:
    """All text of a chunk, reasoning and answer."""
    deltas = [choice.delta for choice in chunk.choices]
    return "".join(
        (delta.model_extra.get("reasoning_content") or "") + (delta.content or "")
        for delta in deltas
    )


async def test_chat_stream_and_responses_say_the_same(server: Server) -> None:
    messages: Any = [{"role": "user", "content": server.question}]
    fields: dict[str, Any] = {"model": "semspec-demo", "messages": messages, "seed": 1}
    async with AsyncOpenAI(
        base_url=server.openai_url, api_key=server.api_key, max_retries=0, timeout=GENEROUS_S
    ) as client:
        answer = await client.chat.completions.create(**fields)
        [choice], usage = answer.choices, answer.usage
        reasoning = choice.message.model_extra["reasoning_content"]
        assert (
            server.answer in choice.message.content
            and choice.finish_reason == "stop"
            and "\n\n" in reasoning
        )
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert answer.model_extra["semspec"]["num_accepted"] > 0

        stream = await client.chat.completions.create(
            **fields, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert (
            "".join(map(said, chunks)) == f"{reasoning}{choice.message.content}"
            and chunks[-1].usage == usage
        )
        assert [choice.finish_reason for chunk in chunks[:-1] for choice in chunk.choices][
            -1
        ] == "stop"

        fields = {"model": "semspec-demo", "input": server.question, "extra_body": {"seed": 1}}
        response = await client.responses.create(**fields)
        events = [event async for event in await client.responses.create(**fields, stream=True)]
        deltas = "".join(
            event.delta for event in events if event.type == "response.output_text.delta"
        )
        assert deltas == response.output_text == choice.message.content
        stored = await client.responses.retrieve(response.id)
        assert (
            stored.output == response.output
            and stored.usage == response.usage == events[-1].response.usage
        )
        following = await client.responses.create(**fields, previous_response_id=response.id)
        assert following.usage.input_tokens > response.usage.input_tokens
