"""The command `semspec bench`: speed-up and quality of strategies, compared with the target alone and with peers."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from semspec.errors import InvalidRequest, Mismatch, SemspecError
from semspec.reporting.progress import Reporter
from semspec.stack import BUNDLED_PAIR
from semspec.training.cli import quiet_libraries
from semspec_bench.configuration import Configuration, parse
from semspec_bench.environment import Say, answer_tokens
from semspec_bench.reproduce import add_parser
from semspec_bench.run import Plan, default_folder, run_plans
from semspec_bench.summary import load_run
from semspec_bench.tasks import TASKS, Task, load_task

SUITE = (
    "target", "draft", "semantic", "likelihood", "semantic:rewrite=token-level", "token-level:num_speculative_tokens=8",
    "in-process/token-level:num_speculative_tokens=8", "spec-reason", "spec-thinking", "semantic:probes=last-hidden",
    "semantic:probes=surprisal", "random:rule=sample", "transformers/assisted",
)  # fmt: skip
"""All strategies with the pair's served settings, and a peer. token-level: the best of 2, 3, 4, 6 and 8 on `demo-tune`,
also in one process, where its many calls cost least. `random` uses the rule `sample`, since random
probabilities pass the pair's low threshold almost always."""
DEFAULT = "target,draft,semantic"
RESULTS = Path("benchmarks/results")
MAX_SESSIONS = 128


def main(arguments: Sequence[str]) -> None:
    """`semspec bench run|report|suite|reproduce`. Exits 1 on a failure that a retry may fix, 2 on any other."""
    options = parser().parse_args(arguments)
    quiet_libraries()
    reporter = Reporter()
    try:
        options.command(options, reporter)
    except (InvalidRequest, Mismatch) as error:
        reporter.say(f"semspec bench: {error}")
        sys.exit(2)
    except SemspecError as error:
        reporter.say(
            f"{getattr(error, 'log_tail', '')}\nsemspec bench: {error}; {options.after}".lstrip()
        )
        sys.exit(1)
    except OSError as error:  # a full disk, a folder of another user
        path = error.filename or "the disk"
        reporter.say(f"semspec bench: {path}: {error.strerror or error}; {options.after}")
        sys.exit(1)
    except KeyboardInterrupt:
        reporter.say(f"semspec bench: stopped; {options.after}")
        sys.exit(130)


def run(options: argparse.Namespace, reporter: Reporter) -> None:
    """Perform one run, and print its table."""
    plan = _plan(options, options.task, options.temperature, reporter.say)
    plan = replace(plan, num_sessions=_num_sessions(options))
    folder = options.output or default_folder(plan)
    run_plans({folder: plan}, reporter)
    if plan.configurations[0].method != "target":
        reporter.say(f"{folder}: no report without the target")
        return
    _report([folder], options, folder / "report", reporter)
    print((folder / "report" / f"{folder.resolve().name}.md").read_text(), end="")


def report(options: argparse.Namespace, reporter: Reporter) -> None:
    """Write the report of one or several runs."""
    _report(options.runs, options, options.output, reporter)


def suite(options: argparse.Namespace, reporter: Reporter) -> None:
    """Run all strategies on the demo language, sampled and greedy, and write the report."""
    options.strategy = options.strategy or [",".join(SUITE)]
    sampled, greedy = (
        _plan(options, "demo", temperature, reporter.say) for temperature in (0.6, 0.0)
    )
    plans = {
        default_folder(sampled) / "sampled": sampled,
        default_folder(greedy) / "greedy": greedy,
    }
    run_plans(plans, reporter)
    _report(list(plans), options, options.output, reporter)


def _report(
    runs: Sequence[Path], options: argparse.Namespace, output: Path, reporter: Reporter
) -> None:
    from semspec_bench.report.page import write_report  # imports matplotlib

    write_report([load_run(folder) for folder in runs], output, probes=options.probes)
    reporter.say(f"{output}/report.html")


def _plan(options: argparse.Namespace, task_name: str, temperature: float | None, say: Say) -> Plan:
    task = load_task(task_name, data=options.data, limit=options.limit)
    return Plan(
        task=task,
        configurations=_configurations(options.strategy or [DEFAULT]),
        pair=options.pair,
        temperature=task.temperature if temperature is None else temperature,
        top_p=task.top_p,
        max_tokens=options.max_tokens or _budget(task, options, say),
        samples=options.samples,
        seed=options.seed,
        gateway=options.gateway,
        vllm=options.vllm,
    )


def _num_sessions(options: argparse.Namespace) -> int:
    """Raises: InvalidRequest."""
    if not 1 <= options.sessions <= MAX_SESSIONS:
        raise InvalidRequest(
            f"--sessions is {options.sessions}", remedy=f"choose 1 to {MAX_SESSIONS}"
        )
    sequential = [
        configuration.label
        for configuration in _configurations(options.strategy or [DEFAULT])
        if configuration.runner not in ("gateway", "in-process")
    ]
    if sequential and options.sessions > 1:
        raise InvalidRequest(
            f"{sequential[0]} answers one question at a time", remedy="leave --sessions out"
        )
    return int(options.sessions)


def _budget(task: Task, options: argparse.Namespace, say: Say) -> int:
    """The published token budget of the task, but at most what a local pair's windows leave."""
    return task.max_tokens if options.gateway else answer_tokens(options.pair, task.max_tokens, say)


def _configurations(texts: Sequence[str]) -> list[Configuration]:
    """The distinct configurations in order, beginning with the target alone; or a single one.
    Raises: InvalidRequest."""
    labels = [label.strip() for text in texts for label in text.split(",") if label.strip()]
    configurations = [parse(label) for label in dict.fromkeys(labels)]
    if len(configurations) > 1 and configurations[0].method != "target":
        raise InvalidRequest(
            f"{labels[0]} cannot be the baseline",
            remedy=f"name the target alone first, e.g. target,{labels[0]}",
        )
    return configurations


def parser() -> argparse.ArgumentParser:
    """The parser of the command's arguments."""
    found = argparse.ArgumentParser(prog="semspec bench", description=__doc__)
    found.set_defaults(after="finished generations are kept, run the same command to resume")
    commands = found.add_subparsers(required=True)
    run_parser = commands.add_parser(
        "run", help="configurations side by side on one task, interleaved, resumable"
    )
    run_parser.set_defaults(command=run)
    run_parser.add_argument("--task", required=True, help=f"one of {', '.join(TASKS)}")
    run_parser.add_argument(
        "--temperature",
        type=float,
        help="sampling temperature, 0 is greedy (default: as published for the task)",
    )
    run_parser.add_argument(
        "--output", type=Path, help="folder of the run (default: a folder in .work/bench)"
    )
    run_parser.add_argument(
        "--sessions",
        type=int,
        default=1,
        metavar="N",
        help="concurrent questions; above 1 only quality is reported",
    )
    _add_run_options(run_parser, limit=None)
    _add_report_options(run_parser)
    suite_parser = commands.add_parser(
        "suite", help="all strategies on the demo language, sampled and greedy, and the report"
    )
    suite_parser.set_defaults(command=suite)
    suite_parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS / f"{datetime.now(UTC):%Y-%m-%d}",
        help="folder of the report",
    )
    _add_run_options(suite_parser, limit=100)
    _add_report_options(suite_parser)
    add_parser(commands)
    report_parser = commands.add_parser("report", help="tables and figures of finished runs")
    report_parser.set_defaults(command=report)
    report_parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    report_parser.add_argument(
        "--output", type=Path, default=Path(".work/bench/report"), help="folder of the report"
    )
    _add_report_options(report_parser)
    return found


def _add_run_options(parser: argparse.ArgumentParser, limit: int | None) -> None:
    add = parser.add_argument
    add(
        "--strategy",
        action="append",
        metavar="LABEL[,LABEL]",
        help="strategy[:knob=value...], runner/strategy or peer/method; the first is the baseline, e.g. "
        "target,semantic:threshold=0.3:gamma=2,in-process/semantic,transformers/assisted,vllm/ngram",
    )
    add(
        "--data",
        help="JSONL file or hub dataset with the task's questions (default: the task's own)",
    )
    add("--limit", type=int, default=limit, help="number of questions (default: all)")
    add(
        "--samples",
        type=int,
        default=1,
        metavar="K",
        help="answers to each question; pass@1 is their mean",
    )
    add(
        "--max-tokens",
        type=int,
        help="token budget of an answer (default: as published, or what the window leaves)",
    )
    add("--seed", type=int, default=0, help="seed of all draws of the run")
    add(
        "--pair",
        type=Path,
        default=BUNDLED_PAIR,
        help="folder with draft/, target/ and probes/ (default: bundled)",
    )
    add("--gateway", metavar="URL", help="measure a running gateway instead of starting one")
    add("--vllm", type=Path, metavar="PYTHON", help="interpreter of an environment with vLLM")


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--probes", type=Path, help="report.json of the pair's probes, for its curves"
    )
