"""Requirements of a reproduction, checked before it begins, and the work that it has to do; a line each."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from huggingface_hub import constants
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
from transformers.utils import cached_file

from semspec.clustering.language_model import LanguageModelConfig
from semspec.clustering.nli import EntailmentConfig
from semspec.commands.checks import Check, fail, ok
from semspec.commands.doctor import format_check
from semspec.engine.hub import Checkpoint, format_bytes, look_up
from semspec.engine.vllm.options import check_installed
from semspec.errors import InvalidRequest, Mismatch
from semspec.files import read_json
from semspec.reporting.progress import Reporter, duration
from semspec.training.config import PipelineConfig
from semspec.training.data.questions import gather
from semspec.training.estimate import context_bytes
from semspec.types import Segmentation
from semspec_bench.report.paper import paper_pair_of
from semspec_bench.tasks import Task, load_task

ROOM = 1.1
"""Memory that two models take, divided by the size of their weights."""
TRACE_S = 360.0
"""Seconds in which a worker writes a trace of 8,000 tokens. This and the next rates are computed, not measured, for the
paper's pairs in our engine with a worker on each GPU of 80 GB: docs/probes.md."""
ALTERNATIVES_S = 3.35
"""Seconds in which a worker writes one alternative of each model for a context of paragraphs, four at a time."""
SERVED_TRACE_S, SERVED_ALTERNATIVES_S = 72.0, 0.342
"""The same with vLLM on a GPU of its own, which writes, and one worker, which reads: 20 and 19 h for 1,000 questions
with 10 contexts of 20 alternatives."""
CLUSTERS_S = 1.5
"""Seconds in which a worker clusters the alternatives of a context."""
FIT_S = 0.12
"""Seconds a context in which probes are fitted and reported: 230 MB of states are read, at 2 GB/s."""
SENTENCE_SHARE = 0.5
"""Tokens of a sentence, divided by those of a paragraph."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """The models, tasks and devices that a reproduction needs."""

    pipeline: PipelineConfig
    """The main training, which names the models."""
    sampled: Sequence[PipelineConfig]
    """Missing trainings, one for each set of samples."""
    tasks: Sequence[tuple[str, str | None]]
    """Name and data of each run's task."""
    output: Path
    devices: Sequence[str] = ()
    """Devices that the settings of the services and of the training name."""
    is_over_vllm: bool = False
    others: Sequence[str] = ()
    """Models that servers of other engines load."""
    relative_cost: float | None = None
    """See `PairConfig.relative_cost`."""

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs that `devices` need."""
        numbers = [
            int(device.partition(":")[2] or 0)
            for device in self.devices
            if device.startswith("cuda")
        ]
        return 1 + max(numbers, default=-1)


@dataclass(frozen=True, slots=True)
class Work:
    """Upper bounds of the time and disk that a stage of the reproduction takes."""

    stage: str
    amount: str
    seconds: float | None = 0.0
    """None: no rate is known for these models."""
    num_bytes: int = 0

    def __str__(self) -> str:
        parts = [self.amount]
        if self.seconds:
            parts.append(duration(self.seconds))
        if self.num_bytes:
            parts.append(format_bytes(self.num_bytes))
        return f"{self.stage}: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Readiness:
    """Results of all checks, and their findings for the next steps."""

    checks: list[Check] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    """Tasks that can be loaded."""
    work: list[Work] = field(default_factory=list)
    """Downloads and trainings."""


def check(requirements: Requirements, reporter: Reporter) -> Readiness:
    """Check everything that `requirements` needs, and report each result as soon as it is known."""
    found, models = Readiness(), dict[str, Checkpoint]()
    disable_progress_bars()  # of the hub's client, between the lines
    for checks in (
        _engines(requirements),
        _devices(requirements),
        _models(requirements, models),
        _tasks(requirements, found.tasks),
        _resources(requirements, models, found.work),
    ):
        for result in checks:
            found.checks.append(result)
            reporter.say(format_check(result))
    enable_progress_bars()
    return found


def _engines(requirements: Requirements) -> Iterator[Check]:
    if requirements.is_over_vllm:
        try:
            check_installed()
            yield ok("vLLM", "installed")
        except Mismatch as error:
            yield fail("vLLM", error.message, error.remedy)


def _devices(requirements: Requirements) -> Iterator[Check]:
    """Compare the CUDA devices that are named with those that torch sees."""
    if not requirements.num_gpus:
        return
    named = ", ".join(
        sorted({device for device in requirements.devices if device.startswith("cuda")})
    )
    num_found = torch.cuda.device_count()
    words = f"the pair names {named}; torch {torch.__version__} sees {num_found or 'no'} GPU{'s' * (num_found > 1)}"
    if num_found >= requirements.num_gpus:
        yield ok("GPUs", words)
    elif torch.version.cuda is None:
        yield fail("GPUs", f"{words}: it is built without CUDA", "make setup TORCH_VARIANT=cuda")
    else:
        yield fail(
            "GPUs",
            words,
            "run it where `nvidia-smi` lists them all, or set SEMSPEC_..._DEVICE to others",
        )


def _models(requirements: Requirements, found: dict[str, Checkpoint]) -> Iterator[Check]:
    config = requirements.pipeline
    named = {"draft": config.draft, "target": config.target}
    models = {f"{role} model": (model.model, model.revision) for role, model in named.items()}
    if isinstance(config.equivalence, EntailmentConfig | LanguageModelConfig):
        models["equivalence model"] = (config.equivalence.model, config.equivalence.revision)
    models |= {f"server's {model}": (model, None) for model in requirements.others}
    for name, (model, revision) in models.items():
        try:
            found[name] = look_up(model, revision)
        except Mismatch as error:
            yield fail(name, error.message, error.remedy)
            continue
        if not found[name].weight_bytes:
            yield fail(
                name,
                f"{model} has no safetensors weights",
                "name a revision that has them, or convert it",
            )
            continue
        size, missing = found[name].weight_bytes, found[name].missing_bytes
        yield ok(
            name,
            f"{model}, {format_bytes(size)}; to download: {format_bytes(missing) if missing else 'nothing'}",
        )


def _tasks(requirements: Requirements, found: list[Task]) -> Iterator[Check]:
    """Load the questions of all runs, which downloads those that are not there yet."""
    loaded: dict[tuple[str, str | None], Task] = {}
    for name, data in requirements.tasks:
        if (name, data) not in loaded:
            try:
                loaded[name, data] = load_task(name, data)
            except InvalidRequest as error:
                yield fail("questions", error.message, error.remedy)
                continue
            yield ok("questions", f"{name}: {len(loaded[name, data].questions)}")
        found.append(loaded[name, data])


def _resources(
    requirements: Requirements, models: dict[str, Checkpoint], work: list[Work]
) -> Iterator[Check]:
    for config in requirements.sampled:
        try:
            questions, _ = gather(config.questions, config.evaluation_sets, config.shares)
        except InvalidRequest as error:
            yield fail("training", error.message, error.remedy)
            return
        num_gpus = torch.cuda.device_count() or requirements.num_gpus
        work.append(training_work(config, len(questions), num_gpus, requirements.relative_cost))
        yield ok("training", f"{config.name}: {len(questions)} questions")
    if not {"draft model", "target model"} <= models.keys():
        return  # already reported
    states, missing = (
        sum(stage.num_bytes for stage in work),
        sum(model.missing_bytes for model in models.values()),
    )
    work.insert(0, Work("downloads", f"{len(models)} models", num_bytes=missing))
    yield _disk(requirements.output, states, missing)
    yield _memory(sum(models[f"{role} model"].weight_bytes for role in ("draft", "target")))


def training_work(
    config: PipelineConfig, num_questions: int, num_gpus: int, relative_cost: float | None
) -> Work:
    """Estimate all stages of a training. A worker on each GPU shares those before the fit; servers take the first."""
    is_served = config.target.sampler.backend != "engine"
    num_workers = max(1, num_gpus - is_served)
    trace, alternatives = (
        (SERVED_TRACE_S, SERVED_ALTERNATIVES_S) if is_served else (TRACE_S, ALTERNATIVES_S)
    )
    num_contexts = num_questions * (config.contexts.per_question or config.contexts.max_segments)
    seconds = None
    is_published = paper_pair_of([config.draft.model, config.target.model]) is not None
    if cost := relative_cost or float(is_published):
        share = SENTENCE_SHARE if config.segmentation is Segmentation.SENTENCE else 1
        traces_s = 0 if config.contexts.traces == "data" else cost * trace * num_questions
        context_s = cost * alternatives * share * config.samples.num_samples + CLUSTERS_S
        seconds = (traces_s + context_s * num_contexts) / num_workers + FIT_S * num_contexts
    amount = f"{num_contexts} contexts of {num_questions} questions, workers: {num_workers}"
    return Work(f"training {config.name}", amount, seconds, num_contexts * _row_bytes(config))


def _row_bytes(config: PipelineConfig) -> int:
    """Return the bytes of the states of one context; 0 if a model is not available, which another check reports."""
    sizes = []
    for model in (config.target, config.draft):
        try:
            path = cached_file(model.model, "config.json", revision=model.revision)
            facts = read_json(Path(path or ""))
            sizes.append((facts["num_hidden_layers"] + 1) * facts["hidden_size"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0
    return context_bytes(config.samples, *sizes)


def _disk(output: Path, states: int, missing: int) -> Check:
    """Check the room for models and states, which may share a file system."""
    cache = Path(constants.HF_HUB_CACHE)
    locations = {"models": (_existing(cache), missing), "states": (_existing(output), states)}
    devices = {name: location.stat().st_dev for name, (location, _) in locations.items()}
    problems = []
    for name, (location, _) in locations.items():
        free = shutil.disk_usage(location).free
        needed = sum(
            size for other, (_, size) in locations.items() if devices[other] == devices[name]
        )
        if needed > free:
            problems.append(
                f"{format_bytes(needed)} needed in {location}, {format_bytes(free)} free"
            )
    if problems:
        remedy = (
            "make room, set HF_HOME or --output to a larger disk, or lower contexts.per_question"
        )
        return fail("disk", problems[0], remedy)
    return ok(
        "disk",
        f"models {format_bytes(missing)}, states of the training at most {format_bytes(states)}",
    )


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _memory(weight_bytes: int) -> Check:
    """Check the memory; each worker of the training holds both models."""
    needed = ROOM * weight_bytes
    gpus = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
    free, location = (
        (min(gpus), "on each GPU")
        if gpus
        else (psutil.virtual_memory().available, "of memory, no GPU")
    )
    words = f"both models take {format_bytes(needed)}; {format_bytes(free)} free {location}"
    if needed > free:
        return fail(
            "memory",
            words,
            "free some, use larger GPUs (CUDA_VISIBLE_DEVICES), or take smaller models",
        )
    return ok("memory", words)
