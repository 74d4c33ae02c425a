"""How often two sampled segments mean the same: `python -m studies.natural.labels`.

`collect` reads the samples of `semspec train run` and keeps each segment with its clusters by words and by stated
result. `report` prints the shares of segments that no other sample agrees with, which needs that file alone.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from semspec.clustering.entailment import normalized
from semspec.clustering.equivalence import (
    Alternatives,
    Equivalence,
    clusters_of_whole,
    in_order_of_appearance,
)
from semspec.clustering.results import ResultsEquivalence, result_of
from semspec.training.evaluation.metrics import Resampling
from semspec.training.files import StageFolder
from semspec.types import SegmentEnd
from studies.natural.files import read_compressed, write_compressed

Record = dict[str, Any]
NUM_RESAMPLES = 1000
COMPARISONS = ("words", "result")
COLUMNS = (
    "compared by",
    "writer",
    "segments",
    "alone among the writer's samples",
    "no sample of the target agrees",
    "mean share of the target's samples that agree",
)
DEPTHS = ((0, 0), (1, 2), (3, 5), (6, 99))
LENGTHS = ((1, 15), (16, 40), (41, 80), (81, 999))


class WordsEquivalence:
    """Segments mean the same if they have the same words; see `semspec.clustering.equivalence.Equivalence`."""

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int | None]]:
        """Return the cluster of each segment of each group."""
        return [in_order_of_appearance([*map(normalized, group.segments)]) for group in groups]


EQUIVALENCES: dict[str, Equivalence] = {"words": WordsEquivalence(), "result": ResultsEquivalence()}


def collect(work: Path) -> Iterator[Record]:
    """Yield a record of each context: question, depth, and its samples with their clusters."""
    folder = StageFolder(work / "samples")
    for number in folder.numbers():
        for context, group in groupby(folder.rows(number), key=lambda row: row["context"]):
            samples = list(group)
            texts = Alternatives("", "", "", tuple(sample["text"] for sample in samples))
            ends = [SegmentEnd(sample["end"]) for sample in samples]
            found = {
                name: clusters_of_whole(equivalence, [texts], [ends])[0]
                for name, equivalence in EQUIVALENCES.items()
            }
            kept = [
                {name: sample[name] for name in ("writer", "text", "num_tokens", "end")}
                | {name: found[name][place] for name in COMPARISONS}
                for place, sample in enumerate(samples)
            ]
            question, _, depth = context.rpartition("/")
            yield {"question": question, "depth": int(depth), "samples": kept}


def agreement(samples: Sequence[Record], name: str, place: int, writer: str) -> float:
    """Return the share of the whole samples of `writer`, without the one at `place`, in its cluster; 0 if there is no
    such sample."""
    others = [
        sample
        for other, sample in enumerate(samples)
        if sample["writer"] == writer and other != place and sample[name] is not None
    ]
    same: float = sum(sample[name] == samples[place][name] for sample in others)
    return same / max(1, len(others))


def interval(values: Sequence[tuple[str, float]]) -> str:
    """Return the mean of (question, value) pairs with a 95% bootstrap interval over questions."""
    if not values:
        return "none"
    questions, numbers = (
        np.array([name for name, _ in values]),
        np.array([own for _, own in values]),
    )
    resampling = Resampling.of(questions, NUM_RESAMPLES)
    weights = resampling.counts[:, np.searchsorted(resampling.questions, questions)]
    low, high = np.quantile(weights @ numbers / weights.sum(1), (0.025, 0.975))
    mean = numbers.mean()
    return f"{mean:.1%} ({low:.1%} to {high:.1%}; {len(values)})"


def shares(
    records: Sequence[Record], name: str, writer: str, keep: Callable[[Record, Record], bool]
) -> tuple[str, str, str]:
    """Return, of the segments of `writer` that `keep` takes and whose meaning is known: how many no other sample of the
    same writer agrees with; how many no sample of the target agrees with; the mean share of the target's that do."""
    alone, unmatched, matched = [], [], []
    for record in records:
        samples = record["samples"]
        for place, sample in enumerate(samples):
            if sample["writer"] != writer or sample[name] is None or not keep(record, sample):
                continue
            own, target = (agreement(samples, name, place, by) for by in (writer, "target"))
            question = record["question"]
            alone.append((question, float(own == 0)))
            unmatched.append((question, float(target == 0)))
            matched.append((question, target))
    return interval(alone), interval(unmatched), interval(matched)


def report(records: Sequence[Record]) -> Iterator[str]:
    """Yield the lines of the report, Markdown."""
    questions = {record["question"] for record in records}
    whole = [sample for record in records for sample in record["samples"]]
    cut = sum(sample["end"] == SegmentEnd.LENGTH for sample in whole)
    read = [sample for sample in whole if sample["text"] and sample["end"] != SegmentEnd.LENGTH]
    stated = sum(result_of(sample["text"]) is not None for sample in read)
    yield f"{len(records)} contexts of {len(questions)} questions; {len(whole)} segments, of which {cut} are cut. "
    yield f"{stated} of the {len(read)} whole segments whose texts are there state a result."
    drafts = [
        (sample["num_tokens"], sample["result"] is not None, _is_said(record, sample))
        for record in records
        for sample in record["samples"]
        if sample["writer"] == "draft"
    ]
    num_said = sum(num_tokens for num_tokens, _, is_said in drafts if is_said)
    of_whole = num_said / sum(num_tokens for num_tokens, is_whole, _ in drafts if is_whole)
    of_all = num_said / sum(num_tokens for num_tokens, *_ in drafts)
    yield f"Drafted tokens in segments with the result of a sample of the target: {of_whole:.0%} of those in whole "
    yield f"segments, {of_all:.0%} of all."
    for name in COMPARISONS:
        accepted = interval(list(_accepted(records, name)))
        yield f"With the true shares as p and q, by {name}, min(1, p/q) accepts {accepted} of the whole drafts. "
    yield "Share (95% interval over questions; segments)."
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for name in COMPARISONS:
        for writer in ("target", "draft"):
            kinds: list[tuple[str, Callable[[Record, Record], bool]]] = [("all", lambda *_: True)]
            if name == "result":
                kinds += [(f"after {low} to {high}", _at_depth(low, high)) for low, high in DEPTHS]
                kinds += [
                    (f"{low} to {high} tokens", _of_length(low, high)) for low, high in LENGTHS
                ]
                kinds += [
                    ("with a result", lambda _, sample: result_of(sample["text"]) is not None)
                ]
            for kind, keep in kinds:
                yield f"| {name} | {writer} | {kind} | {' | '.join(shares(records, name, writer, keep))} |"


def _accepted(records: Sequence[Record], name: str) -> Iterator[tuple[str, float]]:
    """Yield the question of each whole draft, and the probability with which perfect probes would accept it."""
    for record in records:
        for place, sample in enumerate(record["samples"]):
            if sample["writer"] == "draft" and sample[name] is not None:
                p, q = (agreement(record["samples"], name, place, by) for by in ("target", "draft"))
                yield record["question"], min(1.0, p / q) if q else float(p > 0)


def _is_said(record: Record, draft: Record) -> bool:
    """Whether a sample of the target has the draft's result."""
    return draft["result"] is not None and any(
        sample["result"] == draft["result"]
        for sample in record["samples"]
        if sample["writer"] == "target"
    )


def _at_depth(low: int, high: int) -> Callable[[Record, Record], bool]:
    return lambda record, _: low <= record["depth"] <= high


def _of_length(low: int, high: int) -> Callable[[Record, Record], bool]:
    return lambda _, sample: low <= sample["num_tokens"] <= high


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("collect")
    command.add_argument("work", type=Path, help="work folder of semspec train run")
    command.add_argument("file", type=Path, help="compressed JSON lines to write")
    commands.add_parser("report").add_argument("file", type=Path)
    options = parser.parse_args()
    if options.command == "collect":
        write_compressed(options.file, collect(options.work))
    else:
        print("\n".join(report(read_compressed(options.file))))


if __name__ == "__main__":
    main()
