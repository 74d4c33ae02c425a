"""pass@1 and the target's share of the tokens, for strategies that answer the same questions: `python -m
studies.natural.served`.

`run` answers with both models in this process, many questions at a time: it measures quality. `--sessions 1` measures
times too. A run that is killed goes on where it was. `report` prints the tables, from its folder or from the compressed
answers that `keep` writes.
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from semspec.files import file_digest
from semspec.release import RELEASE_FILE
from semspec.reporting.files import read_json, write_json
from semspec.reporting.progress import Reporter
from semspec.stack import StackConfig
from semspec.types import Message, Writer
from semspec_bench.configuration import parse
from semspec_bench.intervals import Interval, interval_of_difference, interval_of_share
from semspec_bench.record import ANSWERS, RECORDS, Record, read_records, write_answers
from semspec_bench.run import Comparison, Plan
from semspec_bench.runners.in_process import open_in_process
from semspec_bench.summary import by_question
from semspec_bench.tasks import Question, Task
from semspec_bench.tasks.mathematics import INSTRUCTION, Judge, stated_answer
from studies.natural.questions import read

Floats = NDArray[np.float64]
NUM_RESAMPLES = 1000
STRATEGIES = (
    "target",
    "draft",
    "token-level",
    "likelihood",
    *(
        f"semantic:{rule}:gamma={gamma}:segmentation={segmentation}"
        for segmentation in ("paragraph", "sentence")
        for rule in ("rule=sample", "rule=threshold")
        for gamma in (1, 2, 3)
    ),
    "spec-reason",
    "spec-thinking",
    "random:rule=sample",
    "semantic:probes=last-hidden",
)
"""The strategies that PREREGISTERED.md compares; the first is the baseline. One that a pair cannot run, for example for
lack of probes, is left out with the reason."""
COLUMNS = (
    "strategy",
    "pass@1",
    "minus target's",
    "questions gained, lost",
    "p",
    "tokens by the target",
    "mean tokens",
)
TIMED = ("mean time", "times the target's speed")
COMPUTED = ("drafted tokens accepted", "computed speed")


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Times in ms of a token of one stream, from which the speed of a strategy is computed by its numbers of tokens."""

    draft: float
    read: float
    """Time in which the target reads a token of a drafted segment."""
    write: float
    """Time in which the target writes a token."""


def task(part: Any, limit: int | None) -> Task:
    """Return the first `limit` questions of a part as a task graded by math-verify."""
    judge = Judge()
    questions = [
        Question(row["id"], (Message("user", f"{row['problem']}\n{INSTRUCTION}"),), row["answer"])
        for row in read(part)
    ]
    return Task(
        f"math500-{part}",
        questions[:limit],
        lambda reference, text: judge.is_equivalent(reference, stated_answer(text)),
    )


def make_plan(options: argparse.Namespace) -> Plan:
    """Return the plan of `run`. Raises: FileNotFoundError when --release has no `pair.json`."""
    labels = [label for text in options.strategy or STRATEGIES for label in text.split(",")]
    return Plan(
        task(options.part, options.limit),
        [parse(f"in-process/{label}") for label in labels],
        Path("+".join(Path(model).stem for model in (options.draft, options.target))),
        options.temperature,
        0.95,
        options.max_tokens,
        options.samples,
        release=file_digest(options.release / RELEASE_FILE) if options.release else None,
        num_sessions=options.sessions,
    )


async def run(options: argparse.Namespace) -> None:
    """Answer every question by every strategy. Finished answers are kept."""
    models = {"draft": options.draft, "target": options.target}
    plan = make_plan(options)
    comparison = Comparison(plan, options.output, Reporter())
    facts = read_json(options.output / "run.json")
    facts["environment"] |= {"models": models, "dtype": options.dtype}
    write_json(options.output / "run.json", facts)
    dtypes = {
        f"SEMSPEC_{role.upper()}_DTYPE": options.dtype
        or ("packed" if model.endswith(".gguf") else "auto")
        for role, model in models.items()
    }
    config = StackConfig(options.draft, options.target, options.release, environment=dtypes)
    async with open_in_process(config, options.sessions) as runner:
        await comparison.run({"in-process": runner}, plan.configurations)


def report(
    records: Sequence[Record], is_timed: bool, times: TokenTimes | None = None
) -> Iterator[str]:
    """Yield the lines of the table over the questions that all strategies have answered, Markdown.

    A question is gained or lost when the strategy has more or fewer right answers to it than the target; the sign test
    on these is McNemar's exact test where each question has one answer.
    """
    answers = by_strategy(records)
    target = answers["target"]
    questions = np.unique([record.question for record in target], return_inverse=True)[1]
    num_questions = int(questions.max()) + 1
    drawn = np.random.default_rng(0).integers(0, num_questions, (NUM_RESAMPLES, num_questions))
    yield f"{num_questions} questions, {len(target)} answers by each strategy. 95% intervals over questions."
    yield ""
    columns = COLUMNS + (TIMED if is_timed else ()) + (COMPUTED if times else ())
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for label, rows in answers.items():
        cells = _cells(label, rows, target, questions, drawn)
        if is_timed:
            cells += _timed(rows, target, questions, drawn)
        if times:
            cells += _computed(label, rows, times)
        yield f"| {' | '.join(cells)} |"


def by_strategy(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the answers of each strategy, the target first, to the questions that all have answered, in one order.
    Raises: SystemExit when there are none, or none of the target's."""
    answers: dict[str, dict[tuple[str, int], Record]] = {}
    for record in records:
        label = record.label.removeprefix("in-process/")
        answers.setdefault(label, {})[record.question, record.sample] = record
    keys = sorted(set.intersection(*map(set, answers.values()))) if "target" in answers else []
    if not keys:
        raise SystemExit("no question has been answered by all strategies and the target")
    labels = sorted(answers, key=lambda label: label != "target")
    return {label: [answers[label][key] for key in keys] for label in labels}


def _cells(
    label: str,
    rows: Sequence[Record],
    target: Sequence[Record],
    questions: NDArray[np.intp],
    drawn: NDArray[np.int64],
) -> list[str]:
    right, base = (_means(side, "is_right", questions) for side in (rows, target))
    gained, lost = int((right > base).sum()), int((right < base).sum())
    p = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    by_target, total = (
        _means(rows, name, questions) for name in ("num_target_tokens", "num_tokens")
    )
    shares = _resampled(by_target[drawn].sum(1) / total[drawn].sum(1))
    difference = _cell((right - base).mean(), interval_of_difference(right, base), "{:+.1%}")
    shown_p = "<0.001" if p < 0.001 else f"{p:.3f}"
    compared = ["", "", ""] if label == "target" else [difference, f"{gained}, {lost}", shown_p]
    return [
        label,
        _cell(right.mean(), interval_of_share(right), "{:.1%}"),
        *compared,
        _cell(by_target.sum() / total.sum(), shares, "{:.1%}"),
        f"{total.mean():.0f}",
    ]


def _timed(
    rows: Sequence[Record],
    target: Sequence[Record],
    questions: NDArray[np.intp],
    drawn: NDArray[np.int64],
) -> list[str]:
    latency, base = (_means(side, "latency_s", questions) for side in (rows, target))
    speed_up = _resampled(base[drawn].mean(1) / latency[drawn].mean(1))
    return [f"{latency.mean():.1f} s", _cell(base.mean() / latency.mean(), speed_up, "{:.2f}")]


def _computed(label: str, rows: Sequence[Record], times: TokenTimes) -> list[str]:
    """Return the cells of `COMPUTED`."""
    if (speed := computed_speed(label, rows, times)) is None:
        return ["", ""]
    drafted = sum(map(num_drafted, rows))
    kept = sum(row.num_tokens - (row.num_target_tokens or 0) for row in rows)
    return [f"{kept / drafted:.0%}" if drafted else "", f"{speed:.2f}"]


def computed_speed(label: str, rows: Sequence[Record], times: TokenTimes) -> float | None:
    """Return how many times as fast as the target alone a strategy writes its tokens.

    None where the traces do not tell all that was drafted and read: of tokens, of several segments at a time, or ahead.
    """
    is_known = all(row.trace and not row.num_proposed_tokens for row in rows)
    if not is_known or "gamma" in label or label.startswith("spec-thinking"):
        return None
    written = sum(row.num_target_tokens or 0 for row in rows)
    read_ms = 0.0 if label == "draft" else times.read
    spent_ms = sum(map(num_drafted, rows)) * (times.draft + read_ms) + written * times.write
    return sum(row.num_tokens for row in rows) * times.write / spent_ms


def without_texts(record: Record) -> Record:
    """Return a record with who wrote each segment, the verdict and the numbers of tokens, but no texts."""
    trace = []
    for segment in record.trace:
        kept = {name: segment[name] for name in ("writer", "num_tokens", "verdict")}
        if rejected := segment.get("rejected"):
            kept["rejected"] = {"num_tokens": rejected["num_tokens"]}
        trace.append(kept)
    return replace(record, trace=trace)


def num_drafted(record: Record) -> int:
    """Return the number of tokens of the recorded drafts of segments, accepted or not. Drafts after a rejected one, and
    those made ahead in vain, are not recorded."""
    drafts = (
        segment if segment["writer"] == Writer.DRAFT else segment.get("rejected")
        for segment in record.trace
    )
    return sum(draft["num_tokens"] for draft in drafts if draft)


def _means(rows: Sequence[Record], name: str, questions: NDArray[np.intp]) -> Floats:
    return by_question(np.array([getattr(row, name) for row in rows], dtype=np.float64), questions)


def _resampled(values: Floats) -> Interval:
    low, high = np.quantile(values, (0.025, 0.975))
    return Interval(low, high)


def _cell(value: float, interval: Interval, form: str) -> str:
    return f"{form} ({form} to {form})".format(value, interval.low, interval.high)


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run")
    command.add_argument("draft", help="folder or GGUF file of the draft")
    command.add_argument("target", help="folder or GGUF file of the target")
    command.add_argument("output", type=Path, help="folder of the run")
    command.add_argument("--dtype", help="numeric form of both; unset: GGUF files are packed")
    command.add_argument("--release", type=Path, help="folder with pair.json, calibration, probes")
    command.add_argument("--part", choices=("learn", "tune", "report"), default="report")
    command.add_argument("--strategy", action="append", help="labels as in semspec bench")
    command.add_argument("--temperature", type=float, default=0.6)
    command.add_argument("--samples", type=int, default=2)
    command.add_argument("--limit", type=int, help="number of questions")
    command.add_argument("--max-tokens", type=int, default=1024)
    command.add_argument("--sessions", type=int, default=16, help="concurrent questions")
    command = commands.add_parser("keep")
    command.add_argument("run", type=Path, help="folder of the run")
    command.add_argument("file", type=Path, help=f"file to write, NAME{ANSWERS}")
    command = commands.add_parser("report")
    command.add_argument("run", type=Path, help=f"folder of the run, or NAME{ANSWERS}")
    command.add_argument("--timed", action="store_true", help="one answer at a time was written")
    options = parser.parse_args()
    if options.command == "run":
        asyncio.run(run(options))
        return
    records = read_records(options.run / RECORDS if options.run.is_dir() else options.run)
    if options.command == "keep":
        write_answers(options.file, map(without_texts, records), with_traces=True)
    else:
        print("\n".join(report(records, options.timed)))


if __name__ == "__main__":
    main()
