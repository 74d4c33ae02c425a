"""Calibrates `likelihood` from prompts alone.

The target's own answers set the threshold, and drafts at the same contexts give the speed. Every written segment is
kept, so the same command resumes a killed run.
"""

import argparse
import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from semspec.decoding.likelihood.calibration import CALIBRATION_FILE, as_json
from semspec.engine.checkpoint import loading
from semspec.engine.gguf import weights_file
from semspec.engine.numeric_form import resolve_form
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import InvalidRequest, Mismatch
from semspec.pairs import ROLES, locate, named_pair, unknown_pair
from semspec.release import Release, ReleasedModel
from semspec.reporting.files import json_lines, write_json
from semspec.reporting.progress import Reporter
from semspec.training.evaluation.acceptance import default_rule
from semspec.training.evaluation.quantiles import Basis, QuantileReport, calibrated_without_labels
from semspec.training.own_answers import (
    TOP_P,
    Answers,
    AnswerWriter,
    ModelChoice,
    Settings,
    answer_all,
)
from semspec.types import ModelInfo, Segmentation, Writer

PROMPT_FIELDS = ("problem", "question")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `semspec train calibrate --from-prompts`."""
    group = parser.add_argument_group(
        "without labels", "a threshold from the target's own answers, instead of --config"
    )
    defaults = Settings("", ModelChoice(""), ModelChoice(""), Path())
    group.add_argument(
        "--from-prompts",
        type=Path,
        metavar="FILE",
        help="JSON lines with `problem` or `question`, such as MATH-500's",
    )
    group.add_argument(
        "--pair", metavar="NAME", help="pair listed by `semspec pairs`, instead of two models"
    )
    for role in ROLES:
        group.add_argument(
            f"--{role}-model",
            metavar="MODEL",
            help="folder, GGUF file, hub id, or ID:FILE.gguf on the hub",
        )
    group.add_argument(
        "--models", type=Path, metavar="FOLDER", help="folder with the files of the named pair"
    )
    group.add_argument(
        "--output", type=Path, metavar="FOLDER", help="folder of the release to write"
    )
    numbers = {
        "num_prompts": (_number(int, 1), "N", "use the first N prompts of the file"),
        "max_tokens": (_number(int, 1), "N", "most tokens of an answer"),
        "temperature": (_number(float, 0, 2), "T", "temperature of both models, from 0 to 2"),
        "quantile": (
            _number(float, 0.001, 0.9),
            "Q",
            "share of the target's own segments below the threshold; more is stricter",
        ),
    }
    for name, (kind, metavar, text) in numbers.items():
        default = getattr(defaults, name)
        option = f"--{name.replace('_', '-')}"
        group.add_argument(
            option, type=kind, metavar=metavar, default=default, help=f"{text} (default {default})"
        )


def run(options: argparse.Namespace, reporter: Reporter) -> str:
    """Calibrate, write the release, and return its table and default in lines. Raises: SemspecError."""
    settings = _settings(options, reporter)
    questions = _questions(options.from_prompts, settings.num_prompts)
    work = options.work or Path(".work") / f"prompts-{settings.name.replace('/', '-')}"
    _check_output(settings.output)
    report, infos = asyncio.run(_calibrate(settings, questions, work, reporter))
    release = _write_release(settings, report, infos)
    lines = (
        report.table,
        "speed: without draft-ahead, which may be faster; how many wrong segments "
        "pass is unknown: before likelihood becomes your default, compare pass@1",
        _rule_sentence(release, report),
        f"serve it: semspec serve --pair {settings.output}",
    )
    return "\n".join(lines)


def _settings(options: argparse.Namespace, reporter: Reporter) -> Settings:
    """Raises: InvalidRequest when options are missing or exclude each other."""
    named = {role: getattr(options, f"{role}_model") for role in ROLES}
    if options.output is None:
        raise InvalidRequest("--output: missing", remedy="give the folder of the release")
    if options.pair is not None:
        if any(named.values()):
            raise InvalidRequest("--pair: give a named pair or two models, not both")
        pair = named_pair(options.pair)
        if pair is None:
            raise unknown_pair(options.pair)
        found, dtype = (
            locate(pair, options.models, reporter.say),
            pair.settings.get("dtype", "auto"),
        )
        models = {
            role: ModelChoice(found[role], dtype, file.model, file.revision)
            for role, file in pair.files.items()
        }
        name = pair.name
    elif None in named.values():
        raise InvalidRequest(
            "--from-prompts: name the models, by --pair NAME or by --draft-model and --target-model"
        )
    else:
        models = {role: ModelChoice(str(model)) for role, model in named.items()}
        name = options.output.resolve().name
    return Settings(
        name,
        _with_form(models["draft"], options.threads),
        _with_form(models["target"], options.threads),
        options.output,
        options.num_prompts,
        options.temperature,
        options.max_tokens,
        options.quantile,
        options.threads,
    )


def _questions(path: Path, num_prompts: int) -> list[str]:
    """Read the first questions of the file. Raises: InvalidRequest when it has none, or a line has none."""

    def question(location: str, row: dict[str, Any]) -> str:
        text = next((row[name] for name in PROMPT_FIELDS if row.get(name)), None)
        if not isinstance(text, str):
            raise InvalidRequest(
                f"{location} has neither `problem` nor `question`", remedy="one prompt a line"
            )
        return text

    rows = islice(json_lines(path), num_prompts)
    found = [question(location, row) for location, row in rows]
    if not found:
        raise InvalidRequest(f"{path} has no prompt", remedy="give one a line")
    return found


def _check_output(output: Path) -> None:
    """Raises: Mismatch when the folder has probes, which its new `pair.json` would not name."""
    if (output / "target.safetensors").exists():
        raise Mismatch(
            f"output: {output} contains probes",
            remedy="name another folder for the release without probes",
        )


def _with_form(model: ModelChoice, threads: int | None) -> ModelChoice:
    """Choose the form of a GGUF file's weights if it is auto; it is part of the fingerprint."""
    with loading(model.model, model.loaded_revision) as folder:
        form = resolve_form(model.model, folder, "auto", model.dtype, threads)
        return replace(model, dtype=form) if weights_file(folder) else model


async def _calibrate(
    settings: Settings, questions: Sequence[str], work: Path, reporter: Reporter
) -> tuple[QuantileReport, dict[str, ModelInfo]]:
    """Return the report, and the infos of the models."""
    async with AsyncExitStack() as stack:
        engines = dict[str, TorchEngine]()
        for role in ROLES:
            model: ModelChoice = getattr(settings, role)
            with reporter.busy(f"loading the {role} {model.name or model.model}"):
                engine = TorchEngine.load(
                    model.model,
                    writer=Writer(role),
                    revision=model.loaded_revision,
                    dtype=model.dtype,
                    threads=settings.threads,
                )
            engines[role] = await stack.enter_async_context(aclosing(engine))
        infos = {role: await engine.info() for role, engine in engines.items()}
        answers = Answers(work, settings, questions, infos)
        writer = AnswerWriter(settings, engines["draft"], engines["target"], answers)
        await answer_all(writer, answers, reporter)
    basis = Basis(
        infos["draft"],
        infos["target"],
        Segmentation.PARAGRAPH,
        settings.temperature,
        TOP_P,
        answers.digest,
    )
    return calibrated_without_labels(answers.contexts(), settings.quantile, basis), infos


def _write_release(
    settings: Settings, report: QuantileReport, infos: dict[str, ModelInfo]
) -> Release:
    """Write the calibration and the `pair.json` that names it."""
    settings.output.mkdir(parents=True, exist_ok=True)
    write_json(settings.output / CALIBRATION_FILE, as_json(report.calibration))
    draft, target = (_released(settings, role, infos[role]) for role in ROLES)
    rule = default_rule(None, None, 1, draft.tokenizer, target.tokenizer)  # the loss is not known
    release = Release(settings.name, "1", draft, target, rule, likelihood=report.calibration.digest)
    release.save(settings.output)
    return release


def _released(settings: Settings, role: str, info: ModelInfo) -> ReleasedModel:
    model: ModelChoice = getattr(settings, role)
    location = model.name or model.model
    if not model.name and Path(location).exists():
        location = os.path.relpath(location, settings.output)
    dtype: Any = model.dtype
    return ReleasedModel(location, info.fingerprint, info.tokenizer, model.revision, dtype)


def _rule_sentence(release: Release, report: QuantileReport) -> str:
    """Say which strategy a request that names none gets, and why."""
    return (
        f"default of the release: {release.rule['strategy']}, which is exact; a request may name likelihood, with an "
        f"estimate of {report.chosen.speed_up.value:.2f} times the target's speed"
    )


def _number(
    kind: Callable[[str], float], least: float, most: float = inf
) -> Callable[[str], float]:
    """Return a converter for argparse that refuses numbers out of the range."""

    def convert(text: str) -> float:
        with suppress(ValueError):
            if least <= (value := kind(text)) <= most:
                return value
        what = "a whole number" if kind is int else "a number"
        limits = f"of at least {least:g}" if most == inf else f"from {least:g} to {most:g}"
        raise argparse.ArgumentTypeError(f"{text}: expected {what} {limits}")

    return convert
