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


def test_invoke_stream_and_batch_answer(server: Server, chat: ChatOpenAI) -> None:
    answer = chat.invoke([HumanMessage(server.question)])
    assert server.answer in answer.text and "<think>" not in answer.text
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"
    assert "".join(chunk.text for chunk in chat.stream(server.question)) == answer.text
    answers = chat.batch(
        [server.question, [SystemMessage("Count."), HumanMessage(server.question)]]
    )
    assert answers[0].text == answer.text and len(answers) == 2 and answers[1].text


def test_extension_goes_through(server: Server, chat: ChatOpenAI) -> None:
    choosy = chat.bind(extra_body={"semspec": {"strategy": "target"}}, logprobs=True)
    answer = choosy.invoke(server.question)
    assert server.answer in answer.text
    tokens = answer.response_metadata["logprobs"]["content"]
    assert answer.text in "".join(token["token"] for token in tokens)
