"""`make demo`: real questions through draft, target, verifier, gateway and Redis, beside each model alone."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import httpx
from rich.console import Console
from rich.progress import track

from semspec.commands import program
from semspec.demo import show
from semspec.demo.client import Answer, ChatClient, Client, Strategy, in_turns
from semspec.demo.problems import SPLITS, make_problem
from semspec.stack import BUNDLED_PAIR, Stack, StackConfig, StackError, run

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
WARM_UP, SHOWN = SPLITS["tune"][0], SPLITS["tune"][8]
"""Additional problems: one to warm up, one to show, whose answer has rewritten segments."""


def main() -> None:
    arguments = _parser().parse_args()
    console = Console(stderr=arguments.json, highlight=False)
    try:
        status = run(demo(arguments, console))
    except (StackError, httpx.HTTPError) as error:
        console.print(getattr(error, "log_tail", ""), style="bright_black", markup=False)
        console.print(f"demo: {describe(error)}", style="red", markup=False)
        status = 1
    sys.exit(status)


async def demo(arguments: argparse.Namespace, console: Console) -> int:
    """Start the stack, show one generation, time all strategies, and print the results."""
    console.print("Starting Redis, draft, target, verifier and gateway ...", style="bold")
    async with Stack(StackConfig.of_pair(arguments.pair)) as stack, _http(stack) as http:
        client = Client(await ChatClient.connect(http), arguments.temperature)
        await show_generation(client, console)
        answers = await ask_all(client, SPLITS["report"][: arguments.problems], console)
    rows = show.summarise(answers)
    console.print()
    console.print(show.table(rows, arguments.temperature, arguments.problems))
    console.print(f"\nNext: {program()} serve keeps the stack up, {program()} chat asks it.", soft_wrap=True)
    if arguments.json:
        print(json.dumps(show.as_json(rows, arguments.temperature, arguments.problems)), flush=True)
    return 0


async def show_generation(client: Client, console: Console) -> None:
    """Show one problem's stream, segment by segment."""
    problem = make_problem(SHOWN)
    console.print(f"\n[bold]{problem.question}[/bold]\n[bright_black]{show.LEGEND}[/bright_black]\n")
    async for record in client.stream(problem, "semantic", seed=SHOWN):
        console.print(show.segment(record))
    console.print(f"[bold]Right answer:[/bold] {problem.answer}\n")


async def ask_all(client: Client, seeds: Sequence[int], console: Console) -> dict[Strategy, list[Answer]]:
    """Run every problem with every strategy, interleaved, so that the machine's other load affects all equally."""
    answers: dict[Strategy, list[Answer]] = {strategy: [] for strategy in STRATEGIES}
    for strategy in STRATEGIES:
        await client.ask(make_problem(WARM_UP), strategy, WARM_UP)
    schedule = list(in_turns(seeds, STRATEGIES))
    for seed, strategy in track(schedule, f"{len(seeds)} problems, {len(STRATEGIES)} strategies", console=console):
        answers[strategy].append(await client.ask(make_problem(seed), strategy, seed))
    return answers


def describe(error: Exception) -> str:
    """The error in one line; for a refusal, the gateway's message."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"{error.response.status_code} {error.response.text.strip()}" if error.response.is_closed else str(error)
    return str(error) or type(error).__name__


def _http(stack: Stack) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.base_url, headers=stack.headers, timeout=300, trust_env=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m semspec.demo.run", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the table as one JSON object on the last line of stdout")
    parser.add_argument("--problems", type=_num_problems, default=30, metavar="N", help="how many (default 30)")
    parser.add_argument("--temperature", type=float, default=0.6, metavar="T", help="0 is greedy (default 0.6)")
    parser.add_argument("--pair", type=Path, default=BUNDLED_PAIR, metavar="DIR", help="models and probes to serve")
    return parser


def _num_problems(text: str) -> int:
    number, limit = int(text), len(SPLITS["report"])
    if not 1 <= number <= limit:
        raise argparse.ArgumentTypeError(f"1 to {limit} problems")
    return number


if __name__ == "__main__":
    main()
