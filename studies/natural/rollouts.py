"""Whether a segment leads to the right answer: `python -m studies.natural.rollouts CONFIG WORK FILE`.

After each context of `semspec train run`, one segment of the draft and one of the target are continued to the end by
the target, several times each, and the answers are graded. FILE has a JSON line for each context; a run that is killed
goes on where it was.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from semspec.decoding.steps import write_all
from semspec.engine.torch_engine import TorchEngine
from semspec.reporting.files import Row
from semspec.reporting.progress import Reporter
from semspec.training.config import PipelineConfig, load_config
from semspec.training.data.contexts import ProbeContext, contexts_of
from semspec.training.data.questions import stored_questions
from semspec.training.files import StageFolder
from semspec.types import (
    GenerationParams,
    SamplingParams,
    Segment,
    SegmentEnd,
    Writer,
    derive_seed,
)
from semspec_bench.tasks.mathematics import Judge, stated_answer
from studies.natural.questions import PARTS, read

NUM_ROLLOUTS = 4
MAX_TOKENS = 768
"""Of a continuation. One that is cut is wrong, unless it has stated the answer."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A context, and the first whole sample of each writer after it, with its number among the writer's samples."""

    context: ProbeContext
    segments: Mapping[Writer, tuple[int, Segment]]


def sampled(config: PipelineConfig, work: Path) -> Iterator[Sampled]:
    """Yield each context whose samples are there."""
    questions = stored_questions(work, config, Reporter())
    contexts, samples = StageFolder(work / "contexts"), StageFolder(work / "samples")
    for number in samples.numbers():
        manifest = samples.manifest(number)
        models = manifest.facts["models"] if manifest else {}
        groups = {
            name: list(rows)
            for name, rows in groupby(samples.rows(number), key=lambda row: row["context"])
        }
        for trace in contexts.rows(number):
            for context in contexts_of(trace, questions[trace["question"]]):
                found = {
                    writer: _first_whole(groups[context.id], writer, models[writer]["tokenizer"])
                    for writer in (Writer.TARGET, Writer.DRAFT)
                }
                yield Sampled(context, {writer: own for writer, own in found.items() if own})


def _first_whole(rows: Sequence[Row], writer: Writer, tokenizer: str) -> tuple[int, Segment] | None:
    own = [row for row in rows if row["writer"] == writer]
    for number, row in enumerate(own):
        if (end := SegmentEnd(row["end"])) is not SegmentEnd.LENGTH:
            ids = tuple(row["token_ids"])
            return number, Segment(row["text"], ids, tokenizer, writer, end)
    return None


async def continued(
    target: TorchEngine, context: ProbeContext, segment: Segment, sampling: SamplingParams
) -> list[str]:
    """Return the segment with each of its continuations."""
    if segment.end is SegmentEnd.EOS:
        return [segment.text]
    base = derive_seed(
        sampling.seed, f"rollout {segment.writer} {context.question.id}", context.depth
    )
    rollouts = [
        GenerationParams(
            replace(sampling, seed=derive_seed(base, "rollout", number)), max_tokens=MAX_TOKENS
        )
        for number in range(NUM_ROLLOUTS)
    ]
    extended = context.context.extended(segment)
    answers = await asyncio.gather(*(write_all(target, extended, own) for own in rollouts))
    return [
        segment.text + "".join(generated.segment.text for generated in answer) for answer in answers
    ]


async def run(config: PipelineConfig, work: Path, file: Path) -> None:
    """Grade the continuations after every context that FILE does not have."""
    done = {json.loads(line)["context"] for line in file.open()} if file.exists() else set()
    references = {
        row["id"]: row["answer"] for part in (*PARTS.values(), "report") for row in read(part)
    }
    judge, sampling = Judge(), config.samples.sampling
    target = TorchEngine.load(config.target.model, writer=Writer.TARGET, dtype=config.target.dtype)
    async with aclosing(target):
        for one in sampled(config, work):
            if one.context.id in done:
                continue
            texts = await asyncio.gather(
                *(continued(target, one.context, own, sampling) for _, own in one.segments.values())
            )
            record: Row = {"context": one.context.id}
            for (writer, (number, _)), own in zip(one.segments.items(), texts, strict=True):
                answers = [stated_answer(one.context.reasoning + text) for text in own]
                reference = references[one.context.question.id]
                is_right = [judge.is_equivalent(reference, answer) for answer in answers]
                record[writer.value] = {"sample": number, "right": is_right}
            with file.open("a") as output:
                output.write(json.dumps(record) + "\n")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path, help="configuration of the run")
    parser.add_argument("work", type=Path, help="its work folder")
    parser.add_argument("file", type=Path, help="JSON lines to write, or to go on with")
    options = parser.parse_args()
    asyncio.run(run(load_config(options.config), options.work, options.file))


if __name__ == "__main__":
    main()
