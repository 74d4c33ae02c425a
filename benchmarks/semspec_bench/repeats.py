"""Tabulates acceptance by the number of earlier repeats: `python -m semspec_bench.repeats RUN... --output FOLDER`.

RUN is a folder of `semspec bench run`, which goes on where it stopped. A configuration with `repeats=allowed` runs with
the guard against loops switched off, for the comparison:

    semspec bench run --task math500 --temperature 0.6 --max-tokens 1000 --limit 200 --pair PAIR \\
        --strategy in-process/target,in-process/likelihood,in-process/likelihood:repeats=allowed

A drafted segment has as many earlier repeats as segments of its answer before it have its text, in the form in which
the guard compares texts.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from semspec.decoding.repeats import MOST_OCCURRENCES, normalised
from semspec.errors import InvalidRequest
from semspec.reporting.document import Table
from semspec.reporting.files import write_json
from semspec_bench.configuration import parse
from semspec_bench.intervals import wilson
from semspec_bench.record import RECORDS, Json, Record, read_records

MOST_COUNTED = 3
"""The last row has drafted segments with this many earlier repeats or more."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """Decisions of one configuration on drafted segments, by the number of earlier repeats."""

    label: str
    is_guarded: bool
    num_answers: int
    num_cut: int
    """Answers that reached their budget."""
    num_judged: tuple[int, ...]
    """Drafted segments with 0, 1, ... and `MOST_COUNTED` or more earlier repeats."""
    num_accepted: tuple[int, ...]
    num_refused: int
    """Drafted segments that the guard refused."""
    num_loops: int
    """Among them those that are a loop in themselves."""

    @property
    def num_third(self) -> int:
        """Accepted drafts whose text stood in the answer twice or more."""
        return sum(self.num_accepted[MOST_OCCURRENCES:])


def count(label: str, records: Sequence[Record]) -> Repeats:
    """Count the decisions of a configuration's answers."""
    judged, accepted, refusals = Counter[int](), Counter[int](), list[Json]()
    for record in records:
        texts = Counter[str]()
        for row in record.trace:
            if row["verdict"] != "unjudged":
                drafted = row["text"] if row["verdict"] == "accepted" else row["rejected"]["text"]
                num_earlier = min(texts[normalised(drafted)], MOST_COUNTED)
                judged[num_earlier] += 1
                accepted[num_earlier] += row["verdict"] == "accepted"
            texts[normalised(row["text"])] += 1
            refusals += [row] if row.get("repeats") is not None else []
    return Repeats(
        label=label,
        is_guarded=parse(label).knobs.get("repeats") != "allowed",
        num_answers=len(records),
        num_cut=sum(record.finish_reason == "length" for record in records),
        num_judged=tuple(judged[number] for number in range(MOST_COUNTED + 1)),
        num_accepted=tuple(accepted[number] for number in range(MOST_COUNTED + 1)),
        num_refused=len(refusals),
        num_loops=sum(row["repeats"] == row["index"] for row in refusals),
    )


def count_runs(folders: Sequence[Path]) -> list[Repeats]:
    """Count by configuration, over all runs. Raises: InvalidRequest when they hold no drafted segment."""
    records = [record for folder in folders for record in read_records(folder / RECORDS)]
    labels = dict.fromkeys(record.label for record in records)
    counted = [
        count(label, [record for record in records if record.label == label]) for label in labels
    ]
    judging = [repeats for repeats in counted if sum(repeats.num_judged)]
    if not judging:
        names = ", ".join(map(str, folders))
        raise InvalidRequest(
            f"{names} contains no drafted segment", remedy="run a strategy that judges segments"
        )
    return judging


def table(counted: Sequence[Repeats]) -> Table:
    """Return the share of accepted drafts by the number of earlier repeats."""
    rows = [
        [
            repeats.label if not number else "",
            f"{number}{' or more' if number == MOST_COUNTED else ''}",
            str(num_judged),
            str(num_accepted),
            _share(num_accepted, num_judged),
        ]
        for repeats in counted
        for number, (num_judged, num_accepted) in enumerate(
            zip(repeats.num_judged, repeats.num_accepted, strict=True)
        )
    ]
    return Table(
        ("configuration", "earlier repeats", "judged", "accepted", "share, 95% interval"), rows
    )


def _share(num_accepted: int, num_judged: int) -> str:
    if not num_judged:
        return ""
    interval = wilson(num_accepted / num_judged, num_judged)
    return f"{num_accepted / num_judged:.0%} ({interval.low:.0%} to {interval.high:.0%})"


def main(arguments: Sequence[str]) -> int:
    """Return the exit status: 1 if a third repeat was accepted with the guard, 2 for runs that cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m semspec_bench.repeats",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--output", type=Path, help="folder for repeats.json, all counts (default: print only)"
    )
    options = parser.parse_args(arguments)
    try:
        counted = count_runs(options.runs)
    except InvalidRequest as error:
        print(f"semspec_bench.repeats: {error}", file=sys.stderr)
        return 2
    if options.output:
        write_json(options.output / "repeats.json", [asdict(repeats) for repeats in counted])
    print(table(counted).as_markdown(), end="")
    return int(any(repeats.num_third for repeats in counted if repeats.is_guarded))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
