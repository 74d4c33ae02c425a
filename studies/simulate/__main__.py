"""`python -m studies.simulate`: throughput and latency of a layout of GPUs, from tables of step times."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semspec.errors import InvalidRequest, SemspecError
from semspec_bench.pace.counts import MAX_LATE_SHARE
from semspec_bench.pace.table import PACES, Pace, load_pace
from semspec_bench.record import RECORDS, read_records
from studies.simulate.engines import Host
from studies.simulate.simulator import STRATEGIES, Result, Setup, simulate
from studies.simulate.validation import ALLOWED, Comparison, host_of, load_paced_run, validate
from studies.simulate.workload import Answer, Workload, recorded

if TYPE_CHECKING:
    from semspec.reporting.document import Table

RESULTS = Path(__file__).parent / "results"
HEADER = (
    "paced run", "sessions", "dilation", "configuration", "answers", "measured tokens/s", "simulated tokens/s",
    "difference", "measured latency s", "simulated latency s", "late steps",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits 1 when a prediction does not hold, 2 on bad input."""
    options = _parser().parse_args(arguments)
    try:
        sys.exit(options.command(options))
    except SemspecError as error:
        _say(f"simulate: {error}")
        sys.exit(2)
    except OSError as error:
        _say(f"simulate: {error.filename or 'the disk'}: {error.strerror or error}")
        sys.exit(1)


def one(options: argparse.Namespace) -> int:
    """Simulate one layout, and print what it does."""
    pace = _pace(options)
    setup = Setup(
        pace,
        options.strategy,
        options.sessions,
        options.gamma,
        options.ahead == "on",
        options.drafts,
        _host(options),
    )
    result = simulate(setup, _answers(options))
    print(
        f"paced {pace.name}, simulated: {setup.strategy}, {setup.num_sessions} sessions, {setup.num_gpus} GPUs"
    )
    for name, value in _figures(result, options.price).items():
        print(f"  {name:22} {value}")
    return 0


def _figures(result: Result, price: float) -> dict[str, str]:
    busy = ", ".join(f"{writer} {share:.0%}" for writer, share in result.utilisation.items())
    return {
        "tokens/s": f"{result.tokens_per_s:,.1f}",
        "latency s, p50 / p95": f"{result.percentile_s(50):.3f} / {result.percentile_s(95):.3f}",
        "target ratio": f"{result.target_ratio:.3f}",
        "busy": busy,
        "$ a million tokens": f"{result.cost_per_million(price):.2f}, at $ {price:g} a GPU and hour",
    }


def compare(options: argparse.Namespace) -> int:
    """Compare simulations with paced runs; 1 if one differs by more than `ALLOWED`, or its host was too slow."""
    from semspec.reporting.document import Table, write_text
    from semspec.reporting.files import write_json

    runs = [load_paced_run(folder) for folder in options.runs]
    host = host_of(load_paced_run(options.host or options.runs[0]))
    found = list(validate(runs, host))
    table = Table(HEADER, tuple(map(_compared, found))).as_markdown()
    print(table, end="")
    print(
        f"host, undilated, ms: call {host.call_ms:.2f}, round {host.judge_ms:.2f}, answer {host.answer_ms:.2f}"
    )
    if options.output:
        write_text(options.output / "validation.md", table)
        write_json(
            options.output / "validation.json",
            {"host": asdict(host), "rows": list(map(_as_json, found))},
        )
    return int(not all(comparison.holds for comparison in found))


def _compared(one: Comparison) -> tuple[str, ...]:
    measured = one.run.of(one.label)
    return (
        f"paced {one.run.pace.name}",
        str(one.run.num_sessions),
        f"{one.run.dilation:g}",
        one.label,
        str(one.num_answers),
        f"{one.measured_tokens_per_s:,.1f}",
        f"{one.simulated.tokens_per_s:,.1f}",
        f"{one.difference:+.1%}{f' (more than {ALLOWED:.0%})' if abs(one.difference) > ALLOWED else ''}",
        f"{sum(record.latency_s for record in measured) / len(measured):.3f}",
        f"{one.simulated.mean_latency_s:.3f}",
        f"{one.late_share:.1%}{'' if one.late_share <= MAX_LATE_SHARE else ' (no measurement)'}",
    )


def _as_json(one: Comparison) -> dict[str, Any]:
    return dict(zip(HEADER, _compared(one), strict=True)) | {"holds": one.holds}


def two_gpus(options: argparse.Namespace) -> int:
    """Write the table of ways to use two H100."""
    from studies.simulate.layouts import MIDDLE, RANGE, layout_table, rows

    found = list(rows(_workload(options), _host(options), _say))
    acceptance, segment_tokens, _ = MIDDLE
    workload = replace(_workload(options), acceptance=acceptance, segment_tokens=segment_tokens)
    _write(options, layout_table(found), {"workload": asdict(workload), "range": RANGE})
    return 0


def _write(options: argparse.Namespace, table: "Table", assumptions: dict[str, Any]) -> None:
    """Write the table as `layouts.md`, and all numbers with the assumptions as `layouts.json`."""
    from semspec.reporting.document import write_text
    from semspec.reporting.files import write_json

    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    facts = {"label": "simulated", **assumptions, "host": asdict(_host(options)), "rows": rows}
    write_text(options.output / "layouts.md", table.as_markdown())
    write_json(options.output / "layouts.json", facts)
    _say(f"written: {options.output}")


def _pace(options: argparse.Namespace) -> Pace:
    pace = load_pace(options.pace)
    return pace if options.targets is None else replace(pace, num_targets=options.targets)


def _host(options: argparse.Namespace) -> Host:
    for name in ("call_ms", "judge_ms", "answer_ms"):
        if not 0 <= getattr(options, name) < 1e6:
            raise InvalidRequest(
                f"--{name.replace('_', '-')} is {getattr(options, name):g}; choose at least 0"
            )
    return Host(options.call_ms, options.judge_ms, options.answer_ms)


def _workload(options: argparse.Namespace) -> Workload:
    return Workload(
        options.segment_tokens, options.acceptance, options.answer_tokens, options.prompt_tokens
    )


def _answers(options: argparse.Namespace) -> list[Answer]:
    if options.run:
        return recorded(
            read_records(options.run if options.run.is_file() else options.run / RECORDS),
            options.label,
        )
    return _workload(options).answers(options.answers, options.seed)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.simulate", description=__doc__)
    commands = parser.add_subparsers(required=True)
    alone = commands.add_parser("run", help="one layout, strategy and load")
    alone.set_defaults(command=one)
    add = alone.add_argument
    add(
        "--pace",
        default="h100-1.5b-32b",
        metavar="NAME",
        help=f"{', '.join(PACES)}, or DRAFT.csv,TARGET.csv",
    )
    add("--strategy", choices=STRATEGIES, default="semantic")
    add("--sessions", type=int, default=1, help="answers at a time")
    add("--gamma", type=int, default=1, help="segments drafted in a round")
    add("--ahead", choices=("on", "off"), default="on", help="draft-ahead")
    add("--drafts", type=int, default=1, help="replicas of the draft")
    add(
        "--targets",
        type=int,
        choices=range(1, 65),
        metavar="N",
        help="replicas of the target (default: the pace's)",
    )
    add("--answers", type=int, default=32, help="answers to write")
    add("--seed", type=int, default=0)
    add(
        "--run",
        type=Path,
        metavar="RUN",
        help="bench run, or a report's NAME.jsonl.gz, whose answers are taken instead of stated ones",
    )
    add("--label", default="semantic", help="configuration of --run")
    add("--price", type=float, default=3.5, help="$ a GPU and hour")
    _add_stated(alone)
    check = commands.add_parser(
        "validate", help=f"compare with paced runs; 1 if one differs by over {ALLOWED:.0%}%"
    )
    check.set_defaults(command=compare)
    check.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of `semspec bench run --pace`"
    )
    check.add_argument(
        "--host",
        type=Path,
        metavar="RUN",
        help="one session, for host times (default: the first run)",
    )
    check.add_argument("--output", type=Path, help="folder for validation.md and validation.json")
    study = commands.add_parser(
        "layouts",
        help="table of ways to use two H100; acceptance and segments are a range of its own",
    )
    study.set_defaults(command=two_gpus)
    study.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    _add_stated(study)
    return parser


def _add_stated(parser: argparse.ArgumentParser) -> None:
    """Options with what is stated rather than measured."""
    add, workload, host = parser.add_argument, Workload(), Host()
    add(
        "--segment-tokens",
        type=int,
        default=workload.segment_tokens,
        help="mean length of a segment",
    )
    add(
        "--acceptance",
        type=float,
        default=workload.acceptance,
        help="share of drafted segments accepted",
    )
    add("--answer-tokens", type=int, default=workload.answer_tokens)
    add("--prompt-tokens", type=int, default=workload.prompt_tokens)
    add("--call-ms", type=float, default=host.call_ms, help="host time of a call")
    add(
        "--judge-ms",
        type=float,
        default=host.judge_ms,
        help="host time of a round: judging, keeping segments",
    )
    add(
        "--answer-ms",
        type=float,
        default=host.answer_ms,
        help="host time of an answer: HTTP, tokenizing",
    )


if __name__ == "__main__":
    main()
