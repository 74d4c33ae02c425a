"""The demo's client and its sums, against a gateway that is a function."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from semspec.errors import InvalidRequest
from semspec_demo.client import ChatClient, Client, supported_strategies
from semspec_demo.problems import make_problem
from semspec_demo.run import _parser, questions_of
from tests.helpers.records import record

pytestmark = pytest.mark.slow
PROBLEM = make_problem(3)


def client(respond: Callable[[dict[str, object]], httpx.Response]) -> Client:
    transport = httpx.MockTransport(lambda request: respond(json.loads(request.content)))
    http = httpx.AsyncClient(transport=transport, base_url="http://gateway")
    return Client(ChatClient(http, "pair"), temperature=0.6)


async def test_ask_grades_and_counts() -> None:
    bodies: list[dict[str, object]] = []

    def respond(body: dict[str, object]) -> httpx.Response:
        bodies.append(body)
        message = {
            "role": "assistant",
            "content": f"So \\boxed{{{PROBLEM.answer}}}.",
            "reasoning_content": "\\boxed{0}",
        }
        semspec = {"num_accepted": 3, "num_rejected": 1, "target_ratio": 0.25}
        usage = {"completion_tokens": 80}
        return httpx.Response(
            200, json={"choices": [{"message": message}], "usage": usage, "semspec": semspec}
        )

    answer = await client(respond).ask(PROBLEM, "semantic", seed=7)
    assert answer.is_right
    assert (answer.num_tokens, answer.num_target_tokens) == (80, 20)
    assert (answer.num_accepted, answer.num_rejected) == (3, 1)
    assert bodies[0]["messages"] == [{"role": "user", "content": PROBLEM.question}]
    assert (bodies[0]["seed"], bodies[0]["semspec"]) == (7, {"strategy": "semantic"})


def streamed(text: str) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=text)


async def test_stream_yields_the_records_and_nothing_else() -> None:
    records = [
        record(0, "On day 1, Tom gets 4 more pens."),
        record(1, "So Tom has 9.", "rewritten"),
    ]
    chunks = [
        {"choices": []},
        *({"semspec": {"segment": each}} for each in records),
        {"semspec": {"num_segments": 2}},
    ]
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    stream = client(lambda body: streamed(text)).stream(PROBLEM, "semantic", seed=7)
    assert [each async for each in stream] == records


def test_named_pair_is_asked_questions_of_math(tmp_path: Path) -> None:
    data = tmp_path / "math.jsonl"
    rows = [
        {"problem": f"What is {n}/2?", "answer": f"\\frac{{{n}}}{{2}}", "unique_id": str(n)}
        for n in (1, 3, 5)
    ]
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    questions = questions_of(
        arguments("--pair", "qwen2.5-coder", "--data", str(data), "--problems", "2")
    )
    assert [problem.answer for problem in questions.asked] == ["\\frac{3}{2}", "\\frac{5}{2}"]
    assert "What is 3/2?" in questions.asked[0].question
    assert "\\boxed{}" in questions.asked[0].question
    assert questions.asked[0].is_right("so it is \\boxed{1.5}")
    assert not questions.asked[0].is_right("\\boxed{2}")
    with pytest.raises(InvalidRequest, match=r"^limit is 5; math500 has 3 questions here"):
        questions_of(arguments("--pair", "qwen2.5-coder", "--data", str(data)))


async def test_only_strategies_that_the_pair_supports_are_compared() -> None:
    listed = [
        ("qwen", "token-level"),
        ("qwen:draft", "draft"),
        ("qwen:target", "target"),
        ("qwen:token-level",) * 2,
    ]
    models = {
        "data": [{"id": id, "strategy": strategy.rpartition(":")[2]} for id, strategy in listed]
    }
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=models))
    http = httpx.AsyncClient(transport=transport, base_url="http://gateway")
    assert await supported_strategies(http) == ["target", "token-level", "draft"]


def arguments(*words: str) -> argparse.Namespace:
    return _parser().parse_args([*words])
