"""The demo's client and its sums, against a gateway that is a function."""

import argparse
import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import httpx
import pytest

from semspec.client import Gateway
from semspec.errors import InternalError, InvalidRequest, Unavailable
from semspec_demo import show
from semspec_demo.client import Answer, Client, in_turns, supported_strategies
from semspec_demo.problems import make_problem
from semspec_demo.run import STRATEGIES, _parser, questions_of
from tests.helpers.records import record

pytestmark = pytest.mark.slow
PROBLEM = make_problem(3)


def client(respond: Callable[[dict[str, object]], httpx.Response]) -> Client:
    transport = httpx.MockTransport(lambda request: respond(json.loads(request.content)))
    http = httpx.AsyncClient(transport=transport, base_url="http://gateway")
    return Client(Gateway(http), temperature=0.6)


async def test_ask_grades_and_counts() -> None:
    bodies: list[dict[str, object]] = []

    def respond(body: dict[str, object]) -> httpx.Response:
        bodies.append(body)
        message = {
            "role": "assistant",
            "content": f"So \\boxed{{{PROBLEM.answer}}}.",
            "reasoning_content": "\\boxed{0}",
        }
        semspec = {"num_accepted": 3, "num_rejected": 1, "target_ratio": 0.25, "trace": []}
        choice, usage = {"message": message, "finish_reason": "stop"}, {"completion_tokens": 80}
        body = {"id": "chatcmpl-1", "choices": [choice], "usage": usage, "semspec": semspec}
        return httpx.Response(200, json=body)

    answer = await client(respond).ask(PROBLEM, "semantic", seed=7)
    assert answer.is_right
    assert (answer.num_tokens, answer.num_target_tokens) == (80, 20)
    assert (answer.num_accepted, answer.num_rejected) == (3, 1)
    assert bodies[0]["messages"] == [{"role": "user", "content": PROBLEM.question}]
    assert (bodies[0]["seed"], bodies[0]["semspec"]) == (
        7,
        {"strategy": "semantic", "trace": True},
    )


async def test_ask_raises_on_a_refusal() -> None:
    with pytest.raises(InternalError, match="answers 503, not as a gateway would"):
        await client(lambda body: httpx.Response(503, json={})).ask(PROBLEM, "draft", seed=7)


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
    stream = client(lambda body: streamed(text)).stream(PROBLEM, "semantic", seed=7, on_break=print)
    assert [each async for each in stream] == records


async def test_stream_raises_on_an_error_under_way() -> None:
    error = {"code": "service_unavailable", "message": "the target is gone"}
    stream = client(lambda body: streamed(f"data: {json.dumps({'error': error})}\n\n")).stream(
        PROBLEM, "draft", seed=7, on_break=print
    )
    with pytest.raises(Unavailable, match="the target is gone"):
        [each async for each in stream]


def test_turns_are_balanced_and_in_every_order() -> None:
    turns = list(in_turns(range(60), STRATEGIES))
    assert [seed for seed, _ in turns[::3]] == list(range(60))
    orders = {
        tuple(strategy for _, strategy in turns[3 * index : 3 * index + 3]) for index in range(60)
    }
    assert orders == set(permutations(STRATEGIES))
    assert turns == list(in_turns(range(60), STRATEGIES))


def answers(latency_s: float, rights: int, num_target_tokens: float) -> list[Answer]:
    return [Answer(index < rights, latency_s, 50, num_target_tokens, 8, 2) for index in range(10)]


def test_summary_has_the_keys_and_values_of_the_contract() -> None:
    rows = show.summarise(
        {"target": answers(2, 10, 50), "semantic": answers(0.5, 9, 10), "draft": answers(0.2, 6, 0)}
    )
    result = show.as_json(rows, 0.6, 10)
    assert (result["temperature"], result["num_problems"]) == (0.6, 10)
    assert result["strategies"]["semantic"] == {
        "pass_at_1": 0.9,
        "latency_s": 0.5,
        "speedup": 4.0,
        "tokens_per_s": 100.0,
        "target_ratio": 0.2,
        "acceptance_rate": 0.8,
    }
    assert result["strategies"]["target"]["acceptance_rate"] is None
    assert result["strategies"]["draft"]["acceptance_rate"] is None


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
    assert await supported_strategies(Gateway(http)) == ["target", "token-level", "draft"]


def arguments(*words: str) -> argparse.Namespace:
    return _parser().parse_args([*words])
