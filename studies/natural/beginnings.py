"""Next segments of both models after the beginnings of drafted answers: `python -m studies.natural.beginnings`.

A smaller design than that of `semspec train run`, for two cores: many contexts are sampled at once, and the target's
states are kept of the drafts alone. `collect` writes the segments with their clusters, the statistics of the drafts and
their states; a run that is killed goes on where it was. `scores` writes what tells right drafts from wrong ones, for
`studies.natural.report`: probabilities of logistic regressions that learn from other questions.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from semspec.clustering.equivalence import Alternatives, clusters_of_whole
from semspec.decoding.likelihood.calibration import CALIBRATION_FILE, load_calibration
from semspec.decoding.steps import write_all
from semspec.engine.segmentation import cut
from semspec.engine.torch_engine import TorchEngine
from semspec.training.evaluation.metrics import (
    Resampling,
    auroc,
    dense_ranks,
    select_statistics,
)
from semspec.types import (
    Context,
    Conversation,
    GenerationParams,
    Message,
    Piece,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentEnd,
    Writer,
    derive_seed,
)
from semspec_bench.tasks.mathematics import INSTRUCTION
from studies.natural.files import write_compressed
from studies.natural.labels import COMPARISONS, EQUIVALENCES
from studies.natural.questions import read_answered
from studies.natural.separation import NUM_RESAMPLES, Scores, Truth, interval_of

Floats = NDArray[np.floating[Any]]
Record = dict[str, Any]
CONTEXTS, STATES = "contexts.jsonl", "states"
SAMPLING = SamplingParams(temperature=0.6, top_p=0.95)
NUM_TARGET, NUM_DRAFTS = 10, 6
MAX_SEGMENT_TOKENS = 128
MAX_DEPTH = 7
"""Segments of the answer before a context, at most: later ones are mostly after a mistake."""
AT_ONCE = 6
"""Contexts."""
KV_BYTES = 9 << 30
"""Of each model: less would evict calls, whose prefixes are then read again and again."""
NUM_COMPONENTS, NUM_FOLDS = 32, 5
SEEDS = (0, 1, 2)


async def after(models: dict[Writer, TorchEngine], row: Record, depth: int, states: Path) -> Record:
    """Sample both models after `depth` segments of the answer, and score the drafts. Writes their states."""
    texts = list(cut(row["trace"], Segmentation.PARAGRAPH))[:depth]
    pieces = [Segment(text, (), "text", Writer.DRAFT, SegmentEnd.BOUNDARY) for text in texts]
    question = f"{row['problem']}\n{INSTRUCTION}"

    async def context(writer: Writer) -> Context:
        prompt: Piece = await models[writer].encode(Conversation((Message("user", question),)))
        return Context((prompt, *pieces))

    async def sampled(writer: Writer, number: int) -> Segment:
        seed = derive_seed(1, f"{writer} {row['id']}/{depth}", number)
        params = GenerationParams(
            replace(SAMPLING, seed=seed),
            max_segment_tokens=MAX_SEGMENT_TOKENS,
            session=f"{row['id']} {writer} {number}",  # to start from a copy of the context
        )
        [generated] = await write_all(models[writer], contexts[writer], params)
        return generated.segment

    contexts = {writer: await context(writer) for writer in models}
    for (
        writer,
        model,
    ) in models.items():  # read once, then cached: calls at the same time would all read it
        read = GenerationParams(SAMPLING, max_tokens=1, session=row["id"])
        await write_all(model, contexts[writer], read)
    numbers = [(Writer.TARGET, NUM_TARGET), (Writer.DRAFT, NUM_DRAFTS)]
    calls = [sampled(writer, number) for writer, count in numbers for number in range(count)]
    segments = await asyncio.gather(*calls)
    drafts = segments[NUM_TARGET:]
    target = models[Writer.TARGET]
    scored = await asyncio.gather(
        *(
            target.score(contexts[Writer.TARGET], [draft], f"{row['id']} score {number}")
            for number, draft in enumerate(drafts)
        )
    )
    scores = [score for [score] in scored]
    pooled = [
        np.frombuffer(score.states.data, "<f4").reshape(score.states.shape) for score in scores
    ]
    save_file({STATES: np.stack(pooled).astype(np.float16)}, states / f"{row['id']}.safetensors")
    group = Alternatives("", "", "", tuple(segment.text for segment in segments))
    ends = [segment.end for segment in segments]
    found = {
        name: clusters_of_whole(equivalence, [group], [ends])[0]
        for name, equivalence in EQUIVALENCES.items()
    }
    samples: list[Record] = [
        {
            "writer": segment.writer.value,
            "text": segment.text,
            "num_tokens": len(segment.token_ids),
            "end": segment.end.value,
        }
        | {name: found[name][place] for name in COMPARISONS}
        for place, segment in enumerate(segments)
    ]
    for sample, score in zip(samples[NUM_TARGET:], scores, strict=True):
        sample["surprisal"] = [round(value, 5) for value in score.surprisal]
    return {
        "question": row["id"],
        "depth": depth,
        "reasoning": "".join(texts),
        "samples": samples,
    }


async def collect(options: argparse.Namespace) -> None:
    """Sample after one beginning of each answer that the file does not have yet."""
    states, file = options.output / STATES, options.output / CONTEXTS
    states.mkdir(parents=True, exist_ok=True)
    done = {json.loads(line)["question"] for line in file.open()} if file.exists() else set()
    rows = [
        row
        for part in ("learn", "report")
        for row in read_answered(part, f"{options.answers}/{part}")
    ]
    Random(0).shuffle(rows)
    semaphore = asyncio.Semaphore(AT_ONCE)
    async with AsyncExitStack() as stack:
        models = dict[Writer, TorchEngine]()
        for writer, model in ((Writer.DRAFT, options.draft), (Writer.TARGET, options.target)):
            engine = TorchEngine.load(
                model, writer=writer, dtype=options.dtype, threads=2, kv_bytes=KV_BYTES
            )
            models[writer] = await stack.enter_async_context(aclosing(engine))

        async def one(row: Record) -> None:
            num_segments = len(list(cut(row["trace"], Segmentation.PARAGRAPH)))
            depth = Random(f"depth {row['id']}").randrange(min(num_segments, MAX_DEPTH + 1))
            async with semaphore:
                record = await after(models, row, depth, states)
            with file.open("a") as output:
                output.write(json.dumps(record, ensure_ascii=False) + "\n")
            print(row["id"], flush=True)

        await asyncio.gather(*(one(row) for row in rows if row["id"] not in done))


def scores(folder: Path, records: Sequence[Record], release: Path) -> Iterator[Record]:
    """Yield the records of `studies.natural.separation` of the whole drafts. One is right where a sample of the target
    has the same result."""
    calibration = load_calibration(release / CALIBRATION_FILE)
    kept, states, statistics = list[Record](), list[Floats](), list[list[float]]()
    for record in records:
        target = {own["result"] for own in record["samples"] if own["writer"] == "target"}
        pooled = load_file(folder / STATES / f"{record['question']}.safetensors")[STATES]
        for draft, own in zip(record["samples"][NUM_TARGET:], pooled, strict=True):
            if draft["result"] is not None:
                said = {"the target says it": draft["result"] in target}
                kept.append({"question": int(record["question"]), "right": said})
                states.append(own.astype(np.float64))
                statistics.append(draft["surprisal"])
    surprisal = np.array(statistics)
    likelihood = np.array([calibration.probability(row) for row in statistics])
    columns: Scores = {
        ("mean surprisal", None): select_statistics(surprisal, ["mean_log_probability"])[:, 0],
        ("likelihood", None): np.log(likelihood.clip(1e-9)),
    }
    right = np.array([record["right"]["the target says it"] for record in kept])
    question = np.array([record["question"] for record in kept])
    last, every = np.stack([own[-1] for own in states]), np.stack([own.ravel() for own in states])
    for seed in SEEDS:
        columns["statistics, fitted here", seed] = _fitted([surprisal], right, question, seed)
        columns["states of the last layer", seed] = _fitted([last], right, question, seed)
        columns["states of all layers", seed] = _fitted([every], right, question, seed)
        columns["states with surprisal", seed] = _fitted([every, surprisal], right, question, seed)
    for place, record in enumerate(kept):
        values = [[name, seed, float(column[place])] for (name, seed), column in columns.items()]
        yield record | {"scores": values}


def table(
    truth: Truth, columns: Scores, question: NDArray[np.int64], baseline: str = "likelihood"
) -> Iterator[str]:
    """Yield the table of scores, Markdown. Only pairs of drafts in the same fold are compared, for every score, because
    the scores of two folds come from two regressions. The intervals do not include the variance of fitting."""
    right, number = truth.right, question[truth.rows]
    resampling = Resampling.of(number, NUM_RESAMPLES)
    codes = np.searchsorted(resampling.questions, number)
    draws = np.concatenate([np.ones((1, len(number))), resampling.counts[:, codes]])
    yield f"{right.sum()} right and {(~right).sum()} wrong drafts after {len(resampling.questions)} contexts."
    yield ""
    yield f"| score | seed of the folds | AUROC within folds | minus that of {baseline} |"
    yield "|---|---|---|---|"
    for seed in SEEDS:
        folds = [held for _, held in _folds(seed).split(number, right, number)]
        found = {
            name: np.array([_within(folds, column[truth.rows], right, draw) for draw in draws])
            for (name, own), column in columns.items()
            if own in (None, seed)
        }
        for name, values in found.items():
            difference = interval_of(values - found[baseline], "+") if name != baseline else ""
            yield f"| {name} | {seed} | {interval_of(values)} | {difference} |"


def _within(
    folds: Sequence[NDArray[np.int64]],
    score: Floats,
    right: NDArray[np.bool_],
    weight: Floats,
) -> float:
    """Return the share of pairs of a right and a wrong segment of one fold in which the right one scores higher."""
    total = num_pairs = 0.0
    for rows in folds:
        num = float(weight[rows] @ right[rows]) * float(weight[rows] @ ~right[rows])
        if num:
            total += num * auroc(dense_ranks(score[rows]), right[rows], weight[rows])
            num_pairs += num
    return total / num_pairs


def _folds(seed: int) -> GroupKFold:
    return GroupKFold(NUM_FOLDS, shuffle=True, random_state=seed)


def _fitted(
    inputs: Sequence[Floats], right: NDArray[np.bool_], question: NDArray[np.int64], seed: int
) -> Floats:
    """Return the log-odds of right, by a logistic regression that learned from the other folds' questions. Inputs of
    more than NUM_COMPONENTS columns are reduced to that many principal components."""
    found = np.empty(len(right))
    for known, held in _folds(seed).split(question, right, question):
        parts = []
        for values in inputs:
            scaler = StandardScaler()
            if values.shape[1] > NUM_COMPONENTS:
                scaler = make_pipeline(
                    scaler, PCA(NUM_COMPONENTS, random_state=seed), StandardScaler()
                )
            scaler.fit(values[known])
            parts.append((scaler.transform(values[known]), scaler.transform(values[held])))
        learned, asked = (np.hstack(part) for part in zip(*parts, strict=True))
        inner = GroupKFold(NUM_FOLDS).split(learned, right[known], question[known])
        model = GridSearchCV(
            LogisticRegression(max_iter=1000),
            {"C": np.logspace(-4, 1, 6)},
            cv=list(inner),
            scoring="neg_log_loss",
        )
        found[held] = model.fit(learned, right[known]).decision_function(asked)
    return found


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("collect")
    command.add_argument("draft", help="folder or GGUF file of the draft")
    command.add_argument("target", help="folder or GGUF file of the target")
    command.add_argument("answers", help="folder with runs of `served`: learn and report")
    command.add_argument("output", type=Path, help="folder of the run")
    command.add_argument("--dtype", default="packed", help="numeric form of both models")
    command = commands.add_parser("scores")
    command.add_argument("run", type=Path, help="folder of the run")
    command.add_argument("release", type=Path, help="folder with the calibration of `likelihood`")
    command.add_argument("file", type=Path, help="compressed JSON lines to write")
    command = commands.add_parser("keep", help="segments with their clusters, for labels report")
    command.add_argument("run", type=Path, help="folder of the run")
    command.add_argument("file", type=Path, help="compressed JSON lines to write")
    options = parser.parse_args()
    if options.command == "collect":
        asyncio.run(collect(options))
        return
    lines = (options.run / CONTEXTS).read_text().splitlines()
    records = sorted(map(json.loads, lines), key=lambda record: int(record["question"]))
    if options.command == "scores":
        records = list(scores(options.run, records, options.release))
    write_compressed(options.file, records)


if __name__ == "__main__":
    main()
