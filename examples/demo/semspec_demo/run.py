"""`make demo`: real questions through draft, target, verifier, gateway and Redis, next to each model alone.

`--pair NAME` asks a named pair questions of MATH-500 instead.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import httpx
from rich.console import Console
from rich.markup import escape
from rich.progress import track

from semspec.client import Gateway
from semspec.commands import program
from semspec.errors import SemspecError
from semspec.pairs import locate, named_pair, unknown_pair
from semspec.stack import BUNDLED_PAIR, Stack, StackConfig, run
from semspec_demo import show
from semspec_demo.client import (
    Answer,
    Client,
    Problem,
    Strategy,
    in_turns,
    supported_strategies,
)
from semspec_demo.problems import SPLITS, make_problem

STRATEGIES: tuple[Strategy, ...] = ("target", "semantic", "draft")
"""Strategies that are compared on the demo's own language."""
JUDGED: tuple[Strategy, ...] = ("semantic", "likelihood", "token-level")
"""Strategies of which one is shown, the first that the pair supports."""
WARM_UP, SHOWN = SPLITS["tune"][0], SPLITS["tune"][8]
"""Additional problems: one to warm up, one to show, whose answer has rewritten segments."""
NUM_PROBLEMS, NUM_MATH_PROBLEMS = 30, 4
"""Default numbers of problems; a real model on a CPU takes a minute for each."""
LIMIT_S = 900
"""Longest wait for an answer, in seconds: of a real model on a busy CPU, several minutes."""


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions of a demo; each is asked with its seed."""

    warm_up: Problem
    shown: Problem
    asked: Sequence[Problem]


@dataclass(frozen=True, slots=True)
class MathProblem:
    """A question of MATH-500, as the benchmark asks and grades it."""

    seed: int
    question: str
    answer: str
    is_right: Callable[[str], bool]


def main() -> None:
    arguments = _parser().parse_args()
    console = Console(stderr=arguments.json, highlight=False)
    try:
        status = run(demo(arguments, console))
    except SemspecError as error:
        console.print(getattr(error, "log_tail", ""), style="bright_black", markup=False)
        console.print(f"demo: {error}", style="red", markup=False)
        status = 1
    sys.exit(status)


async def demo(arguments: argparse.Namespace, console: Console) -> int:
    """Start the stack, show one generation, time the strategies, and print the results. Raises: SemspecError."""
    questions = questions_of(arguments)
    config = configuration(arguments, partial(console.print, soft_wrap=True))
    console.print("Starting Redis, draft, target, verifier and gateway ...", style="bold")
    async with Stack(config) as stack, _http(stack) as http:
        client = Client(Gateway(http), arguments.temperature)
        is_named = named_pair(arguments.pair) is not None
        strategies = await supported_strategies(client.gateway) if is_named else STRATEGIES
        judged = next(strategy for strategy in (*JUDGED, *strategies) if strategy in strategies)
        await show_generation(client, questions.shown, judged, console)
        answers = await ask_all(client, questions, strategies, console)
    rows = show.summarise(answers)
    console.print()
    console.print(show.table(rows, arguments.temperature, len(questions.asked)))
    console.print(
        f"\nNext: {program()} serve keeps the stack up, {program()} chat asks it.", soft_wrap=True
    )
    if arguments.json:
        print(
            json.dumps(show.as_json(rows, arguments.temperature, len(questions.asked))), flush=True
        )
    return 0


def configuration(arguments: argparse.Namespace, tell: Callable[[str], object]) -> StackConfig:
    """The configuration of a named pair, whose files are downloaded if they are missing, or of a pair in a folder."""
    if pair := named_pair(arguments.pair):
        return StackConfig.of_named(pair, locate(pair, arguments.models, tell))
    if not Path(arguments.pair).is_dir():
        raise unknown_pair(arguments.pair)
    return StackConfig.of_pair(Path(arguments.pair))


def questions_of(arguments: argparse.Namespace) -> Questions:
    """The questions to ask: of the demo's language, or of MATH-500. Raises: InvalidRequest when these are not here."""
    if named_pair(arguments.pair) is None:
        problems = [
            make_problem(seed) for seed in SPLITS["report"][: arguments.problems or NUM_PROBLEMS]
        ]
        return Questions(make_problem(WARM_UP), make_problem(SHOWN), problems)
    # The benchmarks stand on top of the demo, which therefore finds their tasks by name.
    load_task = EntryPoint("", "semspec_bench.tasks:load_task", "").load()
    task = load_task(
        "math500", data=arguments.data, limit=(arguments.problems or NUM_MATH_PROBLEMS) + 1
    )
    first, *others = [
        MathProblem(
            seed,
            question.messages[-1].content,
            question.reference,
            partial(task.is_right, question),
        )
        for seed, question in enumerate(task.questions)
    ]
    return Questions(first, first, others)


async def show_generation(
    client: Client, problem: Problem, strategy: Strategy, console: Console
) -> None:
    """Show one problem's stream, segment by segment."""
    console.print(
        f"\n[bold]{escape(problem.question)}[/bold]\n[bright_black]{show.LEGEND}[/bright_black]\n"
    )
    async for record in client.stream(problem, strategy, problem.seed, console.print):
        console.print(show.segment(record))
    console.print(f"[bold]Right answer:[/bold] {escape(str(problem.answer))}\n")


async def ask_all(
    client: Client, questions: Questions, strategies: Sequence[Strategy], console: Console
) -> dict[Strategy, list[Answer]]:
    """Ask every problem with every strategy, interleaved, so that the machine's other load affects all equally."""
    answers: dict[Strategy, list[Answer]] = {strategy: [] for strategy in strategies}
    for strategy in strategies:
        await client.ask(questions.warm_up, strategy, questions.warm_up.seed)
    schedule = list(in_turns(questions.asked, strategies))
    title = f"{len(questions.asked)} problems, {len(strategies)} strategies"
    for problem, strategy in track(schedule, title, console=console):
        answers[strategy].append(await client.ask(problem, strategy, problem.seed))
    return answers


def _http(stack: Stack) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=stack.base_url, headers=stack.headers, timeout=LIMIT_S, trust_env=False
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m semspec_demo.run", description=__doc__)
    parser.add_argument(
        "--json",
        action="store_true",
        help="the table as one JSON object on the last line of stdout",
    )
    parser.add_argument(
        "--problems",
        type=_num_problems,
        metavar="N",
        help=f"how many (default {NUM_PROBLEMS}; of MATH-500 4)",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.6, metavar="T", help="0 is greedy (default 0.6)"
    )
    parser.add_argument(
        "--pair",
        default=str(BUNDLED_PAIR),
        metavar="NAME",
        help="pair of `semspec pairs`, or a folder with one",
    )
    parser.add_argument(
        "--models", type=Path, metavar="FOLDER", help="where the files of a named pair lie"
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="MATH-500 as JSON lines (default: from the hub, or its cache)",
    )
    return parser


def _num_problems(text: str) -> int:
    number, limit = int(text), len(SPLITS["report"])
    if not 1 <= number <= limit:
        raise argparse.ArgumentTypeError(f"1 to {limit} problems")
    return number


if __name__ == "__main__":
    main()
