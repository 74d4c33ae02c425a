"""A run: every configuration on every question, interleaved, with one record per generation; resumable."""

import asyncio
import hashlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from semspec.errors import InvalidRequest
from semspec.pairs import ROLES
from semspec.records import VERDICTS, SegmentText, SegmentTrace, statistics
from semspec.reporting.files import read_json, write_json
from semspec.reporting.progress import Reporter
from semspec.stack import StackConfig
from semspec.types import Segment, SegmentRecord, derive_seed
from semspec_bench.configuration import Configuration, RunnerName
from semspec_bench.environment import code_digest, environment, memory_bytes
from semspec_bench.record import RECORDS, STAGES, Record, as_line, read_records
from semspec_bench.runners.assisted import open_transformers
from semspec_bench.runners.gateway import open_gateway, open_stack, with_concurrency
from semspec_bench.runners.in_process import open_in_process
from semspec_bench.runners.protocol import Ask, NotApplicable, Outcome, Runner, RunnerError
from semspec_bench.runners.vllm import open_vllm
from semspec_bench.tasks import Question, Task
from semspec_demo.client import in_turns

WARM_UP_TOKENS = 64
"""Budget of the untimed answers before a run."""
LOADED_BYTES_PER_S = 1e8
"""Least rate at which the services are expected to load weights; the disk's, mostly."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a run."""

    task: Task
    configurations: Sequence[Configuration]
    """The first is the baseline."""
    pair: Path
    temperature: float
    top_p: float
    max_tokens: int
    samples: int = 1
    seed: int = 0
    gateway: str | None = None
    """Base URL of a running gateway; None starts one with `pair`."""
    vllm: Path | None = None
    """Interpreter of an environment with vLLM, for its configurations."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """Shell commands of the servers that configurations `server/NAME` ask."""
    release: str | None = None
    """Digest of the release's `pair.json`, if the release is not in the folder of `pair`."""
    num_sessions: int = 1
    """Questions asked at the same time. Above 1, a run measures quality only."""

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that identify a run. Configurations may be added later, and questions do not count."""
        asked = [
            configuration.method
            for configuration in self.configurations
            if configuration.runner == "server"
        ]
        return {
            "task": self.task.name,
            "pair": None if self.gateway else self.pair.name,
            "gateway": self.gateway,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            "samples": self.samples,
            "seed": self.seed,
            "sessions": self.num_sessions,
            "servers": {name: self.servers[name] for name in asked if name in self.servers},
            "release": self.release,
            "code": code_digest(),
        }


Runners = Mapping[RunnerName, Runner]


@asynccontextmanager
async def open_runners(plan: Plan) -> AsyncIterator[Runners]:
    """Open the runners of the plan's configurations; several plans for the same pair may share them.

    Raises: InvalidRequest, RunnerError, StackError.
    """
    async with AsyncExitStack() as stack:
        names = dict.fromkeys(configuration.runner for configuration in plan.configurations)
        yield {name: await stack.enter_async_context(_runner(name, plan)) for name in names}


def _runner(name: RunnerName, plan: Plan) -> AbstractAsyncContextManager[Runner]:
    match name:
        case "gateway":
            if plan.gateway:
                return open_gateway(plan.gateway)
            config = _with_load_time(StackConfig.of_pair(plan.pair), plan.pair)
            return open_stack(with_concurrency(config, plan.num_sessions))
        case "in-process":
            return open_in_process(StackConfig.of_pair(plan.pair), plan.num_sessions)
        case "transformers":
            return open_transformers(plan.pair)
        case "server":
            if not plan.servers:
                raise InvalidRequest(
                    "server/NAME needs a command",
                    remedy="write it under `servers` of a pair's file for `semspec bench reproduce`",
                )
            return open_vllm(plan.pair, Path(sys.executable), plan.servers)
        case "vllm":
            if plan.vllm is None:
                raise InvalidRequest(
                    "vLLM runs in a separate environment", remedy="name its interpreter with --vllm"
                )
            return open_vllm(plan.pair, plan.vllm)


def _with_load_time(config: StackConfig, pair: Path) -> StackConfig:
    """Return `config` with a start timeout for models of this size."""
    num_bytes = sum(
        weights.stat().st_size for role in ROLES for weights in (pair / role).glob("*.safetensors")
    )
    return replace(config, start_timeout_s=config.start_timeout_s + num_bytes / LOADED_BYTES_PER_S)


def run_plans(plans: Mapping[Path, Plan], reporter: Reporter) -> None:
    """Run plans of the same pair, each in its folder. Raises: InvalidRequest, RunnerError, StackError."""
    torch.set_num_threads(1)
    comparisons = [Comparison(plan, folder, reporter) for folder, plan in plans.items()]
    first = next(iter(plans.values()))
    configurations = [
        configuration for plan in plans.values() for configuration in plan.configurations
    ]

    async def run_all() -> None:
        for sitting in _sittings(configurations):
            if all(is_complete(folder, plan, sitting) for folder, plan in plans.items()):
                continue
            async with open_runners(replace(first, configurations=sitting)) as runners:
                for comparison in comparisons:
                    await comparison.run(runners, sitting)

    asyncio.run(run_all())


def _sittings(configurations: Sequence[Configuration]) -> list[list[Configuration]]:
    """Group configurations that run at the same time: all but `server/NAME`, which each take the whole machine."""
    shared = [configuration for configuration in configurations if configuration.runner != "server"]
    servers = {
        configuration.label: [configuration]
        for configuration in configurations
        if configuration.runner == "server"
    }
    return [sitting for sitting in (shared, *servers.values()) if sitting]


Turn = tuple[int, Question, Configuration]
"""Number of the sample, question and configuration."""


class Comparison:
    """Runs a plan in its folder, which has `run.json` and `records.jsonl`."""

    def __init__(self, plan: Plan, folder: Path, reporter: Reporter) -> None:
        """Raises: InvalidRequest when the folder holds another run."""
        self._plan, self._folder, self._reporter = plan, folder, reporter
        self._not_applicable: dict[str, str] = {}
        self._applicable: set[str] = set()
        claim(folder, plan)

    async def run(self, runners: Runners, sitting: Sequence[Configuration]) -> None:
        """Answer all questions by the plan's configurations in `sitting`.

        Raises: RunnerError, StackError; finished records are kept.
        """
        configurations = [
            configuration for configuration in self._plan.configurations if configuration in sitting
        ]
        applicable = await self._warm_up(runners, configurations)
        try:
            await self._ask_all(runners, applicable)
        finally:
            self._write_facts(runners)

    async def _warm_up(
        self, runners: Runners, configurations: Sequence[Configuration]
    ) -> list[Configuration]:
        """Answer once untimed by each configuration; those the pair does not support are excluded, with the reason."""
        question, applicable = self._plan.task.questions[-1], list[Configuration]()
        for configuration in configurations:
            request = self._request(question, configuration, 0)
            short = replace(request, max_tokens=min(request.max_tokens, WARM_UP_TOKENS))
            try:
                await runners[configuration.runner].ask(short)
                applicable.append(configuration)
                self._applicable.add(configuration.label)
            except NotApplicable as error:
                self._not_applicable[configuration.label] = str(error)
                self._reporter.say(f"{configuration.label}: not applicable: {error}")
        label = self._plan.configurations[0].label
        if label in self._not_applicable:
            raise RunnerError(f"{label} is the baseline, but {self._not_applicable[label]}")
        return applicable

    async def _ask_all(self, runners: Runners, configurations: Sequence[Configuration]) -> None:
        path, questions = self._folder / RECORDS, self._plan.task.questions
        done = {record.key for record in read_records(path)}
        schedule = [
            (sample, question, configuration)
            for sample in range(self._plan.samples)
            for question, configuration in in_turns(questions, configurations)
        ]
        left = [turn for turn in schedule if (turn[2].label, turn[1].id, turn[0]) not in done]
        title = f"{self._plan.task.name}, T {self._plan.temperature:g}"
        bar = self._reporter.bar(title, len(schedule), "answers", done=len(schedule) - len(left))
        with bar as advance, path.open("a") as file:
            await self._ask_side_by_side(runners, left, file, advance)

    async def _ask_side_by_side(
        self, runners: Runners, left: Sequence[Turn], file: TextIO, advance: Callable[[int], None]
    ) -> None:
        """Ask as many at a time as there are sessions; each answer makes room for the next question."""
        turns = iter(left)

        async def session() -> None:
            for sample, question, configuration in turns:
                request = self._request(question, configuration, sample)
                outcome = await runners[configuration.runner].ask(request)
                is_right = await asyncio.to_thread(self._plan.task.is_right, question, outcome.text)
                file.write(as_line(_record(request, question, sample, outcome, is_right)))
                file.flush()
                advance(1)

        await asyncio.gather(*(session() for _ in range(self._plan.num_sessions)))

    def _request(self, question: Question, configuration: Configuration, sample: int) -> Ask:
        plan = self._plan
        # JSON numbers are exact up to 53 bits.
        seed = derive_seed(plan.seed, question.id, sample) >> 11
        return Ask(
            question.messages, configuration, plan.temperature, plan.top_p, seed, plan.max_tokens
        )

    def _write_facts(self, runners: Runners) -> None:
        """Write the environment and the memory use of each process after the last answer."""
        processes = {
            role: pid for runner in runners.values() for role, pid in runner.processes().items()
        }
        facts = read_json(self._folder / "run.json")
        memory = facts["environment"].setdefault("memory_bytes", {})
        memory |= memory_bytes(processes)
        earlier = {
            label: reason
            for label, reason in facts["not_applicable"].items()
            if label not in self._applicable
        }
        facts["not_applicable"] = earlier | self._not_applicable
        _update(self._folder / "run.json", facts)


def is_complete(folder: Path, plan: Plan, sitting: Sequence[Configuration] = ()) -> bool:
    """Return whether the run in `folder` has all answers of the plan, or of those of its configurations in `sitting`.

    Configurations that are not applicable need none, except servers, which may start the next time.
    """
    path = folder / "run.json"
    refused = read_json(path)["not_applicable"] if path.is_file() else {}
    labels = [
        configuration.label
        for configuration in plan.configurations
        if (not sitting or configuration in sitting)
        and (configuration.runner == "server" or configuration.label not in refused)
    ]
    done = {record.key for record in read_records(folder / RECORDS)}
    return done.issuperset(
        (label, question.id, sample)
        for label in labels
        for question in plan.task.questions
        for sample in range(plan.samples)
    )


def claim(folder: Path, plan: Plan) -> None:
    """Create the run's folder, or check that the existing one belongs to the same run. Raises: InvalidRequest."""
    path, labels = (
        folder / "run.json",
        [configuration.label for configuration in plan.configurations],
    )
    if path.exists():
        facts = read_json(path)
        answered = {record.label for record in read_records(folder / RECORDS)}
        # The command of a server without answers may change.
        servers = {
            name: command
            for name, command in facts["settings"].get("servers", {}).items()
            if f"server/{name}" in answered
        }
        settings = plan.settings
        facts["settings"]["servers"] = settings["servers"] | servers
        names = ", ".join(_differing(facts["settings"], settings))
        if names:
            raise InvalidRequest(
                f"{folder} holds a run with {names}", remedy="give another --output"
            )
        _update(path, facts | {"labels": list(dict.fromkeys([*labels, *facts["labels"]]))})
        return
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "settings": plan.settings,
        "labels": labels,
        "environment": environment(plan.pair),
        "not_applicable": {},
    }
    write_json(path, facts)


def _update(path: Path, facts: Mapping[str, Any]) -> None:
    """Write `facts` unless the file has them already."""
    if read_json(path) != facts:
        write_json(path, facts)


def _differing(
    known: Mapping[str, Any], settings: Mapping[str, Any], within: str = ""
) -> Iterator[str]:
    """Describe each setting that differs."""
    for name, value in settings.items():
        old = known.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            yield from _differing(old, value, f"{within}{name}.")
        elif old != value:
            yield f"{within}{name} {old!r}, not {value!r}"


def default_folder(plan: Plan) -> Path:
    """Return the plan's folder: the same command resumes its run; other settings or other code start a new one."""
    digest = hashlib.sha256(json.dumps(plan.settings, sort_keys=True).encode()).hexdigest()[:8]
    sessions = f"{plan.num_sessions}x-" if plan.num_sessions > 1 else ""
    return Path(".work/bench") / f"{plan.task.name}-t{plan.temperature:g}-{sessions}{digest}"


def _counted(row: SegmentTrace) -> SegmentRecord:
    """Return the part of a record that `statistics` counts."""
    segment, rejected = _segment(row), None if row.rejected is None else _segment(row.rejected)
    accepted = next(accepted for accepted, verdict in VERDICTS.items() if verdict == row.verdict)
    numbers = {
        name: getattr(row, name) for name in ("index", "num_proposed_tokens", "num_accepted_tokens")
    }
    return SegmentRecord(segment=segment, accepted=accepted, rejected=rejected, **numbers)


def _segment(text: SegmentText) -> Segment:
    return Segment(text.text, tuple(text.token_ids), text.tokenizer, text.writer, text.end)


def _record(
    request: Ask, question: Question, sample: int, outcome: Outcome, is_right: bool
) -> Record:
    numbers = statistics(_counted(SegmentTrace.model_validate(row)) for row in outcome.trace)
    stages: Counter[str] = Counter()
    for row in outcome.trace:
        stages.update(row["times"])
    return Record(
        label=request.configuration.label,
        question=question.id,
        sample=sample,
        seed=request.seed,
        is_right=is_right,
        finish_reason=outcome.finish_reason,
        latency_s=round(outcome.latency_s, 6),
        num_prompt_tokens=outcome.num_prompt_tokens,
        num_tokens=outcome.num_tokens,
        num_target_tokens=numbers.num_target_tokens if outcome.trace else None,
        num_accepted=numbers.num_accepted,
        num_rejected=numbers.num_rejected,
        num_proposed_tokens=numbers.num_proposed_tokens,
        num_accepted_tokens=numbers.num_accepted_tokens,
        stages_ms={name: round(stages[name], 3) for name in (*STAGES, "wire_ms")}
        if outcome.trace
        else {},
        text_digest=hashlib.sha256(outcome.text.encode()).hexdigest()[:12],
        trace=[_without_tokens(row) for row in outcome.trace],
    )


def _without_tokens(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a segment's record without its token ids."""
    slim = {name: value for name, value in row.items() if name not in ("token_ids", "tokenizer")}
    if slim["rejected"]:
        slim["rejected"] = _without_tokens({"rejected": None, **slim["rejected"]})
    return slim
