"""Whether ways of comparing segments agree with a reader: `python -m studies.natural.agreement`.

`draw` writes pairs of segments after the same context, about half of them with equal results. A reader
then adds `same` to each: true, false, or null where the reader cannot say. `judge` adds the probabilities by which the
target says that each of the two entails the other. `report` prints Cohen's kappa of each two ways.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from sklearn.metrics import cohen_kappa_score

from semspec.clustering.entailment import normalized
from semspec.clustering.equivalence import Alternatives
from semspec.clustering.language_model import EntailmentPrompt
from semspec.engine.causal_lm import CausalLM
from semspec.reporting.files import replacing
from studies.natural.files import read_compressed
from studies.natural.labels import NUM_RESAMPLES
from studies.natural.questions import PARTS, read

Record = dict[str, Any]
NUM_PAIRS, PER_CONTEXT = 100, 2
THRESHOLD = 0.5
"""Least probability of both entailments, as in the clusters of `equivalence: {kind: model}`."""
WAYS = ("reader", "result", "model")


def draw(records: Sequence[Record]) -> Iterator[Record]:
    """Yield pairs from the records of `studies.natural.beginnings keep`, up to PER_CONTEXT with equal results and as
    many with different ones after a context. The texts of a pair differ, the target wrote the first, and neither is
    cut."""
    rng = Random(0)
    for record in rng.sample(records, len(records)):
        texts = {
            normalized(own["text"]): own for own in record["samples"] if own["result"] is not None
        }
        pairs = [
            (first, second)
            for first, second in combinations(texts.values(), 2)
            if first["writer"] == "target" and first["end"] == second["end"]
        ]
        for is_equal in (True, False):
            found = [pair for pair in pairs if is_equal == (pair[0]["result"] == pair[1]["result"])]
            for first, second in rng.sample(found, min(PER_CONTEXT, len(found))):
                yield {
                    "context": f"{record['question']}/{record['depth']}",
                    "reasoning": record["reasoning"],
                    "first": first["text"],
                    "second": second["text"],
                    "by": second["writer"],
                    "result": is_equal,
                }


def judge(model: str, dtype: str, records: Sequence[Record]) -> Iterator[Record]:
    """Yield the records with `entails`: the probabilities that the first entails the second, and the reverse."""
    problems = {
        row["id"]: row["problem"] for part in (*PARTS.values(), "report") for row in read(part)
    }
    lm = CausalLM.load(model, None, "cpu", dtype)
    prompt = EntailmentPrompt(lm, 2)
    for record in records:
        question = record["context"].rpartition("/")[0]
        first, second = record["first"], record["second"]
        context = Alternatives(question, problems[question], record["reasoning"], ())
        yield record | {
            "entails": prompt.probabilities(context, [(first, second), (second, first)])
        }


def report(records: Sequence[Record]) -> Iterator[str]:
    """Yield the lines of the report, Markdown."""
    known = [record for record in records if record.get("same") is not None]
    yield f"{len(records)} pairs, of which the reader has compared {len(known)}."
    yield ""
    yield "| ways | both call equal | only the first | only the second | neither | kappa (95% over contexts) |"
    yield "|---|---|---|---|---|---|"
    said = {
        "reader": [record["same"] for record in known],
        "result": [record["result"] for record in known],
        "model": [min(record["entails"]) >= THRESHOLD for record in known],
    }
    contexts = np.unique([record["context"] for record in known], return_inverse=True)[1]
    rows_of = [np.flatnonzero(contexts == number) for number in range(contexts.max() + 1)]
    rng = np.random.default_rng(0)
    drawn = [
        np.concatenate([rows_of[number] for number in rng.integers(0, len(rows_of), len(rows_of))])
        for _ in range(NUM_RESAMPLES)
    ]
    by = np.array([record.get("by") for record in known])
    everywhere = np.ones(len(known), bool)
    compared = [
        (f"{first}, {second}", first, second, everywhere) for first, second in combinations(WAYS, 2)
    ]
    compared += [
        (
            f"reader, result; a segment of the target and one of the {writer}",
            *WAYS[:2],
            by == writer,
        )
        for writer in ("target", "draft")
        if (by == writer).any()
    ]
    for label, first, second, is_kept in compared:
        a, b = np.array(said[first], bool), np.array(said[second], bool)
        counts = [int((cell & is_kept).sum()) for cell in (a & b, a & ~b, ~a & b, ~a & ~b)]
        kept = [rows[is_kept[rows]] for rows in drawn]
        kappas = [cohen_kappa_score(a[rows], b[rows]) for rows in kept if len(rows)]
        low, high = np.nanquantile(kappas, (0.025, 0.975))
        kappa = cohen_kappa_score(a[is_kept], b[is_kept])
        yield f"| {' | '.join([label, *map(str, counts), f'{kappa:.2f} ({low:.2f} to {high:.2f})'])} |"


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("draw", "judge", "report"):
        command = commands.add_parser(name)
        if name == "draw":
            command.add_argument("contexts", type=Path, help="file of beginnings keep")
        if name == "judge":
            command.add_argument("model", help="folder or GGUF file of the target")
            command.add_argument("--dtype", default="packed", help="its numeric form")
        command.add_argument("file", type=Path, help="JSON lines of the pairs")
    options = parser.parse_args()
    if options.command == "draw":
        records = list(islice(draw(read_compressed(options.contexts)), NUM_PAIRS))
    else:
        records = [json.loads(line) for line in options.file.read_text().splitlines()]
    if options.command == "report":
        print("\n".join(report(records)))
        return
    if options.command == "judge":
        records = list(judge(options.model, options.dtype, records))
    with replacing(options.file) as partial:
        partial.write_text(
            "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        )


if __name__ == "__main__":
    main()
