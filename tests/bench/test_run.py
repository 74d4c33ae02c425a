"""Runs against the real loop: interleaved, resumable, and clear about what cannot be done."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from semspec.errors import InvalidRequest
from semspec.reporting.progress import Reporter
from semspec.stack import BUNDLED_PAIR
from semspec_bench import run as run_module
from semspec_bench.cli import main
from semspec_bench.configuration import parse
from semspec_bench.record import read_records
from semspec_bench.run import (
    Comparison,
    Plan,
    Runners,
    _sittings,
    default_folder,
    is_complete,
    open_runners,
)
from semspec_bench.runners.protocol import Ask, NotApplicable, Outcome
from semspec_bench.summary import load_run
from semspec_bench.tasks import load_task

pytestmark = pytest.mark.slow
LABELS = ("in-process/draft", "in-process/semantic:threshold=0.1")


def plan(labels: Sequence[str] = LABELS, limit: int = 3, **changes: object) -> Plan:
    task = load_task("demo-tune", limit=limit)
    made = Plan(task, [parse(label) for label in labels], BUNDLED_PAIR, 0.6, 0.95, max_tokens=60)
    return replace(made, **changes)  # type: ignore[arg-type]


def carry_out(made: Plan, folder: Path) -> None:
    async def run() -> None:
        runner = Comparison(made, folder, Reporter(quiet=True))
        async with open_runners(made) as runners:
            await runner.run(runners, made.configurations)

    asyncio.run(run())


def test_run_asks_in_turns_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    carry_out(plan(), tmp_path)
    records = read_records(tmp_path / "records.jsonl")
    turns = [(record.label, record.question) for record in records]
    assert [question for _, question in turns[::2]] == [one.id for one in plan().task.questions]
    assert all({label for label, _ in turns[at : at + 2]} == set(LABELS) for at in (0, 2, 4))
    assert len({record.seed for record in records}) == 3
    lines = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_text(
        "".join(lines[:3]) + lines[3][:40]
    )  # as a kill leaves it
    carry_out(plan(), tmp_path)
    again = read_records(tmp_path / "records.jsonl")
    assert [(r.key, r.text_digest) for r in again] == [(r.key, r.text_digest) for r in records]
    assert again[:3] == records[:3]


def test_record_holds_the_trace_and_its_sums(tmp_path: Path) -> None:
    carry_out(plan(limit=2), tmp_path)
    for record in read_records(tmp_path / "records.jsonl"):
        assert record.num_tokens == sum(row["num_tokens"] for row in record.trace)
        assert sum(record.stages_ms.values()) > 0 and "token_ids" not in record.trace[0]
        is_draft = record.label == "in-process/draft"
        assert (record.num_target_tokens == 0) is (is_draft or record.num_rejected == 0)
    run = load_run(tmp_path)
    assert run.environment["memory_bytes"]["in-process"]["resident"] > 50_000_000
    assert [row.label for row in run.rows] == list(LABELS)


def test_servers_run_one_after_another_after_all_others() -> None:
    labels = ["target", "server/one", "semantic", "server/two", "server/one"]
    sittings = _sittings([parse(label) for label in labels])
    assert [[configuration.label for configuration in sitting] for sitting in sittings] == [
        ["target", "semantic"],
        ["server/one"],
        ["server/two"],
    ]


def test_sessions_side_by_side_in_one_process_give_the_same_answers(tmp_path: Path) -> None:
    carry_out(plan(), tmp_path / "alone")
    carry_out(plan(num_sessions=4), tmp_path / "several")
    alone, several = (
        {
            record.key: record.text_digest
            for record in read_records(tmp_path / name / "records.jsonl")
        }
        for name in ("alone", "several")
    )
    assert several == alone and len(alone) == 6


def test_configurations_may_be_added_to_a_run(tmp_path: Path) -> None:
    carry_out(plan(LABELS[:1], limit=2), tmp_path)
    carry_out(plan(limit=2), tmp_path)
    assert [row.num_questions for row in load_run(tmp_path).rows] == [2, 2]


def test_several_samples_differ_and_are_kept_apart(tmp_path: Path) -> None:
    carry_out(plan(LABELS[:1], limit=2, samples=3), tmp_path)
    [row] = load_run(tmp_path).rows
    assert (row.num_questions, row.num_samples) == (2, 3)
    assert len({record.seed for record in read_records(tmp_path / "records.jsonl")}) == 6


@pytest.fixture
def pair_that_forgets(tmp_path: Path) -> Path:
    """The bundled pair with a chat template that shows the last message only."""
    pair = shutil.copytree(BUNDLED_PAIR, tmp_path / "pair")
    (pair / "target" / "chat_template.jinja").write_text("{{ messages[-1]['content'] }}")
    return pair


def test_unsupported_strategy_is_not_applicable(tmp_path: Path, pair_that_forgets: Path) -> None:
    carry_out(
        plan(("in-process/draft", "in-process/spec-reason"), limit=1, pair=pair_that_forgets),
        tmp_path,
    )
    run = load_run(tmp_path)
    assert [row.label for row in run.rows] == ["in-process/draft"]
    assert "template" in run.not_applicable["in-process/spec-reason"]


@pytest.mark.parametrize(
    ("change", "named"), [({"temperature": 0.0}, "temperature"), ({"seed": 5}, "seed")]
)
def test_other_folder_is_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    run_module.claim(tmp_path, plan())
    with pytest.raises(InvalidRequest, match=named):
        carry_out(replace(plan(), **change), tmp_path)  # type: ignore[arg-type]


def test_folder_of_other_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_module.claim(tmp_path, plan())
    before = default_folder(plan())
    monkeypatch.setattr(run_module, "code_digest", lambda: "other")
    assert default_folder(plan()) != before
    with pytest.raises(InvalidRequest, match="code"):
        run_module.claim(tmp_path, plan())


class Server:
    """A runner of one server, which cannot start as long as `reason` is set."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    async def ask(self, ask: Ask) -> Outcome:
        if self.reason and ask.configuration.runner == "server":
            raise NotApplicable(self.reason)
        return Outcome("\\boxed{1}", "stop", 0.1, num_prompt_tokens=5, num_tokens=4)

    def processes(self) -> dict[str, int]:
        return {}


def ask_server(made: Plan, folder: Path, server: Server) -> None:
    runner = Comparison(made, folder, Reporter(quiet=True))
    runners: Runners = {"in-process": server, "server": server}
    asyncio.run(runner.run(runners, made.configurations))


def plan_with_server(command: str = "serve", **changes: object) -> Plan:
    labels = ("in-process/target", "server/other")
    return plan(labels, limit=1, servers={"other": command, "unused": "x"}, **changes)


def test_server_that_could_not_start_is_asked_when_the_run_is_resumed(tmp_path: Path) -> None:
    made = plan_with_server()
    ask_server(made, tmp_path, Server("out of memory"))
    assert load_run(tmp_path).not_applicable == {"server/other": "out of memory"}
    assert not is_complete(tmp_path, made)
    ask_server(made, tmp_path, Server())
    assert load_run(tmp_path).not_applicable == {}
    assert is_complete(tmp_path, made)


def test_folder_with_answers_of_another_server_command_is_refused(tmp_path: Path) -> None:
    ask_server(plan_with_server(), tmp_path, Server())
    run_module.claim(tmp_path, plan(("in-process/target",), limit=1))
    run_module.claim(tmp_path, plan_with_server())
    with pytest.raises(InvalidRequest, match=r"servers.other 'serve', not 'serve -tp 2'"):
        run_module.claim(tmp_path, plan_with_server("serve -tp 2"))


def test_command_of_a_server_without_answers_may_change(tmp_path: Path) -> None:
    ask_server(plan_with_server("wrong"), tmp_path, Server("no such option"))
    ask_server(plan_with_server("right"), tmp_path, Server())
    with pytest.raises(InvalidRequest, match=r"servers.other 'right', not 'wrong'"):
        run_module.claim(tmp_path, plan_with_server("wrong"))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("run --task demo --strategy semantic,target", 2, "name the target alone first"),
        ("run --task demo --pair nowhere", 2, "--pair"),
        ("run --task demo --limit 1 --gateway http://127.0.0.1:9", 1, "--gateway"),
        ("run --task demo --limit 1 --strategy vllm/target", 2, "--vllm"),
        ("run --task demo --sessions 0", 2, "choose 1 to 128"),
        (
            "run --task demo --sessions 4 --strategy target,transformers/assisted",
            2,
            "leave --sessions out",
        ),
        ("report nowhere", 2, "is not a run"),
        ("report nowhere/run.jsonl.gz", 2, "nowhere/summary.json must name it"),
    ],
)
def test_bad_input_is_one_line(
    arguments: str, status: int, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = ["--output", str(tmp_path / "run")] if arguments.startswith("run") else []
    with pytest.raises(SystemExit) as ended:
        main([*arguments.split(), *output])
    assert ended.value.code == status
    [line] = capsys.readouterr().err.strip().splitlines()
    assert said in line


def test_local_mathematics_is_graded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "math.jsonl"
    rows = [
        {"problem": f"Tom has pens: {n}. How many pens?", "answer": str(n), "unique_id": f"t/{n}"}
        for n in (31, 42)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "run"
    arguments = [
        "--data",
        str(data),
        "--max-tokens",
        "20",
        "--strategy",
        "in-process/target",
        "--output",
        str(folder),
    ]
    main(["run", "--task", "math500", *arguments])
    assert [row.num_questions for row in load_run(folder).rows] == [2]
    assert (folder / "report" / "report.html").exists()
    assert "| in-process/target | " in capsys.readouterr().out
