"""Compares clusters by entailment with the parser's, on next steps sampled from the bundled pair.

python -m semspec.demo.evaluate_nli                     100 `report` problems, writes bench/results/nli.json
python -m semspec.demo.evaluate_nli --split tune        for development
"""

import argparse
import json
import logging
import time
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from semspec.clustering.entailment import EntailmentConfig, EntailmentEquivalence
from semspec.clustering.equivalence import Alternatives, clusters_of_whole
from semspec.demo.probe_data import ParserEquivalence, questions
from semspec.engine.causal_lm import CausalLM
from semspec.engine.checkpoint import model_fingerprint
from semspec.stack import BUNDLED_PAIR
from semspec.training.config import ContextsConfig, PromptConfig
from semspec.training.data.contexts import ProbeContext, choose_depths, mixed_trace, prompts
from semspec.training.data.questions import Question
from semspec.training.data.writers import CachedModel, EngineWriter, SegmentWriter, WritingRecipe
from semspec.training.files import read_rows, write_rows
from semspec.types import Context, SamplingParams, SegmentEnd, Writer, derive_seed

log = logging.getLogger("semspec.demo.evaluate_nli")

SEED = 7
NUM_SAMPLES = 20
MAX_SEGMENT_TOKENS = 64
SAMPLING = SamplingParams(temperature=0.6, top_p=0.95)
CONTEXTS = ContextsConfig(traces="mixture", draft_share=0.7, per_question=2)

Sampled = tuple[Alternatives, list[SegmentEnd]]
"""The next segments at a context, and how they end."""


class Scribe:
    """Samples alternatives from the bundled pair."""

    def __init__(self, pair: Path) -> None:
        self._target = CausalLM.load(str(pair / "target"), None, "cpu", "float32")
        self._draft = CausalLM.load(str(pair / "draft"), None, "cpu", "float32")
        recipe = WritingRecipe(SAMPLING, max_segment_tokens=MAX_SEGMENT_TOKENS)
        self._writers: dict[Writer, SegmentWriter] = {
            writer: EngineWriter(CachedModel(lm, NUM_SAMPLES), writer, recipe)
            for writer, lm in ((Writer.DRAFT, self._draft), (Writer.TARGET, self._target))
        }

    def alternatives(self, question: Question) -> Iterator[Sampled]:
        start = prompts(question, PromptConfig(), self._target.tokenizer, self._draft.tokenizer)
        pieces = mixed_trace(question, start, self._writers, CONTEXTS.draft_share, SEED, CONTEXTS.max_segments)
        for depth in choose_depths(len(pieces) - 1, CONTEXTS, f"{SEED} {question.id}"):
            context = ProbeContext(question, Context(tuple(pieces[: depth + 1])), start.draft)
            seeds = [derive_seed(SEED, f"sample {question.id} {depth}", index) for index in range(NUM_SAMPLES)]
            written = [
                segment
                for writer in (Writer.TARGET, Writer.DRAFT)
                for segment in self._writers[writer].generate(context.read_by(writer), seeds)
            ]
            texts = tuple(segment.text for segment in written)
            ends = [segment.end for segment in written]
            yield Alternatives(question.id, question.text, context.reasoning, texts), ends


def sampled(split: str, num_problems: int, pair: Path, work: Path) -> list[Sampled]:
    """Both models' samples at two contexts per problem; stored in `work`."""
    path = work / f"{split}-{num_problems}-ends.parquet"
    if not path.exists():
        scribe = Scribe(pair)
        rows = []
        for row in islice(questions(split), num_problems):
            question = Question(row["id"], row["question"], "all", "test")
            rows += [_row(*sampled) for sampled in scribe.alternatives(question)]
            log.info("%d contexts", len(rows))
        write_rows(path, rows)
    return [
        (Alternatives(**row | {"segments": tuple(row["segments"])}), [SegmentEnd(end) for end in ends])
        for row in read_rows(path)
        if (ends := row.pop("ends"))
    ]


def _row(group: Alternatives, ends: Sequence[SegmentEnd]) -> dict[str, object]:
    return {
        "ends": [end.value for end in ends],
        "question_id": group.question_id,
        "question": group.question,
        "reasoning": group.reasoning,
        "segments": list(group.segments),
    }


def agreement(truths: Sequence[Sequence[int | None]], clusters: Sequence[Sequence[int | None]]) -> dict[str, object]:
    """Adjusted Rand index per context, and the verdicts on pairs of segments that both have a cluster for."""
    both = [
        [pair for pair in zip(truth, own, strict=True) if None not in pair]
        for truth, own in zip(truths, clusters, strict=True)
    ]
    truths, clusters = ([[pair[side] for pair in pairs] for pairs in both] for side in (0, 1))
    scores = np.array([adjusted_rand_score(truth, own) for truth, own in zip(truths, clusters, strict=True)])
    counts = np.zeros((2, 2), dtype=np.int64)
    for truth, own in zip(truths, clusters, strict=True):
        for i, j in combinations(range(len(truth)), 2):
            counts[int(truth[i] == truth[j]), int(own[i] == own[j])] += 1
    return {
        "num_contexts": len(scores),
        "adjusted_rand_index": round(float(scores.mean()), 4),
        "standard_error": round(float(scores.std(ddof=1) / len(scores) ** 0.5), 4),
        "perfect_contexts": round(float((scores == 1).mean()), 4),
        "wrong_pairs": round(float((counts[0, 1] + counts[1, 0]) / counts.sum()), 5),
        "pair_precision": round(float(counts[1, 1] / counts[:, 1].sum()), 5),
        "pair_recall": round(float(counts[1, 1] / counts[1].sum()), 5),
        "clusters_by_parser": round(float(np.mean([len(set(truth)) for truth in truths])), 3),
        "clusters_by_entailment": round(float(np.mean([len(set(own)) for own in clusters])), 3),
    }


def evaluate(model: Path, samples: Sequence[Sampled], with_context: bool) -> dict[str, object]:
    config = EntailmentConfig(model=str(model), device="cpu", with_context=with_context)
    equivalence = EntailmentEquivalence.load(config, MAX_SEGMENT_TOKENS)
    groups, ends = zip(*samples, strict=True)
    start = time.perf_counter()
    clusters = clusters_of_whole(equivalence, groups, ends)
    seconds = time.perf_counter() - start
    counts = {f"{name}_a_context": round(count / len(groups), 2) for name, count in equivalence.take_counts().items()}
    result = agreement(clusters_of_whole(ParserEquivalence(), groups, ends), clusters) | counts
    fingerprint = model_fingerprint(str(model), None)
    return (
        {"model": fingerprint, "with_context": with_context}
        | result
        | {"ms_a_context": round(1000 * seconds / len(groups), 1)}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pair", type=Path, default=BUNDLED_PAIR)
    parser.add_argument("--model", type=Path, default=Path("demo/nli"))
    parser.add_argument("--with-context", action="store_true", help="read each step after the end of the context")
    parser.add_argument("--split", choices=("tune", "report"), default="report")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--work", type=Path, default=Path(".work/demo-nli/samples"))
    parser.add_argument("--output", type=Path, help="default: bench/results/nli.json, of the report split only")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    groups = sampled(arguments.split, arguments.problems, arguments.pair, arguments.work)
    result = {"split": arguments.split, "num_samples": 2 * NUM_SAMPLES, "temperature": 0.6, "top_p": 0.95}
    text = json.dumps(result | evaluate(arguments.model, groups, arguments.with_context), indent=2)
    log.info("%s", text)
    output = arguments.output or (Path("bench/results/nli.json") if arguments.split == "report" else None)
    if output:
        output.write_text(text + "\n")


if __name__ == "__main__":
    main()
