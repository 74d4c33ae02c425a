"""The target's own answers to prompts, with a draft at each of their contexts.

Every compared answer is kept, so that a killed run repeats only those that it was writing.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from semspec.decoding import render_prompts
from semspec.decoding.repeats import repeated_index
from semspec.decoding.steps import gather_or_cancel, write_all
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import InvalidRequest, Mismatch
from semspec.files import digest_of
from semspec.pairs import ROLES
from semspec.reporting.files import complete_lines
from semspec.reporting.progress import Reporter, duration
from semspec.training.evaluation.quantiles import OwnContexts
from semspec.training.files import StageFolder
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    Message,
    ModelInfo,
    Piece,
    SamplingParams,
    Segmentation,
    SegmentEnd,
    derive_seed,
)

NUM_ALONE = 2
"""Answers that are written one at a time: for the target's time a token, and for the estimate."""
NUM_TOGETHER = 4
"""Answers that are written together after these, in half the time."""
TOP_P, SEED = 0.95, 1
ANSWERS_FORMAT = 2
"""Format of `answers.jsonl`. 2: a line for each compared answer; before, one for each segment as well."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model of the pair to calibrate."""

    model: str
    """Folder, GGUF file, hub id, or ID:FILE.gguf to load."""
    dtype: str = "auto"
    name: str = ""
    """Name in `pair.json`; empty: `model`."""
    revision: str | None = None

    @property
    def loaded_revision(self) -> str | None:
        """None: the model is on this machine."""
        return None if Path(self.model).exists() else self.revision


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the answers, and the quantile."""

    name: str
    """Name of the release."""
    draft: ModelChoice
    target: ModelChoice
    output: Path
    num_prompts: int = 20
    temperature: float = 0.6
    max_tokens: int = 512
    """Token budget of an answer."""
    quantile: float = 0.1
    threads: int | None = None
    """CPU threads of each model, as in `TorchEngine.load`; the measured times depend on it."""

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(self.temperature, TOP_P)

    def recipe(self) -> dict[str, Any]:
        """Return the settings that must not change between two runs in one work folder."""
        return {
            "answers_format": ANSWERS_FORMAT,
            "sampling": asdict(self.sampling),
            "max_tokens": self.max_tokens,
            "threads": self.threads,
            "dtype": {role: getattr(self, role).dtype for role in ROLES},
        }


class Answers:
    """The compared answers in WORK/answers.jsonl, one a line."""

    def __init__(
        self, work: Path, settings: Settings, questions: Sequence[str], infos: dict[str, ModelInfo]
    ) -> None:
        """Raises: Mismatch when the folder has answers of other models or settings, or is damaged."""
        self.questions = questions
        fingerprints = {role: info.fingerprint for role, info in infos.items()}
        StageFolder(work).claim(settings.recipe() | {"fingerprints": fingerprints})
        self._path = work / "answers.jsonl"
        try:
            lines = complete_lines(self._path) if self._path.exists() else ()
            self._found = {row["prompt"]: row for row in map(json.loads, lines)}
        except (ValueError, KeyError, TypeError) as error:
            raise Mismatch(
                f"{self._path} is damaged: {error}",
                remedy="delete it and run the same command again",
            ) from error

    def missing(self) -> list[int]:
        """Return the numbers of the prompts without an answer."""
        return [
            index for index in range(len(self.questions)) if self._key(index) not in self._found
        ]

    def add(
        self,
        index: int,
        contexts: Sequence[dict[str, Any]],
        timed: Sequence[GeneratedSegment],
    ) -> None:
        """Keep an answer. `contexts`: one of each segment; `timed`: segments written while no other answer was."""
        row = {
            "prompt": self._key(index),
            "contexts": contexts,
            "timed_ms": sum(generated.duration_ms for generated in timed),
            "num_timed_tokens": sum(len(generated.segment.token_ids) for generated in timed),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._found[row["prompt"]] = row

    def contexts(self) -> OwnContexts:
        """Return all contexts of the answers. Raises: InvalidRequest if there are none."""
        answers = self._all()
        rows = [
            (number, row) for number, answer in enumerate(answers) for row in answer["contexts"]
        ]
        if not rows:
            raise InvalidRequest(
                "the target's answers have no segment to learn from; give more prompts or a larger "
                "max_tokens"
            )
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
            target_ms_per_token=sum(answer["timed_ms"] for answer in answers)
            / sum(answer["num_timed_tokens"] for answer in answers),
        )

    @property
    def digest(self) -> str:
        """Digest of what the calibration is made from."""
        return digest_of([answer["contexts"] for answer in self._all()])

    def _all(self) -> list[dict[str, Any]]:
        return [self._found[self._key(index)] for index in range(len(self.questions))]

    def _key(self, index: int) -> str:
        return digest_of([index, self.questions[index]])


class AnswerWriter:
    """Has the target write answers, and compares each of their segments with one of the draft."""

    def __init__(
        self,
        settings: Settings,
        draft: TorchEngine,
        target: TorchEngine,
        answers: Answers,
    ) -> None:
        self._settings, self._draft, self._target = settings, draft, target
        self._answers = answers

    async def write(self, index: int) -> list[GeneratedSegment]:
        """Write an answer."""
        start, _ = await self._prompts(index)
        context = Context((start,))
        # Reads the prompt before the first segment's time begins.
        await write_all(self._target, context, self._params(index, 1, 1))
        params = self._params(index, 0, self._settings.max_tokens)
        return await write_all(self._target, context, params)

    async def compare(
        self, index: int, written: Sequence[GeneratedSegment], is_alone: bool
    ) -> None:
        """Draft a segment at each context of a written answer, and score it and the target's own."""
        start, draft_start = await self._prompts(index)
        segments = [generated.segment for generated in written]
        session = f"answer {index}"
        drafted, scores = [], []
        for depth in range(len(segments)):
            context = Context((draft_start, *segments[:depth]))
            params = self._params(index, 1, self._settings.max_tokens)
            drafted += await write_all(self._draft, context, params)
        own_scores = await self._target.score(Context((start,)), segments, session)
        for depth in reversed(range(len(segments))):  # each context is then cached, as when served
            context = Context((start, *segments[:depth]))
            scores += await self._target.score(context, [drafted[depth].segment], session)
        rows = [
            {
                "own_surprisal": own_score.surprisal,
                "own_tokens": len(segment.token_ids),
                "is_whole": segment.end is not SegmentEnd.LENGTH,
                "surprisal": score.surprisal,
                "num_tokens": len(draft.segment.token_ids),
                "repeats": repeated_index(draft.segment, segments[:depth]) is not None,
                "draft_ms": draft.duration_ms,
                "score_ms": score.duration_ms,
            }
            for depth, (segment, own_score, draft, score) in enumerate(
                zip(segments, own_scores, drafted, reversed(scores), strict=True)
            )
        ]
        self._answers.add(index, rows, written if is_alone else ())

    async def _prompts(self, index: int) -> tuple[Piece, Piece]:
        """The prompt as the target and as the draft reads it."""
        messages = [Message("user", self._answers.questions[index])]
        infos = await self._draft.info(), await self._target.info()
        encoded = self._target.encode(messages)
        prompts = await render_prompts(messages, encoded, self._draft, *infos)
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


async def answer_all(writer: AnswerWriter, answers: Answers, reporter: Reporter) -> None:
    """Make the missing answers: write the first ones alone and the others in groups, then compare one at a time."""
    missing = answers.missing()
    num_all, begin = len(answers.questions), perf_counter()
    with reporter.bar("answers", num_all, "answers", num_all - len(missing)) as advance:
        for number, group in enumerate(_groups(missing)):
            written = await gather_or_cancel(map(writer.write, group))
            for index, segments in zip(group, written, strict=True):
                await writer.compare(index, segments, is_alone=len(group) == 1)
                advance(1)
            if number == 0 and (num_left := len(missing) - len(group)):
                rest_s = (perf_counter() - begin) * num_left / len(group)
                reporter.say(
                    f"the first answer took {duration(rest_s / num_left)}; still to make: {num_left}, which take at "
                    f"most about {duration(rest_s)}; Ctrl-C stops, the same command continues"
                )


def _groups(missing: Sequence[int]) -> Iterator[Sequence[int]]:
    """The answers that are written at a time."""
    alone = [index for index in missing if index < NUM_ALONE]
    yield from ([index] for index in alone)
    others = missing[len(alone) :]
    for start in range(0, len(others), NUM_TOGETHER):
        yield others[start : start + NUM_TOGETHER]
