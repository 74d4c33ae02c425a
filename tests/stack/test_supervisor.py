"""The supervisor, with tiny programs in the places of services and gateway."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

import httpx
import psutil
import pytest
from redis.asyncio import Redis

from semspec.keys import entry
from semspec.release import load_release
from semspec.stack import BUNDLED_PAIR, Stack, StackConfig, StackError
from semspec.stack.supervisor import keep_running
from tests.helpers.processes import GENEROUS_S, is_running, left_alive
from tests.stack.programs import BROKEN, DEAF, GATEWAY, config

pytestmark = pytest.mark.slow
SUPERVISOR = """
import asyncio, signal, sys
from semspec.stack import Stack, run
from tests.stack.programs import config

async def main():
    async with Stack(config()) as stack:
        print(*(child.pid for child in stack.processes.values()), flush=True)
        await asyncio.sleep(600)
    return 0

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
sys.exit(run(main()))
"""


@pytest.fixture(autouse=True)
def temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Where the stack puts its files, in supervisors of their own as well; `tmp_path` is too long for a socket."""
    tmp_path_factory.getbasetemp()  # made now, or pytest would make it in the folder that goes
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.delenv("REDIS_URL", raising=False)
        yield Path(folder)


async def test_stack_is_ready_inside_and_gone_outside(temporary_folder: Path) -> None:
    async with Stack(config()) as stack:
        pids = [child.pid for child in stack.processes.values()]
        assert set(stack.processes) == {"redis", "draft", "target", "verifier", "gateway"}
        assert stack.addresses["draft"] == "127.0.0.1:4711"
        assert stack.base_url.startswith("http://127.0.0.1:")
        assert all(is_running(pid) for pid in pids)
        path = Path(stack.addresses["redis"].removeprefix("unix://"))
        assert path.parent.stat().st_mode & 0o077 == 0 and path.is_relative_to(temporary_folder)
        async with asyncio.timeout(GENEROUS_S):
            while not path.exists():
                await asyncio.sleep(0.05)
        async with Redis(unix_socket_path=str(path)) as redis:
            assert await redis.ping()
    assert left_alive(pids, 0) == []


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("host", "reached"), [("::1", "[::1]"), ("::", "[::1]"), ("localhost", "localhost")]
)
async def test_stack_listens_on_every_kind_of_host(host: str, reached: str) -> None:
    async with Stack(replace(config(), host=host)) as stack:
        assert stack.base_url.rpartition(":")[0] == f"http://{reached}"
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(stack.base_url)).status_code == 200


async def test_given_redis_is_used_and_none_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere:6379/0")
    async with Stack(config()) as stack:
        assert stack.addresses["redis"] == "redis://elsewhere:6379/0"
        assert "redis" not in stack.processes


@pytest.mark.parametrize(
    ("command", "last_words"),
    [
        (
            (sys.executable, "-c", BROKEN),
            "no model at /nowhere: name one with SEMSPEC_TARGET_MODEL",
        ),
        (("/no/such/program",), "cannot run /no/such/program"),
    ],
)
async def test_child_dying_at_start_is_reported_in_one_line_with_its_last_words(
    temporary_folder: Path, command: tuple[str, ...], last_words: str
) -> None:
    stack = Stack(replace(config(), commands={**config().commands, "target": command}))
    with pytest.raises(StackError, match=r"^target ended with status \d+$") as caught:
        await stack.__aenter__()
    assert last_words in caught.value.log_tail
    assert left_alive([child.pid for child in stack.processes.values()], 0) == []
    assert list(temporary_folder.iterdir()) == []


def unready_gateway(code: str) -> str:
    """A gateway that answers, but never with 200."""
    body = json.dumps(
        {"error": {"message": "the probe is of another model; train it anew", "code": code}}
    )
    return GATEWAY.replace('b""', repr(body.encode()))


@pytest.mark.parametrize(
    ("programs", "timeout_s", "message"),
    [
        ({"verifier": DEAF}, 5.0, r"^verifier was not ready within 5 s$"),
        (
            {"gateway": unready_gateway("service_unavailable")},
            5.0,
            r"^gateway was not .*: the probe is of another",
        ),
        (
            {"gateway": unready_gateway("configuration_mismatch")},
            GENEROUS_S,
            r"^the probe is of another model",
        ),
    ],
    ids=["service", "gateway", "what does not belong together, at once"],
)
async def test_process_never_ready_is_reported_with_its_reason(
    programs: dict[str, str], timeout_s: float, message: str
) -> None:
    stack = Stack(config(start_timeout_s=timeout_s, stop_grace_s=0.2, **programs))
    with pytest.raises(StackError, match=message):
        await asyncio.wait_for(stack.__aenter__(), GENEROUS_S - 1)
    assert left_alive([child.pid for child in stack.processes.values()], 0) == []


async def test_gateway_is_told_the_hashes_of_the_stacks_key_and_of_given_ones() -> None:
    given = {"SEMSPEC_GATEWAY_API_KEYS": entry("alice", "sk-hers")}
    async with Stack(replace(config(), environment=given, api_key="sk-fixed")) as stack:
        told = psutil.Process(stack.processes["gateway"].pid).environ()
    own = f"{entry('stack', 'sk-fixed')}:operator"
    assert told["SEMSPEC_GATEWAY_API_KEYS"].split() == [entry("alice", "sk-hers"), own]
    assert stack.headers == {"authorization": "Bearer sk-fixed"}
    assert "sk-fixed" not in str(told) and "sk-fixed" not in repr(stack.config)


@pytest.mark.parametrize(
    ("metrics", "verdicts", "bad_verdicts"),
    [
        ({}, "", ""),
        ({"verdicts": [{"standing": "good", "text": "By A: good."}]}, "By A: good.", ""),
        (
            {
                "verdicts": [
                    {"standing": "good", "text": "By A: good."},
                    {"standing": "bad", "text": "By B: bad."},
                ]
            },
            "By A: good. By B: bad.",
            "By A: good. By B: bad.",
        ),
        (
            {"verdicts": [{"standing": "doubtful", "text": "By A: few."}]},
            "By A: few.",
            "By A: few.",
        ),
    ],
    ids=["none", "good", "good and bad", "doubtful"],
)
def test_verdicts_are_those_of_the_targets_card(
    tmp_path: Path, metrics: dict[str, object], verdicts: str, bad_verdicts: str
) -> None:
    for name in ("pair.json", "target.safetensors"):
        shutil.copy(BUNDLED_PAIR / "probes" / name, tmp_path)
    (tmp_path / "target.json").write_text(json.dumps({"metrics": metrics}))
    config = StackConfig(pair=tmp_path)
    assert (config.verdicts, config.bad_verdicts) == (verdicts, bad_verdicts)


async def test_no_folder_for_temporary_files_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with pytest.raises(
        StackError, match=r"/no/such/folder/.*; set TMPDIR to one that can be written"
    ):
        await Stack(config()).__aenter__()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semspec.background.FIRST_DELAY_S", 0.01)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("name", ["redis", "draft", "gateway"])
async def test_process_that_ends_is_started_again_at_its_address(name: str) -> None:
    reports = list[str]()
    async with Stack(config()) as stack, httpx.AsyncClient() as http:
        addresses, before = dict(stack.addresses), stack.processes[name].pid
        keeping = asyncio.create_task(keep_running(stack, reports.append))
        stack.processes[name].kill()
        async with asyncio.timeout(GENEROUS_S):
            while not reports or stack.processes[name].pid == before:
                await asyncio.sleep(0.01)
            while name == "gateway":
                with suppress(httpx.TransportError):
                    assert (await http.get(f"{stack.base_url}/ready")).status_code == 200
                    break
        environment = psutil.Process(stack.processes[name].pid).environ()
        if name == "draft":
            assert environment["SEMSPEC_DRAFT_PORT"] == "4711"
        assert stack.addresses == addresses and not keeping.done()
        assert [report.splitlines()[-1] for report in reports] == [
            f"semspec: {name} ended with SIGKILL; it starts again in 0.01 s"
        ]
        keeping.cancel()
        await asyncio.wait([keeping])


@pytest.mark.usefixtures("hasty")
async def test_process_that_keeps_ending_is_started_after_longer_delays_until_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semspec.background.MAX_DELAY_S", 0.08)
    reports = list[str]()
    async with Stack(config()) as stack:
        sound = stack.processes["target"]
        stack.processes["target"] = replace(sound, command=(sys.executable, "-c", BROKEN))
        sound.kill()
        keeping = asyncio.create_task(keep_running(stack, reports.append))
        async with asyncio.timeout(GENEROUS_S):
            while len(reports) < 9:
                await asyncio.sleep(0.01)
            stack.processes["target"] = replace(stack.processes["target"], command=sound.command)
            while not stack.processes["target"].is_alive:
                await asyncio.sleep(0.01)
        assert not keeping.done()
        keeping.cancel()
        await asyncio.wait([keeping])
    delays = [report.rpartition(" in ")[2] for report in reports]
    assert delays[:5] == ["0.01 s", "0.02 s", "0.04 s", "0.08 s", "0.08 s"]
    assert "no model at /nowhere: name one with SEMSPEC_TARGET_MODEL" in reports[1]


@pytest.mark.usefixtures("hasty")
async def test_supervisor_ends_when_it_cannot_watch_a_process(tmp_path: Path) -> None:
    async with Stack(config()) as stack:
        sound = stack.processes["target"]
        stack.processes["target"] = replace(sound, log=tmp_path / "gone" / "target.log")
        sound.kill()
        with pytest.raises(OSError, match=r"target\.log"):
            await asyncio.wait_for(keep_running(stack, list[str]().append), GENEROUS_S)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "DeepSeek-R1-Distill-Qwen-32B"),
        ("/models/QwQ 32B", "QwQ-32B"),
        ("/models/my-pair/target", "my-pair"),
    ],
)
def test_pair_is_named_after_its_target(
    target: str | Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "SEMSPEC_GATEWAY_MODEL_NAME"
    monkeypatch.delenv(variable, raising=False)
    addresses = {"redis": "redis://127.0.0.1"}
    named = StackConfig(target_model=target, pair=None).gateway_environment(addresses, 0, "sk-any")
    assert named.get(variable, "") == name
    given = StackConfig(target_model=target, pair=None, environment={variable: "mine"})
    assert variable not in given.gateway_environment(addresses, 0, "sk-any")


async def test_release_without_probes_starts_no_verifier(tmp_path: Path) -> None:
    assert StackConfig.of_pair(tmp_path).pair is None
    release = replace(
        load_release(BUNDLED_PAIR / "probes"), draft_probe="", target_probe="", projections=()
    )
    (tmp_path / "probes").mkdir()
    release.save(tmp_path / "probes")
    bare = replace(config(), pair=StackConfig.of_pair(tmp_path).pair)
    async with Stack(bare) as stack:
        assert set(stack.processes) == {"redis", "draft", "target", "gateway"}
        environment = psutil.Process(stack.processes["gateway"].pid).environ()
    assert environment["SEMSPEC_GATEWAY_VERIFIER_ADDRESS"] == "none"
    assert environment["SEMSPEC_GATEWAY_PAIR"] == str(tmp_path / "probes")


def test_release_names_its_models(tmp_path: Path) -> None:
    release = load_release(BUNDLED_PAIR / "probes")
    there = StackConfig.of_release(BUNDLED_PAIR / "probes" / "pair.json")
    assert there == StackConfig(
        str(BUNDLED_PAIR / "draft"), str(BUNDLED_PAIR / "target"), BUNDLED_PAIR / "probes"
    )
    replace(release, target=replace(release.target, model="a/target", revision="main")).save(
        tmp_path
    )
    hub = StackConfig.of_release(tmp_path)
    assert (hub.target_model, hub.environment) == ("a/target", {"SEMSPEC_TARGET_REVISION": "main"})


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[str]]:
    """A supervisor in a process of its own, its children up."""
    with start_supervisor(SUPERVISOR) as process:
        yield process
        process.kill()


def start_supervisor(program: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    )


def pids_of(process: subprocess.Popen[str]) -> list[int]:
    output: IO[str] | None = process.stdout
    assert output is not None
    pids = [int(word) for word in output.readline().split()]
    assert len(pids) == 5
    return pids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_supervisor_ended_by_a_signal_leaves_nothing_behind(
    supervisor: subprocess.Popen[str], number: signal.Signals, temporary_folder: Path
) -> None:
    pids = pids_of(supervisor)
    supervisor.send_signal(number)
    assert supervisor.wait(timeout=GENEROUS_S) == 128 + number
    assert left_alive(pids, 0) == []
    assert list(temporary_folder.iterdir()) == []


def test_second_signal_kills_what_does_not_stop(temporary_folder: Path) -> None:
    program = SUPERVISOR.replace(
        "config()", "config(gateway=DEAF_GATEWAY, stop_grace_s=60)"
    ).replace("import config", "import DEAF_GATEWAY, config")
    with start_supervisor(program) as supervisor:
        pids = pids_of(supervisor)
        supervisor.send_signal(signal.SIGINT)
        time.sleep(0.3)
        supervisor.send_signal(signal.SIGINT)
        assert supervisor.wait(timeout=GENEROUS_S) == 128 + signal.SIGINT
    assert left_alive(pids) == []
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child that its parent was killed"
)
async def test_supervisor_killed_leaves_no_process_behind_and_its_folder_goes_at_the_next_start(
    supervisor: subprocess.Popen[str], temporary_folder: Path
) -> None:
    pids = pids_of(supervisor)
    [left] = temporary_folder.iterdir()
    (temporary_folder / "semspec-of-another-version").mkdir()
    async with Stack(config()):
        assert left.exists() and len(list(temporary_folder.iterdir())) == 3
        supervisor.kill()
        supervisor.wait(
            GENEROUS_S
        )  # its last thread frees the folder, which may be after its children's end
        assert left_alive(pids) == []
        async with Stack(config()):
            assert not left.exists() and len(list(temporary_folder.iterdir())) == 3
