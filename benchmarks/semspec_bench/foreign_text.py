"""Measures how well a draft goes on after text of the target: `python -m semspec_bench.foreign_text`.

The target writes one segment of each answer. The draft goes on after it, with the segment's token ids by each of
`READINGS`, the same seed and each model's own chat template; the target scores what the draft wrote. A reading that
hurts the drafts has a lower mean log-probability than `whole`, the ids that the draft's tokenizer gives the whole text.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from semspec.decoding.loop import render_prompts
from semspec.engine.tokenization import LETTER, ModelTokenizer, tokenize
from semspec.engine.torch_engine import TorchEngine
from semspec.types import (
    SURPRISAL_FEATURES,
    Context,
    GenerationParams,
    Piece,
    SamplingParams,
    Segment,
    SegmentEnd,
    Writer,
)
from semspec_bench.intervals import Z_95
from semspec_bench.tasks import load_task
from semspec_bench.tasks.protocol import Question

MEAN = SURPRISAL_FEATURES.index("mean_log_probability")


def whole_ids(tokenizer: ModelTokenizer, before: str, segment: Segment) -> Sequence[int]:
    """Return the segment's ids in the tokenization of the whole text."""
    following = LETTER if segment.text[-1:].isspace() else ""
    start, stop = len(before), len(before) + len(segment.text)
    tokens = tokenize(tokenizer.raw, before + segment.text + following)
    return [token.id for token in tokens if start <= token.start < stop]


def alone_ids(tokenizer: ModelTokenizer, before: str, segment: Segment) -> Sequence[int]:
    """Return the ids of the segment's text by itself."""
    return tokenizer.ids_of(segment.text)


def read_ids(tokenizer: ModelTokenizer, before: str, segment: Segment) -> Sequence[int]:
    """Return the ids that the engine reads: those of the segment if its tokenizer is the draft's."""
    return tokenizer.read_ids(segment, before)


Reading = Callable[[ModelTokenizer, str, Segment], Sequence[int]]
READINGS: Mapping[str, Reading] = {"whole": whole_ids, "read": read_ids, "alone": alone_ids}


@dataclass(frozen=True, slots=True)
class Pair:
    """Both models in this process."""

    draft: TorchEngine
    target: TorchEngine

    async def compare(
        self, question: Question, seed: int, max_tokens: int
    ) -> dict[str, dict[str, Any]] | None:
        """Return each reading's ids, draft and score after the target's first segment; None if that does not end at
        a boundary."""
        infos = await self.draft.info(), await self.target.info()
        prompts = await render_prompts(
            question.messages, self.target.encode(question.messages), self.draft, *infos
        )
        params = GenerationParams(
            SamplingParams(0.6, 0.95, 0, seed), max_segments=1, max_tokens=max_tokens
        )
        context = Context((prompts.target,))
        segment = await written(self.target, context, params)
        if segment is None or segment.end is not SegmentEnd.BOUNDARY:
            return None
        prompt, found = prompts.draft or prompts.target, dict[str, dict[str, Any]]()
        for name, reading in READINGS.items():
            ids = tuple(reading(self.draft.tokenizer, prompt.text, segment))
            identical = next((known for known in found.values() if known["ids"] == ids), None)
            found[name] = identical or await self._drafted(context, prompt, segment, ids, params)
        return found

    async def _drafted(
        self,
        context: Context,
        prompt: Piece,
        segment: Segment,
        ids: tuple[int, ...],
        params: GenerationParams,
    ) -> dict[str, Any]:
        read = replace(segment, token_ids=ids, tokenizer=self.draft.tokenizer.info.tokenizer)
        draft = await written(self.draft, Context((prompt, read)), params)
        score = None
        if draft is not None and draft.text:
            [scored] = await self.target.score(context.extended(segment), [draft])
            score = scored.surprisal[MEAN]
        return {"ids": ids, "text": draft.text if draft else "", "score": score}


async def written(
    engine: TorchEngine, context: Context, params: GenerationParams
) -> Segment | None:
    """Return the one segment that the model writes; None if it writes nothing."""
    async with aclosing(engine.generate(context, params)) as generated:
        return next(iter([item.segment async for item in generated]), None)


def summary(rows: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the mean score of each reading, and how it differs from that of `whole` over the same contexts."""
    rows = [row for row in rows if all(drafted["score"] is not None for drafted in row.values())]
    readings = {}
    for name in READINGS if rows else ():
        differences = [row[name]["score"] - row["whole"]["score"] for row in rows]
        half = Z_95 * stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else None
        readings[name] = {
            "mean_log_probability": fmean(row[name]["score"] for row in rows),
            "difference": fmean(differences),
            "half_interval_95": half,
            "num_other_ids": sum(row[name]["ids"] != row["whole"]["ids"] for row in rows),
            "num_begun_by_digit_or_space": sum(_begins_badly(row[name]["text"]) for row in rows),
        }
    return {"num_drafts": len(rows), "readings": readings}


def _begins_badly(text: str) -> bool:
    return text[:1].isdigit() or text[:1].isspace()


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    options = {"dtype": arguments.dtype, "threads": arguments.threads}
    models = {Writer.DRAFT: arguments.draft_model, Writer.TARGET: arguments.target_model}
    draft, target = (
        TorchEngine.load(str(name), writer=writer, **options) for writer, name in models.items()
    )
    async with aclosing(draft), aclosing(target):
        questions = load_task(arguments.task, arguments.data, arguments.limit).questions
        pair = Pair(draft, target)
        rows = [
            await pair.compare(question, seed, arguments.max_tokens)
            for seed, question in enumerate(questions)
        ]
        names = {"draft": (await draft.info()).model, "target": (await target.info()).model}
        return {
            **names,
            "dtype": arguments.dtype,
            **summary([row for row in rows if row is not None]),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draft-model", type=Path, required=True, help="folder of the draft")
    parser.add_argument("--target-model", type=Path, required=True, help="folder of the target")
    parser.add_argument(
        "--task", default="math500", help="task that the questions are of (default math500)"
    )
    parser.add_argument(
        "--data", help="file of the questions in JSON lines; without it, the task's own"
    )
    parser.add_argument("--limit", type=int, default=50, help="number of questions (default 50)")
    parser.add_argument(
        "--max-tokens", type=int, default=128, help="longest segment in tokens (default 128)"
    )
    parser.add_argument(
        "--dtype", default="auto", help="numeric form of the weights (default auto)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of the models (default 1)")
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
