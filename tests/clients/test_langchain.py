"""LangChain's ChatOpenAI, against a stack of real models."""

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.clients.conftest import GENEROUS_S, Server

pytestmark = pytest.mark.slow


@pytest.fixture
def chat(server: Server) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=server.openai_url,
        api_key=SecretStr(server.api_key),
        model="semspec-demo",
        seed=1,
        timeout=GENEROUS_S,
        max_retries=0,
    )


def test_invoke_answers_with_usage(server: Server, chat: ChatOpenAI) -> None:
    answer = chat.invoke([HumanMessage(server.question)])
    assert server.answer in answer.text and "<think>" not in answer.text
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"


def test_stream_says_the_same_as_invoke(server: Server, chat: ChatOpenAI) -> None:
    parts = [chunk.text for chunk in chat.stream(server.question)]
    assert "".join(parts) == chat.invoke(server.question).text


def test_batch_answers_each(server: Server, chat: ChatOpenAI) -> None:
    answers = chat.batch([server.question, [SystemMessage("Count."), HumanMessage(server.question)]])
    assert server.answer in answers[0].text and len(answers) == 2 and all(answer.text for answer in answers)


def test_extension_goes_through(server: Server, chat: ChatOpenAI) -> None:
    choosy = chat.bind(extra_body={"semspec": {"strategy": "target"}}, logprobs=True)
    answer = choosy.invoke(server.question)
    assert server.answer in answer.text
    tokens = answer.response_metadata["logprobs"]["content"]
    assert answer.text in "".join(token["token"] for token in tokens)
