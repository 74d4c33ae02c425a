"""Calibrates `likelihood` from prompts alone.

The target's own answers set the threshold, and drafts at the same contexts tell how fast it is. Every segment that is
written is kept, so a killed run goes on with the same command.
"""

import argparse
import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from semspec.decoding import prompts_of
from semspec.decoding.likelihood.calibration import CALIBRATION_FILE, as_json
from semspec.decoding.repeats import repeated_index
from semspec.decoding.steps import together, write_all
from semspec.engine.checkpoint import loading
from semspec.engine.gguf import weights_file
from semspec.engine.numeric_form import resolve_form
from semspec.engine.transformers_engine import TransformersEngine
from semspec.errors import InvalidRequest, Mismatch
from semspec.files import digest_of
from semspec.pairs import ROLES, locate, named_pair, unknown_pair
from semspec.release import Release, ReleasedModel
from semspec.training.evaluation.acceptance import LEAST_SPEED_UP, exact_rule
from semspec.training.evaluation.quantiles import (
    Basis,
    OwnContexts,
    QuantileReport,
    calibrated_without_labels,
)
from semspec.training.files import StageFolder, json_lines, write_json
from semspec.training.progress import Reporter, duration
from semspec.types import (
    Context,
    GenerationParams,
    Message,
    ModelInfo,
    Piece,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    Writer,
    derive_seed,
)

NUM_ALONE = 2
"""Answers that are written one at a time: for the target's time a token, and for the estimate."""
NUM_TOGETHER = 4
"""Answers that are written together after these, in half the time."""
TOP_P, SEED = 0.95, 1
PROMPT_FIELDS = ("problem", "question")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model of the pair to calibrate."""

    model: str
    """Folder, GGUF file, hub id, or ID:FILE.gguf: what is loaded."""
    dtype: str = "auto"
    name: str = ""
    """What `pair.json` calls it; empty: as `model`."""
    revision: str | None = None

    @property
    def loaded_revision(self) -> str | None:
        """None: the model is on this machine."""
        return None if Path(self.model).exists() else self.revision


@dataclass(frozen=True, slots=True)
class Settings:
    """What the answers depend on, and the quantile."""

    name: str
    """Of the release."""
    draft: ModelChoice
    target: ModelChoice
    output: Path
    num_prompts: int = 20
    temperature: float = 0.6
    max_tokens: int = 512
    """Of an answer."""
    quantile: float = 0.1
    threads: int = 1
    """Of each model, as when it is served: the times depend on it."""

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(self.temperature, TOP_P)

    def recipe(self) -> dict[str, Any]:
        """What must not change between two runs in one work folder."""
        models = {role: asdict(getattr(self, role)) for role in ROLES}
        return models | {"sampling": asdict(self.sampling), "max_tokens": self.max_tokens}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `semspec train calibrate --from-prompts`."""
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
    group.add_argument("--pair", metavar="NAME", help="a pair of `semspec pairs`, or both models:")
    for role in ROLES:
        group.add_argument(
            f"--{role}-model",
            metavar="MODEL",
            help="folder, GGUF file, hub id, or ID:FILE.gguf on the hub",
        )
    group.add_argument(
        "--models", type=Path, metavar="FOLDER", help="where the files of the named pair lie"
    )
    group.add_argument(
        "--output", type=Path, metavar="FOLDER", help="of the release, for `semspec serve --pair`"
    )
    group.add_argument(
        "--num-prompts",
        type=_positive,
        metavar="N",
        default=defaults.num_prompts,
        help=f"the first N of the file (default {defaults.num_prompts})",
    )
    group.add_argument(
        "--max-tokens",
        type=_positive,
        metavar="N",
        default=defaults.max_tokens,
        help=f"longest answer (default {defaults.max_tokens})",
    )
    group.add_argument(
        "--temperature",
        type=_temperature,
        metavar="T",
        default=defaults.temperature,
        help=f"of both models, from 0 to 2 (default {defaults.temperature})",
    )
    group.add_argument(
        "--quantile",
        type=_quantile,
        metavar="Q",
        default=defaults.quantile,
        help="share of the target's own segments below the threshold; more is stricter "
        f"(default {defaults.quantile})",
    )


def run(options: argparse.Namespace, reporter: Reporter) -> str:
    """Calibrate, write the release, and return its table and default in lines. Raises: SemspecError."""
    settings = _settings(options, reporter)
    questions = _questions(options.from_prompts, settings.num_prompts)
    work = options.work or Path(".work") / f"prompts-{settings.name.replace('/', '-')}"
    _check_output(settings.output)
    report, infos = asyncio.run(_calibrate(settings, questions, work, reporter))
    release = _write(settings, report, infos)
    lines = (
        report.table,
        f"speed: {settings.threads} thread a model, without draft-ahead, which may be faster; how many wrong segments "
        "pass is unknown: compare pass@1",
        _rule_sentence(release, report),
        f"serve it: semspec serve --pair {settings.output}",
    )
    return "\n".join(lines)


def _settings(options: argparse.Namespace, reporter: Reporter) -> Settings:
    """Raises: InvalidRequest when options are missing or exclude each other."""
    given = {role: getattr(options, f"{role}_model") for role in ROLES}
    if options.output is None:
        raise InvalidRequest("--output: missing; give the folder of the release", "output")
    if options.pair is not None:
        if any(given.values()):
            raise InvalidRequest("--pair: give a named pair or two models, not both", "pair")
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
    elif None in given.values():
        raise InvalidRequest(
            "--from-prompts: name the models, by --pair NAME or by --draft-model and --target-model",
            "from_prompts",
        )
    else:
        models = {role: ModelChoice(str(model)) for role, model in given.items()}
        name = options.output.resolve().name
    torch.set_num_threads(options.threads or 1)  # the measurement of the fastest form uses them
    return Settings(
        name,
        _with_form(models["draft"]),
        _with_form(models["target"]),
        options.output,
        options.num_prompts,
        options.temperature,
        options.max_tokens,
        options.quantile,
        options.threads or 1,
    )


def _questions(path: Path, num_prompts: int) -> list[str]:
    """The first questions of the file. Raises: InvalidRequest when it has none, or a line has none."""

    def question(place: str, row: dict[str, Any]) -> str:
        text = next((row[name] for name in PROMPT_FIELDS if row.get(name)), None)
        if not isinstance(text, str):
            raise InvalidRequest(
                f"{place} has neither `problem` nor `question`; one prompt a line", "from_prompts"
            )
        return text

    rows = islice(json_lines(path, "from_prompts"), num_prompts)
    found = [question(place, row) for place, row in rows]
    if not found:
        raise InvalidRequest(f"{path} has no prompt; give one a line", "from_prompts")
    return found


def _check_output(output: Path) -> None:
    """Raises: Mismatch when the folder has probes, which its new `pair.json` would not name."""
    if (output / "target.safetensors").exists():
        raise Mismatch(
            f"output: {output} contains probes; name another folder for the release without probes"
        )


def _with_form(model: ModelChoice) -> ModelChoice:
    """Choose the form of a GGUF file's weights, which is part of its fingerprint, where it is auto."""
    with loading(model.model, model.loaded_revision) as folder:
        form = resolve_form(model.model, folder, "auto", model.dtype)
        return replace(model, dtype=form) if weights_file(folder) else model


async def _calibrate(
    settings: Settings, questions: Sequence[str], work: Path, reporter: Reporter
) -> tuple[QuantileReport, dict[str, ModelInfo]]:
    """The report, and what the engines say of the models."""
    async with AsyncExitStack() as stack:
        engines = dict[str, TransformersEngine]()
        for role in ROLES:
            model: ModelChoice = getattr(settings, role)
            reporter.say(f"loading the {role} {model.name or model.model}")
            engine = TransformersEngine.load(
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
        await _answer_all(writer, answers, reporter)
    basis = Basis(
        infos["draft"],
        infos["target"],
        Segmentation.PARAGRAPH,
        settings.temperature,
        TOP_P,
        answers.digest,
    )
    return calibrated_without_labels(answers.contexts(), settings.quantile, basis), infos


async def _answer_all(writer: "AnswerWriter", answers: "Answers", reporter: Reporter) -> None:
    """Make the missing answers: write the first ones alone and the others together, then compare one at a time."""
    missing = answers.missing()
    num_all, begin = len(answers.questions), perf_counter()
    with reporter.bar("answers", num_all, "answers", num_all - len(missing)) as advance:
        for number, group in enumerate(_groups(missing)):
            await together(writer.write(index, is_alone=len(group) == 1) for index in group)
            for index in group:
                await writer.compare(index)
                advance(1)
            if number == 0 and (num_left := len(missing) - len(group)):
                rest_s = (perf_counter() - begin) * num_left / len(group)
                reporter.say(
                    f"the first answer took {duration(perf_counter() - begin)}, so the other {num_left} take at most "
                    f"about {duration(rest_s)}; Ctrl-C stops, the same command continues"
                )


def _groups(missing: Sequence[int]) -> Iterator[Sequence[int]]:
    """The answers that are written at a time."""
    alone = [index for index in missing if index < NUM_ALONE]
    yield from ([index] for index in alone)
    others = missing[len(alone) :]
    for start in range(0, len(others), NUM_TOGETHER):
        yield others[start : start + NUM_TOGETHER]


@dataclass(slots=True)
class Answer:
    """What is kept of an answer."""

    segments: list[Segment] = field(default_factory=list)
    timed_ms: float = 0.0
    """Time of the segments that were written while no other answer was."""
    num_timed_tokens: int = 0
    contexts: list[dict[str, Any]] = field(default_factory=list)
    """Of each segment, once all are compared with drafts."""

    @property
    def is_ended(self) -> bool:
        """Whether the target ended it."""
        return bool(self.segments) and self.segments[-1].end.is_last

    @property
    def num_tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.segments)


class Answers:
    """The answers in WORK/answers.jsonl: a line for each segment, and one for the comparison of a whole answer."""

    def __init__(
        self,
        work: Path,
        settings: Settings,
        questions: Sequence[str],
        infos: dict[str, ModelInfo],
    ) -> None:
        """Raises: Mismatch when the folder has answers of other models or settings."""
        self.questions, self._settings = questions, settings
        self._tokenizer = infos["target"].tokenizer
        fingerprints = {role: info.fingerprint for role, info in infos.items()}
        StageFolder(work).claim(settings.recipe() | {"fingerprints": fingerprints})
        self._path = work / "answers.jsonl"
        self._found = defaultdict[str, Answer](Answer)
        self._read()

    def answer(self, index: int) -> Answer:
        return self._found[self._key(index)]

    def missing(self) -> list[int]:
        """Numbers of the prompts whose answers are not there or not compared."""
        return [index for index in range(len(self.questions)) if not self.answer(index).contexts]

    def add_segment(self, index: int, segment: Segment, write_ms: float | None) -> None:
        """Keep a segment. `write_ms`: None: it was written together with others."""
        fields = {"text": segment.text, "token_ids": segment.token_ids, "end": segment.end.value}
        self._append({"prompt": self._key(index), "segment": fields, "write_ms": write_ms})

    def add_contexts(self, index: int, contexts: Sequence[dict[str, Any]]) -> None:
        """Keep the comparison of an answer, which is then finished."""
        self._append({"prompt": self._key(index), "contexts": contexts})

    def contexts(self) -> OwnContexts:
        """All contexts of the answers."""
        answers = [self.answer(index) for index in range(len(self.questions))]
        rows = [(number, row) for number, one in enumerate(answers) for row in one.contexts]
        column = {name: [row[name] for _, row in rows] for name in rows[0][1]}
        return OwnContexts(
            answer=np.array([number for number, _ in rows]),
            own_surprisal=np.array(column["own_surprisal"], dtype=np.float64),
            own_tokens=np.array(column["own_tokens"]),
            is_whole=np.array(column["is_whole"]),
            surprisal=np.array(column["surprisal"], dtype=np.float64),
            num_tokens=np.array(column["num_tokens"]),
            repeats=np.array(column["repeats"]),
            draft_ms=np.array(column["draft_ms"]),
            score_ms=np.array(column["score_ms"]),
            target_ms_per_token=sum(one.timed_ms for one in answers)
            / sum(one.num_timed_tokens for one in answers),
        )

    @property
    def digest(self) -> str:
        """Digest of what the calibration is made from."""
        return digest_of([self.answer(index).contexts for index in range(len(self.questions))])

    def _key(self, index: int) -> str:
        return digest_of([index, self.questions[index]])

    def _append(self, row: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(row)

    def _read(self) -> None:
        """Take in the file's whole lines, and cut off one that was not written to its end."""
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            for line in whole.splitlines():
                self._take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise Mismatch(
                f"{self._path} is damaged: {error}; delete it and run the same command again"
            ) from error
        if whole != data:
            os.truncate(self._path, len(whole))

    def _take(self, row: dict[str, Any]) -> None:
        answer = self._found[row["prompt"]]
        if "contexts" in row:
            answer.contexts = row["contexts"]
            return
        ids, end = tuple(row["segment"]["token_ids"]), SegmentEnd(row["segment"]["end"])
        text = row["segment"]["text"]
        answer.segments.append(Segment(text, ids, self._tokenizer, Writer.TARGET, end))
        if row["write_ms"] is not None:
            answer.timed_ms += row["write_ms"]
            answer.num_timed_tokens += len(ids)


class AnswerWriter:
    """Has the target write answers, and compares each of their segments with one of the draft."""

    def __init__(
        self,
        settings: Settings,
        draft: TransformersEngine,
        target: TransformersEngine,
        answers: Answers,
    ) -> None:
        self._settings, self._draft, self._target = settings, draft, target
        self._answers = answers

    async def write(self, index: int, is_alone: bool) -> None:
        """Write the rest of an answer, and keep each segment when it is complete."""
        answer = self._answers.answer(index)
        num_left = self._settings.max_tokens - answer.num_tokens
        if answer.is_ended or num_left <= 0:
            return
        start, _ = await self._prompts(index)
        context = Context((start, *answer.segments))
        # Reads the context before the first segment's time begins.
        await write_all(self._target, context, self._params(index, 1, 1))
        params = self._params(index, 0, num_left)
        async with aclosing(self._target.generate(context, params)) as written:
            async for one in written:
                self._answers.add_segment(index, one.segment, one.duration_ms if is_alone else None)

    async def compare(self, index: int) -> None:
        """Draft a segment at each context of a written answer, and score it and the target's own."""
        start, draft_start = await self._prompts(index)
        own = self._answers.answer(index).segments
        session = f"answer {index}"
        drafted, scores = [], []
        for depth in range(len(own)):
            context = Context((draft_start, *own[:depth]))
            params = self._params(index, 1, self._settings.max_tokens)
            drafted += await write_all(self._draft, context, params)
        own_scores = await self._target.score(Context((start,)), own, session)
        for depth in reversed(range(len(own))):  # each context is then in the cache, as when served
            context = Context((start, *own[:depth]))
            scores += await self._target.score(context, [drafted[depth].segment], session)
        rows = [
            {
                "own_surprisal": mine.surprisal,
                "own_tokens": len(segment.token_ids),
                "is_whole": segment.end is not SegmentEnd.LENGTH,
                "text": one.segment.text,
                "surprisal": score.surprisal,
                "num_tokens": len(one.segment.token_ids),
                "repeats": repeated_index(one.segment, own[:depth]) is not None,
                "draft_ms": one.duration_ms,
                "score_ms": score.duration_ms,
            }
            for depth, (segment, mine, one, score) in enumerate(
                zip(own, own_scores, drafted, reversed(scores), strict=True)
            )
        ]
        self._answers.add_contexts(index, rows)

    async def _prompts(self, index: int) -> tuple[Piece, Piece]:
        """The prompt as the target and as the draft reads it."""
        messages = [Message("user", self._answers.questions[index])]
        infos = await self._draft.info(), await self._target.info()
        encoded = self._target.encode(messages)
        prompts = await prompts_of(messages, encoded, self._draft, *infos)
        return prompts.target, prompts.draft or prompts.target

    def _params(self, index: int, max_segments: int, max_tokens: int) -> GenerationParams:
        sampling = self._settings.sampling
        seed = derive_seed(SEED, "answer", index)
        return GenerationParams(
            replace(sampling, seed=seed),
            Segmentation.PARAGRAPH,
            max_segments,
            max_tokens,
            session=f"answer {index}",
        )


def _write(settings: Settings, report: QuantileReport, infos: dict[str, ModelInfo]) -> Release:
    """Write the calibration and the `pair.json` that names it."""
    settings.output.mkdir(parents=True, exist_ok=True)
    write_json(settings.output / CALIBRATION_FILE, as_json(report.calibration))
    draft, target = (_released(settings, role, infos[role]) for role in ROLES)
    rule = (
        {"strategy": "likelihood", "gamma": 1}
        if report.is_fast_enough
        else exact_rule(draft.tokenizer, target.tokenizer)
    )
    release = Release(settings.name, "1", draft, target, rule, likelihood=report.calibration.digest)
    release.save(settings.output)
    return release


def _released(settings: Settings, role: str, info: ModelInfo) -> ReleasedModel:
    model: ModelChoice = getattr(settings, role)
    place = model.name or model.model
    if not model.name and Path(place).exists():
        place = os.path.relpath(place, settings.output)
    dtype: Any = model.dtype
    return ReleasedModel(place, info.fingerprint, info.tokenizer, model.revision, dtype)


def _rule_sentence(release: Release, report: QuantileReport) -> str:
    """What a request that names no strategy gets, and why."""
    speed = f"{report.chosen.speed_up.value:.2f} times the target's speed"
    if report.is_fast_enough:
        return f"default of the release: likelihood, an estimate of {speed}"
    return (
        f"default of the release: {release.rule['strategy']}, which is exact, since likelihood has an estimate of "
        f"{speed}, less than {LEAST_SPEED_UP:g}; a request may still name it"
    )


def _positive(text: str) -> int:
    return int(_number(text, 1, float("inf"), int(text) if text.isdigit() else 0))


def _temperature(text: str) -> float:
    return _number(text, 0, 2, float(text))


def _quantile(text: str) -> float:
    return _number(text, 0.001, 0.9, float(text))


def _number(text: str, least: float, most: float, value: float) -> float:
    """Raises: ArgumentTypeError when the value is out of range."""
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text}: expected a number from {least:g} to {most:g}")
    return value
