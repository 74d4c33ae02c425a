"""Overload test: more requests than the gateway has slots for. Measures admissions, latencies and refusals.

python -m studies.overload    writes report.md, overload.json, overload.png and attempts.csv to its results
"""

import argparse
import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx

from semspec.bench.environment import environment
from semspec.bench.load.contestants import client
from semspec.demo.client import MAX_TOKENS
from semspec.demo.problems import SPLITS, make_problem
from semspec.keys import entry, new_key
from semspec.stack import BUNDLED_PAIR, Stack, StackConfig
from semspec.training.files import write_json
from semspec.training.report.document import as_markdown, write_pictures, write_text
from studies.overload.asking import OWNERS, STAGES, Answer, Arrival, Owner, Stage, Visit, arrivals, ask
from studies.overload.report import REFUSED, Overload, page

RESULTS = Path(__file__).parent / "results"
NUM_ATTEMPTS = 3
"""Attempts of a refused client, as in OpenAI's client by default."""
HUNG_AFTER_S = 120.0
WARM_UP_S = 3.0

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Limits of the gateway and duration of the stages."""

    max_concurrent: int
    max_queued: int
    queue_timeout_s: float
    stage_s: float
    num_rounds: int
    """Each stage is cut in so many pieces, which take turns, behind a measurement of what the machine can do at that
    time: what it does beside falls on all alike."""

    def gateway(self, keys: Mapping[Owner, str]) -> dict[str, str]:
        values = {
            "API_KEYS": " ".join(entry(owner, key) for owner, key in keys.items()),
            "MAX_N": "1",
            "MAX_CONCURRENT": str(self.max_concurrent),
            "MAX_QUEUED": str(self.max_queued),
            "QUEUE_TIMEOUT_S": str(self.queue_timeout_s),
        }
        return {f"SEMSPEC_GATEWAY_{name}": value for name, value in values.items()}


class Load:
    """Clients of two owners; no question is sent twice, since its context could be cached."""

    def __init__(self, clients: Mapping[Owner, httpx.AsyncClient], model: str, seed: int = 0) -> None:
        self._clients = clients
        self._model = model
        self._rng = random.Random(seed)
        self._numbers = count()

    async def capacity(self, num_clients: int, duration_s: float) -> tuple[float, list[Answer]]:
        """Answers per second with `num_clients` clients that send without pause, and these answers."""
        answers = list[Answer]()
        start = perf_counter()

        async def keep_asking() -> None:
            while perf_counter() - start < duration_s:
                answers.append(await ask(self._clients["greedy"], self._next_body(), HUNG_AFTER_S))

        await asyncio.gather(*(keep_asking() for _ in range(num_clients)))
        return len(answers) / (perf_counter() - start), answers

    async def play(self, stage: Stage, capacity: float, duration_s: float) -> list[Visit]:
        """Run one piece of a stage, until all its requests have ended."""
        start = perf_counter()

        async def arrive(arrival: Arrival) -> Visit:
            await asyncio.sleep(start + arrival.at_s - perf_counter())
            return await self._visit(stage, arrival.owner)

        expected = arrivals(stage.load * capacity, duration_s, self._rng)
        return list(await asyncio.gather(*map(arrive, expected)))

    async def _visit(self, stage: Stage, owner: Owner) -> Visit:
        http, body = self._clients[owner], self._next_body()
        attempts = [await ask(http, body, HUNG_AFTER_S)]
        while attempts[-1].code == REFUSED and len(attempts) < NUM_ATTEMPTS:
            await asyncio.sleep((attempts[-1].retry_after_s or 0.0) if stage.is_patient else 0.0)
            attempts.append(await ask(http, body, HUNG_AFTER_S))
        return Visit(stage.name, owner, tuple(attempts))

    def _next_body(self) -> Json:
        number, questions = next(self._numbers), SPLITS["report"]
        question = make_problem(questions[number % len(questions)]).question
        messages = [{"role": "user", "content": question}]
        return {"model": self._model, "messages": messages, "seed": number, "max_tokens": MAX_TOKENS}


async def measured(load: Load, plan: Plan, stages: Sequence[Stage] = STAGES, warm_up_s: float = WARM_UP_S) -> Overload:
    """Run all stages, interleaved."""
    await load.capacity(plan.max_concurrent, warm_up_s)
    piece_s = plan.stage_s / plan.num_rounds
    capacities, full, visits = list[float](), list[Answer](), list[Visit]()
    for number in range(plan.num_rounds):
        capacity, answers = await load.capacity(plan.max_concurrent, piece_s)
        capacities.append(capacity)
        full += answers
        for stage in (*stages[number % len(stages) :], *stages[: number % len(stages)]):
            visits.extend(await load.play(stage, capacity, piece_s))
            print(f"round {number + 1} of {plan.num_rounds}, {stage.name}: {len(visits)} requests so far", flush=True)
    return Overload(capacities, full, stages, visits)


async def main(plan: Plan, folder: Path) -> None:
    keys: dict[Owner, str] = {owner: new_key() for owner in OWNERS}
    load_average = os.getloadavg()[0]
    async with Stack(StackConfig(environment=plan.gateway(keys))) as stack, AsyncExitStack() as clients:
        connected = {
            owner: await clients.enter_async_context(client(stack.base_url, key)) for owner, key in keys.items()
        }
        overload = await measured(Load(connected, "semspec-demo"), plan)
    facts = {"plan": asdict(plan), "environment": environment(BUNDLED_PAIR), "load_average": load_average}
    write_json(folder / "overload.json", {**facts, **overload.as_json()})
    write_text(folder / "attempts.csv", overload.as_csv())
    contents = page(overload, facts)
    write_pictures(folder, contents)
    write_text(folder / "report.md", text := as_markdown("Overload", contents))
    print(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m studies.overload", description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--seconds", type=float, default=100.0, help="of each stage")
    parser.add_argument("--rounds", type=int, default=4, help="pieces that each stage is cut in")
    parser.add_argument("--max-concurrent", type=int, default=4, help="generations that may run at once")
    parser.add_argument("--max-queued", type=int, default=16, help="requests that may wait")
    parser.add_argument("--queue-timeout", type=float, default=5.0, help="longest wait, in seconds")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = _arguments()
    plan = Plan(chosen.max_concurrent, chosen.max_queued, chosen.queue_timeout, chosen.seconds, chosen.rounds)
    asyncio.run(main(plan, chosen.output))
