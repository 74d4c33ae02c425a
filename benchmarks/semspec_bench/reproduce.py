"""The paper's comparison for one pair, in one command: checks, models, probes, benchmarks, report.

A YAML file describes it (`PairConfig`); `pairs/` has those of the paper's pairs and of one that takes a day. All files
are in one folder: `training/` (configurations and stages of `semspec train run`), `pairs/` (links to the models, and
the probes with their report), `runs/` (a folder of `semspec bench run` for each) and `report/`. The same command
resumes an interrupted one.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from pydantic import Field, model_validator

from semspec.clustering.language_model import LanguageModelConfig
from semspec.clustering.nli import EntailmentConfig
from semspec.engine.hub import fetch, format_bytes
from semspec.errors import InvalidRequest
from semspec.pairs import ROLES
from semspec.reporting.files import replacing
from semspec.reporting.progress import Reporter
from semspec.stack.parent_death import bound_command
from semspec.training.config import Part, PipelineConfig, read_config, read_yaml, validated
from semspec_bench.configuration import parse
from semspec_bench.environment import answer_tokens
from semspec_bench.readiness import Requirements, Work, check
from semspec_bench.report.paper import TRANSFORMERS, expected_seconds, paper_pair_of
from semspec_bench.run import Plan, is_complete, run_plans
from semspec_bench.runners.protocol import RunnerError
from semspec_bench.samplers import sampler, sampling_servers, server_command
from semspec_bench.summary import load_run
from semspec_bench.tasks import Task

PAIRS = Path(__file__).parent / "pairs"
MAIN = "main"
PAIR_OF_COST = "R1-32B"
"""The paper's pair whose times `PairConfig.relative_cost` is relative to."""
FIT_SETTINGS = {"probes", "report", "likelihood"}
"""Settings of the training that its samples do not depend on."""


class RunConfig(Part):
    """One task, asked with one set of probes."""

    task: str
    strategies: tuple[str, ...] = Field(
        min_length=1, description="labels of `semspec bench run`, the target first"
    )
    probes: str = Field(MAIN, description="name of the probes")
    data: str | None = Field(
        None, description="JSON lines file or dataset with the questions; unset: the task's own"
    )
    samples: int = Field(1, ge=1, description="answers to each question")
    limit: int | None = Field(None, ge=1, description="the first questions only")
    engine: Literal["transformers"] | None = Field(
        None, description="engine of draft and target instead of the pair's"
    )

    @property
    def name(self) -> str:
        parts = (self.task, None if self.probes == MAIN else self.probes, self.engine)
        return "-".join(filter(None, parts))

    @property
    def environment(self) -> dict[str, str]:
        """Settings of the services that are this run's own."""
        if self.engine is None:
            return {}
        roles = [f"SEMSPEC_{role.upper()}" for role in ROLES]
        return {f"{role}_ENGINE": self.engine for role in roles} | {
            f"{role}_VLLM_OPTIONS": "{}" for role in roles
        }


class PairConfig(Part):
    """A reproduction for one pair."""

    name: str = Field(pattern=r"^[\w.-]+$")
    training: Path = Field(description="configuration of `semspec train`, relative to this file")
    probes: dict[str, dict[str, Any]] = Field(
        {MAIN: {}}, description="name -> settings that replace those of training"
    )
    runs: tuple[RunConfig, ...] = Field(min_length=1)
    environment: dict[str, str] = Field(
        {}, description="settings of the services, unless the environment has others"
    )
    max_tokens: int | None = Field(
        None, ge=1, description="budget of an answer; unset: as published"
    )
    samplers: dict[Literal["draft", "target"], str] = Field(
        {}, description="role -> options of vLLM's server that writes the samples of the trainings"
    )
    servers: dict[str, str] = Field(
        {},
        description="NAME of the label server/NAME -> shell command of an OpenAI-compatible server "
        "with {port}, {vllm} (vLLM's command for the target alone) and {draft} (its folder)",
    )
    models: tuple[str, ...] = Field((), description="hub ids that the servers load besides")
    relative_cost: float | None = Field(
        None,
        gt=0,
        description="for --check: the target's weights divided by those of R1-Distill-Qwen-32B, "
        "whose published times count in proportion; unset: the pair's own",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> "PairConfig":
        names = [run.name for run in self.runs]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(
                f"runs: {', '.join(sorted(twice))} occurs twice; put all strategies into one run"
            )
        if unknown := {MAIN, *(run.probes for run in self.runs)} - set(self.probes):
            raise ValueError(f"probes: {', '.join(sorted(unknown))} not defined; add them")
        for run in self.runs:
            try:
                first, *_ = [parse(label) for label in run.strategies]
            except InvalidRequest as error:
                raise ValueError(f"runs: {error}") from error
            if first.method != "target":
                raise ValueError(
                    f"runs: {run.name} begins with {first.label}; name the target alone first"
                )
            named = {
                label.removeprefix("server/") for label in run.strategies if "server/" in label
            }
            if unknown := named - set(self.servers):
                raise ValueError(f"servers: {', '.join(sorted(unknown))} not defined; add them")
        return self


def add_parser(commands: Any) -> None:
    """Add `semspec bench reproduce` to the commands of `semspec bench`."""
    found = commands.add_parser(
        "reproduce", help="the paper's tables and figures for one pair, from its models on"
    )
    found.set_defaults(
        command=reproduce, after="what is finished is kept, run the same command to resume"
    )
    found.add_argument(
        "--pair",
        required=True,
        metavar="NAME|FILE",
        help=f"{_names()}, or a YAML file of that form",
    )
    found.add_argument(
        "--output", type=Path, help="folder for everything (default: .work/reproduce/NAME)"
    )
    found.add_argument(
        "--limit", type=int, help="questions of each task at most; more may follow (default: all)"
    )
    found.add_argument(
        "--check", action="store_true", help="only check, and say how many hours and bytes it takes"
    )


def _names() -> str:
    return ", ".join(sorted(path.stem for path in PAIRS.glob("*.yaml")))


def reproduce(options: argparse.Namespace, reporter: Reporter) -> None:
    """Check, then make what is missing. Raises: InvalidRequest when a check fails; nothing is begun then."""
    path = (
        Path(options.pair)
        if options.pair.endswith((".yaml", ".yml"))
        else PAIRS / f"{options.pair}.yaml"
    )
    if not path.is_file():
        raise InvalidRequest(
            f"there is no {path}", remedy=f"give --pair one of {_names()}, or a YAML file"
        )
    config = read_config(path, PairConfig)
    output = (options.output or Path(".work/reproduce") / config.name).absolute()
    reproduction = Reproduction(
        config, read_yaml(path.parent / config.training), output, options.limit, reporter
    )
    tasks = reproduction.check()
    if options.check:
        return
    os.environ.update(
        {name: value for name, value in config.environment.items() if name not in os.environ}
    )
    for name in config.probes:
        reproduction.link_models(name)
        reproduction.train(name)
    reproduction.measure(tasks)
    reproduction.report()


@dataclass(frozen=True)
class Reproduction:
    """The steps, each of which does only what is missing."""

    config: PairConfig
    training: Mapping[str, Any]
    """Contents of the training's configuration."""
    output: Path
    limit: int | None
    reporter: Reporter

    def pair(self, name: str) -> Path:
        """Return the folder of the pair with the probes `name`."""
        return (
            self.output
            / "pairs"
            / (self.config.name if name == MAIN else f"{self.config.name}-{name}")
        )

    @cached_property
    def pipelines(self) -> Mapping[str, PipelineConfig]:
        """Training configuration of each set of probes. Raises: InvalidRequest."""
        source = f"{self.config.training} with probes"
        return {
            name: validated(self._settings(name), PipelineConfig, f"{source}.{name}")
            for name in self.config.probes
        }

    def _settings(self, name: str) -> dict[str, Any]:
        settings = dict(self.training)
        for key, value in self.config.probes[name].items():
            known = settings.get(key)
            settings[key] = (
                {**known, **value} if isinstance(value, dict) and isinstance(known, dict) else value
            )
        for role in self.config.samplers:
            model = settings[role]["model"]
            settings[role] = {**settings[role], "sampler": sampler(role, model)}
        return settings | {"name": self.pair(name).name, "output": str(self.pair(name) / "probes")}

    def check(self) -> Sequence[Task]:
        """Check everything that can be known before the start, a line each. Returns: the tasks of the runs.

        Raises: InvalidRequest when a check fails.
        """
        sampled = dict.fromkeys(
            self._sampling_group(name) for name in self.config.probes if not self._is_trained(name)
        )
        missing = [self.pipelines[name] for name in sampled]
        tasks_wanted = [(run.task, run.data) for run in self.config.runs]
        services = self.config.environment | os.environ
        engines = [services.get(f"SEMSPEC_{role.upper()}_ENGINE") for role in ROLES]
        commands = " ".join(self.config.servers.values())
        is_over_vllm = bool("vllm" in engines or self.config.samplers or "{vllm}" in commands)
        requirements = Requirements(
            self.pipelines[MAIN],
            missing,
            tasks_wanted,
            self.output,
            [*self._devices(services)],
            is_over_vllm,
            self.config.models,
            self.config.relative_cost,
        )
        found = check(requirements, self.reporter)
        tasks = [
            self._limited(run, task)
            for run, task in zip(self.config.runs, found.tasks, strict=False)
        ]
        num_stages = 1 + len(missing) + len(self.config.runs)  # with the downloads
        if len(found.work) + len(tasks) == num_stages:
            self.reporter.say("\n".join(_with_sums([*found.work, *self._answers(tasks)])))
        if num_failed := sum(result.level == "fail" for result in found.checks):
            raise InvalidRequest(
                f"{num_failed} of {len(found.checks)} checks failed, nothing was started",
                remedy="see the lines above",
            )
        return tasks

    def _devices(self, services: Mapping[str, str]) -> Iterator[str]:
        """Yield the devices that the settings of the services and of the trainings name."""
        for role in (*ROLES, "verifier"):
            yield services.get(f"SEMSPEC_{role.upper()}_DEVICE", "auto")
        for pipeline in self.pipelines.values():
            yield from (pipeline.draft.device, pipeline.target.device, pipeline.probes.device)
            if isinstance(pipeline.equivalence, EntailmentConfig | LanguageModelConfig):
                yield pipeline.equivalence.device

    def _sampling_group(self, name: str) -> str:
        """Return the name of the first probes with the same samples, which differ only in their fit."""

        def sampling(name: str) -> dict[str, Any]:
            return {
                key: value
                for key, value in self.config.probes[name].items()
                if key not in FIT_SETTINGS
            }

        return next(
            candidate
            for candidate in (MAIN, *self.config.probes)
            if sampling(candidate) == sampling(name)
        )

    def _limited(self, run: RunConfig, task: Task) -> Task:
        limits = [limit for limit in (run.limit, self.limit) if limit is not None]
        return replace(task, questions=task.questions[: min(limits)]) if limits else task

    def _answers(self, tasks: Sequence[Task]) -> Iterator[Work]:
        """Yield the work of each run, at the paper's latencies if they are known. A server counts as the target."""
        models = [self.pipelines[MAIN].draft.model, self.pipelines[MAIN].target.model]
        cost = self.config.relative_cost
        pair = PAIR_OF_COST if cost else paper_pair_of(models)
        for run, task in zip(self.config.runs, tasks, strict=True):
            num_answers = len(task.questions) * run.samples
            configurations = [parse(label) for label in run.strategies]
            methods = [
                "target" if configuration.runner == "server" else configuration.method
                for configuration in configurations
            ]
            name = f"{pair}{TRANSFORMERS}" if run.engine and pair else pair
            seconds = expected_seconds(name, run.task, methods, cost or 1)
            amount = f"{num_answers} answers from each of {len(run.strategies)} strategies"
            if seconds is None:
                yield Work(run.name, amount, None)
            else:
                latencies = "the paper's latencies"
                if cost:
                    latencies += f", the target's times {cost:g}"
                yield Work(run.name, f"{amount} at {latencies}", seconds * num_answers)

    def link_models(self, name: str) -> None:
        """Download the pair's models, and link them in its folder."""
        config = self.pipelines[name]
        for role, model in zip(ROLES, (config.draft, config.target), strict=True):
            local = Path(fetch(model.model, model.revision, self.reporter.say))
            link = self.pair(name) / role
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(local.resolve(), target_is_directory=True)
        for other in self.config.models:
            fetch(other, None, self.reporter.say)

    def _is_trained(self, name: str) -> bool:
        return (self.pair(name) / "report" / "report.json").is_file()

    def train(self, name: str) -> None:
        """Run `semspec train run`, with a worker on each GPU for the sharded stages. Raises: RunnerError."""
        path = self.output / "training" / f"{name}.yaml"
        text = yaml.safe_dump(self._settings(name), sort_keys=False)
        if self._is_trained(name):
            if path.read_text() != text:
                raise InvalidRequest(
                    f"{self.pair(name)} has probes of other settings, see {path}",
                    remedy="give another --output",
                )
            return
        with replacing(path) as partial:
            partial.write_text(text)
        work = self.output / "training" / self._sampling_group(name)
        options = ["--config", str(path), "--work", str(work)]
        devices = [
            device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device
        ]
        devices = devices or [str(index) for index in range(torch.cuda.device_count())] or [""]
        commands: dict[str, list[str]] = {
            role: server_command(role, self.pipelines[name], more)
            for role, more in self.config.samplers.items()
        }
        workers = devices[1:] if commands and len(devices) > 1 else devices
        with sampling_servers(commands, devices[0], path.parent):
            self._run_training(work, options, workers)
        kept = self.pair(name) / "report"
        shutil.copytree(
            work / "report", partial := kept.with_suffix(".partial"), dirs_exist_ok=True
        )
        partial.rename(kept)

    def _run_training(self, work: Path, options: Sequence[str], devices: Sequence[str]) -> None:
        if not (work / "samples").exists():
            _train([["estimate", *options]], devices[:1])
        if len(devices) > 1:
            shards = [
                ["run", *options, "--shard", f"{index}/{len(devices)}"]
                for index in range(len(devices))
            ]
            _train(shards, devices)
        _train([["run", *options]], devices[:1])

    def measure(self, tasks: Sequence[Task]) -> None:
        """Perform the runs; those with the same probes and engine share a stack. Raises: RunnerError, StackError."""
        stacks: dict[tuple[str, str], dict[Path, Plan]] = {}
        for run, task in zip(self.config.runs, tasks, strict=True):
            folder, plan = self._folder(run), self._plan(run, task)
            if not is_complete(folder, plan):
                stacks.setdefault((run.engine or "", run.probes), {})[folder] = plan
        environments: dict[str, dict[str, str]] = {
            run.engine or "": run.environment for run in self.config.runs
        }
        for (engine, _), plans in sorted(stacks.items(), key=lambda item: item[0]):
            with _environment(environments[engine]):
                run_plans(plans, self.reporter)

    def _folder(self, run: RunConfig) -> Path:
        return self.output / "runs" / run.name

    def _plan(self, run: RunConfig, task: Task) -> Plan:
        pair, configurations = self.pair(run.probes), [parse(label) for label in run.strategies]
        max_tokens = answer_tokens(
            pair, self.config.max_tokens or task.max_tokens, self.reporter.say
        )
        return Plan(
            task,
            configurations,
            pair,
            task.temperature,
            task.top_p,
            max_tokens,
            samples=run.samples,
            servers=self.config.servers,
        )

    def report(self) -> None:
        """Write the report of all runs, with the curves of the main probes."""
        from semspec_bench.report.page import write_report  # imports matplotlib

        runs = [load_run(self._folder(run)) for run in self.config.runs]
        write_report(
            runs, self.output / "report", probes=self.pair(MAIN) / "report" / "report.json"
        )
        self.reporter.say(f"{self.output}/report/report.html")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block, which may not set others."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _with_sums(work: Sequence[Work]) -> Iterator[str]:
    """Yield a line for each stage, then one with the sums."""
    yield from map(str, work)
    hours = sum(stage.seconds or 0 for stage in work) / 3600
    num_bytes = sum(stage.num_bytes for stage in work)
    yield f"in all about {hours:.1f} h ({hours / 24:.1f} days) and {format_bytes(num_bytes)} of disk"
    if unknown := [stage.stage for stage in work if stage.seconds is None]:
        yield f"without the time of {', '.join(unknown)}: no rate is known for these models"


def _train(commands: Sequence[Sequence[str]], devices: Sequence[str]) -> None:
    """Run `semspec train` with each of `commands` on its device; one that fails ends all. Raises: RunnerError."""
    processes = [
        subprocess.Popen(
            bound_command([sys.executable, "-m", "semspec.cli", "train", *command]),
            env={**os.environ, **({"CUDA_VISIBLE_DEVICES": device} if device else {})},
        )
        for command, device in zip(commands, devices, strict=True)
    ]
    try:
        while any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes):
                break
            time.sleep(0.2)
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    if failed := [process.returncode for process in processes if process.returncode]:
        raise RunnerError(f"the training exited with code {failed[0]}; see its last line")
