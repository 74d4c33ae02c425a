"""Whether ways of comparing segments agree with a reader: `python -m studies.natural.agreement`.

`draw` writes pairs of segments after the same context, half of them with equal results. A reader then adds `same` to
each: true, false, or null where the reader cannot say. `judge` adds the probabilities by which the target says that
each of the two entails the other. `report` prints Cohen's kappa of each two ways.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import combinations
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
from semspec.training.config import PipelineConfig, load_config
from semspec.types import SegmentEnd
from studies.natural.labels import NUM_RESAMPLES, collect
from studies.natural.questions import PARTS, read
from studies.natural.rollouts import sampled

Record = dict[str, Any]
NUM_PAIRS = 100
THRESHOLD = 0.5
"""Least probability of both entailments, as in the clusters of `equivalence: {kind: model}`."""
WAYS = ("reader", "result", "model")


def draw(config: PipelineConfig, work: Path) -> Iterator[Record]:
    """Yield NUM_PAIRS pairs, each after another context if there are enough. The texts of a pair differ, the target
    wrote at least one of them, and neither is cut."""
    reasoning = {one.context.id: one.context.reasoning for one in sampled(config, work)}
    found: dict[bool, list[Record]] = {False: [], True: []}
    rng = Random(0)
    records = list(collect(work))
    rng.shuffle(records)
    for number, record in enumerate(records):
        whole = [own for own in record["samples"] if own["end"] != SegmentEnd.LENGTH]
        pairs = [
            pair
            for pair in combinations(whole, 2)
            if pair[0]["writer"] == "target"
            and pair[0]["end"] == pair[1]["end"]
            and normalized(pair[0]["text"]) != normalized(pair[1]["text"])
        ]
        for is_equal in (bool(number % 2), not number % 2):
            if chosen := [
                pair for pair in pairs if is_equal == (pair[0]["result"] == pair[1]["result"])
            ]:
                first, second = rng.choice(chosen)
                context = f"{record['question']}/{record['depth']}"
                found[is_equal].append(
                    {
                        "context": context,
                        "reasoning": reasoning[context],
                        "first": first["text"],
                        "second": second["text"],
                        "by": second["writer"],
                        "result": is_equal,
                    }
                )
                break
    for equal, different in zip(found[True], found[False], strict=False):
        yield from (equal, different)


def judge(config: PipelineConfig, records: Sequence[Record]) -> Iterator[Record]:
    """Yield the records with `entails`: the probabilities that the first entails the second, and the reverse."""
    problems = {
        row["id"]: row["problem"] for part in (*PARTS.values(), "report") for row in read(part)
    }
    lm = CausalLM.load(
        config.target.model, config.target.revision, config.target.device, config.target.dtype
    )
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
    yield "| ways | pairs that both call equal | only the first | only the second | neither | kappa (95%) |"
    yield "|---|---|---|---|---|---|"
    said = {
        "reader": [record["same"] for record in known],
        "result": [record["result"] for record in known],
        "model": [min(record["entails"]) >= THRESHOLD for record in known],
    }
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(known), (NUM_RESAMPLES, len(known)))
    for one, other in combinations(WAYS, 2):
        a, b = np.array(said[one], bool), np.array(said[other], bool)
        counts = [int(cell.sum()) for cell in (a & b, a & ~b, ~a & b, ~a & ~b)]
        kappas = [cohen_kappa_score(a[rows], b[rows]) for rows in drawn]
        low, high = np.nanquantile(kappas, (0.025, 0.975))
        cells = [
            f"{one}, {other}",
            *map(str, counts),
            f"{cohen_kappa_score(a, b):.2f} ({low:.2f} to {high:.2f})",
        ]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("draw", "judge", "report"):
        command = commands.add_parser(name)
        if name != "report":
            command.add_argument("config", type=Path, help="configuration of semspec train run")
        if name == "draw":
            command.add_argument("work", type=Path, help="its work folder")
        command.add_argument("file", type=Path, help="JSON lines of the pairs")
    options = parser.parse_args()
    if options.command == "draw":
        records = list(draw(load_config(options.config), options.work))[:NUM_PAIRS]
    else:
        records = [json.loads(line) for line in options.file.read_text().splitlines()]
    if options.command == "report":
        print("\n".join(report(records)))
        return
    if options.command == "judge":
        records = list(judge(load_config(options.config), records))
    with replacing(options.file) as partial:
        partial.write_text(
            "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        )


if __name__ == "__main__":
    main()
