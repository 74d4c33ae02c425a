"""Load by numbers of streams: who plays when, what replies add up to, what the page says; and a run over the stack."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semspec.bench.cli import main
from semspec.bench.load.contestants import KV_BYTES, Launcher, parse_contestant
from semspec.bench.load.levels import PER_STREAM, Plan, Tournament, check, schedule
from semspec.bench.load.levels_sums import Reply, Request, Result, Turn, numbers, ratio, summaries
from semspec.bench.tasks import Question, Task
from semspec.errors import InvalidRequest
from semspec.stack import BUNDLED_PAIR
from semspec.types import Message

LABELS = ("fast/target", "fast/semantic", "vllm-serve:threads=1", "vllm-serve:threads=2")
QUESTION = Question("7", (Message("user", "How many?"),), "4")
TASK = Task(
    "sums",
    [replace(QUESTION, id=str(number)) for number in range(100)],
    lambda one, text: text.endswith(one),
)


def plan(**fields: Any) -> Plan:
    values: dict[str, Any] = {
        "task": TASK,
        "contestants": [parse_contestant(label) for label in LABELS],
        "streams": [1, 4],
        "num_problems": 2,
        "num_rounds": 2,
        "temperature": 0.6,
        "max_tokens": 64,
        "limit_ms": 1000.0,
        "pair": BUNDLED_PAIR,
        "vllm": Path("nowhere"),
    }
    return Plan(**values | fields)


def test_label_names_engine_strategy_and_threads() -> None:
    one = parse_contestant(" vllm/semantic:gamma=2:threads=3 ")
    assert (one.label, one.engine, one.threads, one.needs_vllm) == (
        "vllm/semantic:gamma=2:threads=3",
        "vllm",
        3,
        True,
    )
    assert one.configuration.options == {"strategy": "semantic", "gamma": 2}
    plain = parse_contestant("vllm-serve")
    assert plain.is_plain and plain.is_target_alone and plain.threads is None
    assert not parse_contestant("fast/target").needs_vllm
    config = Launcher(BUNDLED_PAIR, Path("env/python"), 8).stack_config(
        parse_contestant("fast/target:targets=2")
    )
    assert config.num_targets == 2


@pytest.mark.parametrize(
    ("label", "named"),
    [
        ("slow/target", "unknown contestant; give fast/STRATEGY"),
        ("target", "unknown contestant"),
        ("vllm-serve/target", "unknown contestant"),
        ("fast/targets", "targets"),
        ("fast/target:threads=0", "threads as one whole number"),
        ("fast/target:threads=1:threads=2", "threads as one whole number"),
        ("fast/target:targets=two", "targets as one whole number"),
        ("vllm-serve:targets=2", "leave targets out"),
        ("vllm-serve:gamma=2", "leave gamma=2 out"),
    ],
)
def test_label_that_names_no_contestant_is_refused(label: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        parse_contestant(label)


def test_stack_of_a_contestant_runs_its_roles_in_vllm_and_admits_all_streams() -> None:
    launcher = Launcher(BUNDLED_PAIR, Path("env/python"), max_streams=96)
    config = launcher.stack_config(parse_contestant("vllm/semantic:threads=2"))
    python = str(Path("env/python").absolute())
    assert config.commands["target"] == (python, "-m", "semspec.services.target")
    assert config.commands["draft"][0] != python
    assert config.environment == {
        "SEMSPEC_GATEWAY_MAX_CONCURRENT": "96",
        "SEMSPEC_GATEWAY_MAX_QUEUED": "96",
        "SEMSPEC_TARGET_ENGINE": "vllm",
        "SEMSPEC_TARGET_VLLM_OPTIONS": '{"max_num_seqs": 96}',
        "SEMSPEC_TARGET_THREADS": "2",
    }
    both = launcher.stack_config(parse_contestant("vllm-both/semantic"))
    assert both.commands["draft"] == (python, "-m", "semspec.services.draft")
    assert KV_BYTES == 4 << 30


def test_contestants_take_turns_at_each_level_and_the_first_one_changes() -> None:
    turns = [
        (place.round_number, place.streams, place.contestant.label) for place in schedule(plan())
    ]
    assert turns[:4] == [(0, 1, label) for label in LABELS]
    assert turns[4:8] == [(0, 4, label) for label in (*LABELS[1:], LABELS[0])]
    assert [label for _, _, label in turns[8:12]] == [*LABELS[1:], LABELS[0]]
    assert len(set(turns)) == len(turns) == 16


def test_one_at_a_time_plays_a_round_in_a_row() -> None:
    turns = [
        (place.contestant.label, place.streams) for place in schedule(plan(one_at_a_time=True))
    ]
    assert turns[:4] == [(LABELS[0], 1), (LABELS[0], 4), (LABELS[1], 1), (LABELS[1], 4)]
    assert turns[8:10] == [(LABELS[1], 1), (LABELS[1], 4)]


def test_turns_have_problems_of_their_own_until_the_task_has_no_more() -> None:
    few = plan(num_problems=5)
    turns = [few.questions(number, level) for number in range(2) for level in few.streams]
    assert [len(turn) for turn in turns] == [5, 4 * PER_STREAM] * 2
    assert len({one.id for turn in turns for one in turn}) == sum(map(len, turns))
    assert [one.id for one in few.questions(6, 1)] == ["2", "3", "4", "5", "6"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"streams": [1, 0]}, "streams is 1, 0; give 1 or more"),
        ({"num_rounds": 0}, "rounds is 0"),
        ({"streams": [2, 2]}, "streams 2 is named twice"),
        (
            {"contestants": [parse_contestant("fast/target")] * 2},
            "contestant fast/target is named twice",
        ),
    ],
)
def test_plan_that_cannot_be_played_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        check(plan(**fields))


def event(content: str = "", **fields: Any) -> bytes:
    choices = [{"delta": {"role": "assistant", "content": content}}]
    return b"id: 1-0\ndata: " + json.dumps({"choices": choices} | fields).encode() + b"\n\n"


def reply(*chunks: bytes, error: str = "") -> Reply:
    return Reply(
        Request(QUESTION, {}),
        [(index + 1.0, chunk) for index, chunk in enumerate(chunks)],
        9.0,
        error,
    )


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"


def test_reply_in_tokens_is_timed_by_its_first_text_and_its_first_blank_line() -> None:
    split = event("two\n\nis 4")
    found = reply(event(), event("one"), event("\n"), split[:20], split[20:], USAGE + DONE).result(
        TASK
    )
    assert found == Result("", True, 5, 3, ttft_ms=2000, ttfs_ms=5000, e2el_ms=9000)


def test_reply_without_a_blank_line_has_its_first_segment_at_its_end() -> None:
    found = reply(event("5"), USAGE, DONE).result(TASK)
    assert (found.is_right, found.ttft_ms, found.ttfs_ms) == (False, 1000, 9000)


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (reply(event("4")), "the stream ended before it was done"),
        (
            reply(event("4"), b'data: {"error": {"code": "timeout", "message": "late"}}\n\n', DONE),
            "timeout",
        ),
        (reply(b"no stream", error="429 overloaded"), "429 overloaded"),
    ],
)
def test_reply_that_is_not_whole_has_its_error_and_is_not_right(broken: Reply, error: str) -> None:
    found = broken.result(TASK)
    assert found.error == error and not found.is_right


def result(e2el_ms: float, error: str = "", is_right: bool = True) -> Result:
    return Result(error, is_right, 10, 20, e2el_ms / 4, e2el_ms / 2, e2el_ms)


def turn(label: str, number: int, rate: float, cpu_s: float = 1.0) -> Turn:
    """Eight answers at `rate` a second, after which one failed."""
    results = [
        *(result(500.0 + 200 * index, is_right=index > 1) for index in range(8)),
        result(1.0, "hung", False),
    ]
    role = "server" if label.startswith("vllm-serve") else "target"
    return Turn(label, number, 4, 8 / rate, results, {role: cpu_s, "client": 0.5})


def test_numbers_count_whole_answers_only() -> None:
    found = numbers([turn("fast/target", number, 2.0) for number in range(2)], limit_ms=1000)
    assert (found["completed"], found["failed"], found["num_prompts"]) == (16, 2, 18)
    assert (found["duration"], found["request_throughput"], found["request_goodput"]) == (
        8.0,
        2.0,
        6 / 8,
    )
    assert (found["output_throughput"], found["total_token_throughput"]) == (40.0, 60.0)
    assert (found["median_e2el_ms"], found["mean_ttfs_ms"], found["pass_at_1"]) == (
        1200.0,
        600.0,
        0.75,
    )
    assert found["p95_e2el_ms"] > found["median_e2el_ms"] and found["cpu_s"] == {
        "target": 2.0,
        "client": 1.0,
    }


def test_ratio_is_taken_within_rounds_and_its_interval_holds_the_truth() -> None:
    assert ratio({0: 2.0}, {0: 1.0}) and ratio({0: 2.0}, {0: 1.0}).low is None  # type: ignore[union-attr]
    assert ratio({0: 2.0}, {1: 1.0}) is None and ratio({0: 0.0}, {0: 1.0}) is None
    rng, num_held = np.random.default_rng(1), 0
    for _ in range(400):
        machine = rng.lognormal(0, 1, 4)
        above = dict(enumerate(1.5 * machine * rng.lognormal(0, 0.1, 4)))
        one = ratio(above, dict(enumerate(machine * rng.lognormal(0, 0.1, 4))))
        assert one and one.low is not None and one.high is not None
        num_held += one.low < 1.5 < one.high
    assert num_held / 400 == pytest.approx(0.95, abs=0.033), "three standard deviations"


def test_summaries_compare_with_the_engines_target_and_the_best_plain_server() -> None:
    rates = dict(zip(LABELS, (2.0, 3.0, 1.0, 4.0), strict=True))
    turns = [
        turn(label, number, rate * (1 + number), 2.0)
        for label, rate in rates.items()
        for number in range(2)
    ]
    target, auto, slow_plain, best_plain = summaries(turns, plan().contestants, 1000)
    assert (
        target.over_target is None
        and target.over_plain
        and target.over_plain.value == pytest.approx(0.5)
    )
    assert auto.over_target and auto.over_target.value == pytest.approx(1.5)
    assert auto.over_target.low == pytest.approx(auto.over_target.high) == pytest.approx(1.5)
    assert auto.over_plain_by_cpu and auto.over_plain_by_cpu.value == pytest.approx(1.0)
    assert slow_plain.over_plain and slow_plain.over_plain.value == pytest.approx(0.25)
    assert best_plain.over_plain is None and best_plain.over_target is None


async def test_contestants_that_cannot_run_are_left_out_with_the_remedy(tmp_path: Path) -> None:
    said: list[str] = []
    alone = plan(contestants=[parse_contestant("vllm-serve"), parse_contestant("vllm/semantic")])
    with pytest.raises(Exception, match="no contestant can run here"):
        await Tournament(alone, tmp_path, said.append).run()
    assert said == [
        f"{label} is left out: there is no nowhere; run scripts/vllm-venv, or give an interpreter as --vllm"
        for label in ("vllm-serve", "vllm/semantic")
    ]


@pytest.mark.slow
def test_two_levels_over_the_stack_give_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = f"load --streams 1,2 --rounds 1 --problems 2 --vllm {tmp_path}/none --output {tmp_path}/load"
    main([*arguments.split(), "--contestant", "fast/target,fast/semantic,vllm/target"])
    assert "## 2 streams" in capsys.readouterr().out
    found = json.loads((tmp_path / "load" / "load.json").read_text())
    assert list(found["left_out"]) == ["vllm/target"]
    results = {(one["label"], one["max_concurrency"]): one for one in found["results"]}
    assert len(results) == 4
    for (_, streams), one in results.items():
        assert (one["completed"], one["failed"]) == (max(2, PER_STREAM * streams), 0)
        assert 0 < one["median_ttfs_ms"] <= one["median_e2el_ms"] and one["total_output_tokens"] > 0
        assert one["cpu_s"]["target"] > 0 and one["cpu_s"]["client"] > 0
    assert results["fast/semantic", 2]["over_target"]["value"] > 0
    assert (tmp_path / "load" / "load.png").read_bytes().startswith(b"\x89PNG")
