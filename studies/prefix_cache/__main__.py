"""What the prefix caches save: the same request twice, with a prompt that is new the first time and cached the second.

    python -m studies.prefix_cache      writes studies/prefix_cache/results

The prompts are conversations of the demo language: earlier problems with their solutions, then a question. Each
strategy has earlier problems of its own, so that its first request begins like no other. Both requests have the same
seed, and so answers of the same text.
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from semspec.bench.configuration import Configuration, parse
from semspec.bench.environment import environment
from semspec.bench.runners.gateway import open_stack
from semspec.bench.runners.protocol import Ask, Outcome, Runner
from semspec.bench.summary import ratio
from semspec.demo.client import MAX_TOKENS, in_turns
from semspec.demo.documents import write_document
from semspec.demo.problems import SPLITS
from semspec.demo.wording import TARGET_AUTHOR
from semspec.stack import BUNDLED_PAIR, StackConfig
from semspec.training.files import write_json
from semspec.training.progress import Reporter
from semspec.training.report.document import Table, write_text
from semspec.training.report.numbers import measured_decimal
from semspec.types import Message

OUTPUT = Path(__file__).parent / "results"
LABELS = ("target", "draft", "semantic")
NUM_TURNS = (0, 4, 10)
"""Earlier problems; 10 with their solutions and an answer fill the bundled pair's window."""
TEMPERATURE, TOP_P = 0.6, 0.95


@dataclass(frozen=True, slots=True)
class Twice:
    """The same request, first with a new prompt, then with a cached one."""

    label: str
    num_turns: int
    num_prompt_tokens: int
    num_tokens: int
    new_s: float
    cached_s: float
    is_equal: bool
    """Whether both answers have the same text."""


def conversation(seed: int, earlier: Iterator[int], num_turns: int) -> tuple[Message, ...]:
    """The question of problem `seed` after so many others of `earlier` with their solutions."""
    turns = [write_document(next(earlier), TARGET_AUTHOR) for _ in range(num_turns)]
    answered = [
        message
        for turn in turns
        for message in (Message("user", turn.problem.question), Message("assistant", turn.solution))
    ]
    return (*answered, Message("user", write_document(seed, TARGET_AUTHOR).problem.question))


async def measure(runner: Runner, num_questions: int, reporter: Reporter) -> list[Twice]:
    """Each question after each number of earlier problems, by each strategy, twice in a row. Raises: RunnerError."""
    earlier = iter(SPLITS["train"])
    cases = [(parse(label), num_turns) for label in LABELS for num_turns in NUM_TURNS]
    found = []
    with reporter.bar("prefix cache", num_questions * len(cases), "requests twice") as advance:
        for seed, (configuration, num_turns) in in_turns(SPLITS["report"][:num_questions], cases):
            messages = conversation(seed, earlier, num_turns)
            new, cached = [await _ask(runner, configuration, messages, seed) for _ in range(2)]
            equal = new.text == cached.text
            sizes = new.num_prompt_tokens, new.num_tokens
            found.append(Twice(configuration.label, num_turns, *sizes, new.latency_s, cached.latency_s, equal))
            advance(1)
    return found


async def _ask(runner: Runner, configuration: Configuration, messages: tuple[Message, ...], seed: int) -> Outcome:
    return await runner.ask(Ask(messages, configuration, TEMPERATURE, TOP_P, seed, MAX_TOKENS))


def table(found: Sequence[Twice]) -> Table:
    """A row for each strategy and length of the prompt: means over the requests."""
    rows = []
    for num_turns, label in product(NUM_TURNS, LABELS):
        own = [one for one in found if (one.label, one.num_turns) == (label, num_turns)]
        new, cached = (np.array([getattr(one, name) for one in own]) for name in ("new_s", "cached_s"))
        rows.append(
            (
                label,
                f"{np.mean([one.num_prompt_tokens for one in own]):.0f}",
                f"{np.mean([one.num_tokens for one in own]):.0f}",
                f"{new.mean():.3f}",
                f"{cached.mean():.3f}",
                measured_decimal(ratio(new, cached), 2),
                f"{sum(one.is_equal for one in own)} of {len(own)}",
            )
        )
    return Table(
        ("strategy", "prompt tokens", "tokens written", "new prompt, s", "cached, s", "new / cached", "same text"), rows
    )


async def _main(num_questions: int, output: Path) -> None:
    async with open_stack(StackConfig.of_pair(BUNDLED_PAIR)) as runner:
        for label in LABELS:  # the first answers of a process are slower
            await _ask(runner, parse(label), conversation(SPLITS["tune"][0], iter(()), 0), 0)
        found = await measure(runner, num_questions, Reporter())
    answers = [asdict(one) for one in found]
    write_json(output / "prefix-cache.json", {"environment": environment(BUNDLED_PAIR), "answers": answers})
    write_text(output / "prefix-cache.md", table(found).as_markdown())
    print((output / "prefix-cache.md").read_text(), end="")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m studies.prefix_cache", description=__doc__)
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the results")
    options = parser.parse_args(arguments)
    asyncio.run(_main(options.questions, options.output))


if __name__ == "__main__":
    main()
