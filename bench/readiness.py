"""What a reproduction needs, checked before it begins: models, questions, disk, memory; a line each."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from huggingface_hub import constants
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
from transformers.utils import cached_file

from semspec.bench.tasks import Task, load_task
from semspec.clustering.nli import EntailmentConfig
from semspec.commands.checks import Check, fail, ok
from semspec.commands.doctor import line
from semspec.engine.hub import Checkpoint, look_up, size_of
from semspec.engine.vllm.options import check_installed
from semspec.errors import InvalidRequest, Mismatch
from semspec.training.config import PipelineConfig
from semspec.training.data.questions import gather
from semspec.training.estimate import context_bytes
from semspec.training.progress import Reporter

ROOM = 1.1
"""Memory that two models take, divided by the size of their weights."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What will be used."""

    pipeline: PipelineConfig
    """With the models."""
    sampled: Sequence[PipelineConfig]
    """Trainings that are still to be made, those with samples of their own."""
    tasks: Sequence[tuple[str, str | None]]
    """Name and data of each run's task."""
    output: Path
    is_over_vllm: bool = False


def check(wanted: Wanted, reporter: Reporter) -> tuple[list[Check], list[Task]]:
    """All checks, each said as soon as it is known, and the tasks that can be loaded."""
    found: list[Check] = []
    tasks: list[Task] = []
    models: dict[str, Checkpoint] = {}
    disable_progress_bars()  # of the hub's client, between the lines
    for one in (_engines(wanted), _models(wanted.pipeline, models), _tasks(wanted, tasks), _resources(wanted, models)):
        for result in one:
            found.append(result)
            reporter.say(line(result))
    enable_progress_bars()
    return found, tasks


def _engines(wanted: Wanted) -> Iterator[Check]:
    if wanted.is_over_vllm:
        try:
            check_installed()
            yield ok("vLLM", "installed")
        except Mismatch as error:
            yield fail("vLLM", *error.message.split("; ", 1))


def _models(config: PipelineConfig, found: dict[str, Checkpoint]) -> Iterator[Check]:
    named = {"draft": config.draft, "target": config.target}
    models = {f"{role} model": (model.model, model.revision) for role, model in named.items()}
    if isinstance(config.equivalence, EntailmentConfig):
        models["NLI model"] = (config.equivalence.model, config.equivalence.revision)
    for name, (model, revision) in models.items():
        try:
            found[name] = look_up(model, revision)
        except Mismatch as error:
            yield fail(name, *error.message.split("; ", 1))
            continue
        if not found[name].weight_bytes:
            yield fail(name, f"{model} has no safetensors weights", "name a revision that has them, or convert it")
            continue
        size, missing = found[name].weight_bytes, found[name].missing_bytes
        yield ok(name, f"{model}, {size_of(size)}; to download: {size_of(missing) if missing else 'nothing'}")


def _tasks(wanted: Wanted, found: list[Task]) -> Iterator[Check]:
    """Load the questions of all runs, which downloads those that are not there yet."""
    loaded: dict[tuple[str, str | None], Task] = {}
    for name, data in wanted.tasks:
        if (name, data) not in loaded:
            try:
                loaded[name, data] = load_task(name, data)
            except InvalidRequest as error:
                message, _, remedy = error.message.partition("; ")
                yield fail("questions", message, remedy)
                continue
            yield ok("questions", f"{name}: {len(loaded[name, data].questions)}")
        found.append(loaded[name, data])


def _resources(wanted: Wanted, models: dict[str, Checkpoint]) -> Iterator[Check]:
    num_contexts, states = 0, 0
    for config in wanted.sampled:
        try:
            questions, _ = gather(config.questions, config.evaluation_sets, config.shares)
        except InvalidRequest as error:
            message, _, remedy = error.message.partition("; ")
            yield fail("training", message, remedy)
            return
        num_contexts += len(questions) * (config.contexts.per_question or config.contexts.max_segments)
        states += len(questions) * (config.contexts.per_question or config.contexts.max_segments) * _row_bytes(config)
        yield ok("training", f"{config.name}: {len(questions)} questions")
    if not {"draft model", "target model"} <= models.keys():
        return  # said above
    yield _disk(wanted.output, states, sum(model.missing_bytes for model in models.values()))
    yield _memory(sum(models[f"{role} model"].weight_bytes for role in ("draft", "target")))


def _row_bytes(config: PipelineConfig) -> int:
    """Bytes of the states of one context; 0 when the models cannot be had, which is said elsewhere."""
    sizes = []
    for model in (config.target, config.draft):
        try:
            path = cached_file(model.model, "config.json", revision=model.revision)
            facts = json.loads(Path(path or "").read_text())
            sizes.append((facts["num_hidden_layers"] + 1) * facts["hidden_size"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0
    return context_bytes(config.samples, *sizes)


def _disk(output: Path, states: int, missing: int) -> Check:
    """Both on one file system must fit together."""
    cache = Path(constants.HF_HUB_CACHE)
    places = {"models": (_existing(cache), missing), "states": (_existing(output), states)}
    devices = {name: place.stat().st_dev for name, (place, _) in places.items()}
    problems = []
    for name, (place, _) in places.items():
        free = shutil.disk_usage(place).free
        needed = sum(size for other, (_, size) in places.items() if devices[other] == devices[name])
        if needed > free:
            problems.append(f"{size_of(needed)} needed in {place}, {size_of(free)} free")
    if problems:
        remedy = "make room, set HF_HOME or --output to a larger disk, or lower contexts.per_question"
        return fail("disk", problems[0], remedy)
    return ok("disk", f"models {size_of(missing)}, states of the training at most {size_of(states)}")


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _memory(weight_bytes: int) -> Check:
    """Each worker of the training holds both models."""
    needed = ROOM * weight_bytes
    gpus = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
    free, place = (min(gpus), "on each GPU") if gpus else (psutil.virtual_memory().available, "of memory, no GPU")
    words = f"both models take {size_of(needed)}; {size_of(free)} free {place}"
    if needed > free:
        return fail("memory", words, "free some, use larger GPUs (CUDA_VISIBLE_DEVICES), or take smaller models")
    return ok("memory", words)
