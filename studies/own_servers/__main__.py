"""`likelihood` over two unmodified vLLM servers. Start each with vLLM's own command, then run:

vllm serve demo/pair/target --served-model-name target --port 8001 --max-logprobs 20
vllm serve demo/pair/draft --served-model-name draft --port 8002
python -m studies.own_servers cost --target URL [--num 15]
python -m studies.own_servers quality --draft URL --target URL [--num 40]
"""

import argparse
import asyncio
import json
import random
from statistics import mean, median
from time import perf_counter

from semspec.bench.configuration import parse
from semspec.bench.runners.in_process import InProcessRunner, open_in_process
from semspec.bench.runners.protocol import Ask
from semspec.bench.tasks import load_task
from semspec.decoding import Backends
from semspec.decoding.likelihood.calibration import load_calibration
from semspec.decoding.protocols import WithoutProbes
from semspec.engine.causal_lm import CausalLM
from semspec.gateway.options import Defaults
from semspec.stack import BUNDLED_PAIR
from semspec.types import Writer
from studies.own_servers.server import ServerEngine

LENGTHS = 500, 3000
SEGMENT = 20
"""Tokens of a scored segment."""


def engine(role: str, url: str) -> ServerEngine:
    """The server's tokenizer and chat template are those of the bundled pair."""
    model = CausalLM.load(str(BUNDLED_PAIR / role), None, "meta", "float32")
    return ServerEngine(url, role, model.tokenizer, Writer(role))


async def cost(target: ServerEngine, num: int) -> None:
    """Milliseconds of a score of one segment and of one token, after so many tokens that the server has read."""
    piece = await target.encode("Tom has pens: 25. Day 1: Tom sells 6 pens. " * 220)
    for length in LENGTHS:
        context, took = list(piece.token_ids[:length]), dict[str, list[float]]()
        for _ in range(num):
            segment = random.choices(piece.token_ids, k=SEGMENT)
            await target.next_token(context)
            for name, call in (
                ("a token", target.next_token([*context, *segment[:1]])),
                ("score", target.scores([*context, *segment], [SEGMENT])),
                ("score without alternatives", target.scores([*context, *segment], [SEGMENT], 0)),
            ):
                start = perf_counter()
                await call
                took.setdefault(name, []).append((perf_counter() - start) * 1e3)
        print(json.dumps({"context": length, "ms": {name: round(median(one), 1) for name, one in took.items()}}))


async def quality(draft: ServerEngine, target: ServerEngine, num: int) -> None:
    """Answers to questions of `tune` by the servers and by our engines, with the same seeds, one after the other."""
    task = load_task("demo-tune", limit=num)
    calibration = load_calibration(BUNDLED_PAIR / "probes" / "likelihood.json")
    servers = InProcessRunner(Backends(draft, target, WithoutProbes(), likelihood=calibration), Defaults())
    found: dict[str, list[tuple[bool, float]]] = {}
    async with open_in_process(BUNDLED_PAIR) as ours:
        for seed, question in enumerate(task.questions):
            for place, runner in (("servers", servers), ("ours", ours)):
                for strategy in ("target", "likelihood"):
                    asked = Ask(question.messages, parse(strategy), 0.6, 0.95, seed, task.max_tokens)
                    outcome = await runner.ask(asked)
                    is_right = task.is_right(question, outcome.text)
                    found.setdefault(f"{place}, {strategy}", []).append((is_right, outcome.latency_s))
    for name, answers in found.items():
        told = {"pass@1": mean(one for one, _ in answers), "latency_s": round(mean(one for _, one in answers), 3)}
        print(json.dumps({"name": name, "num": len(answers), **told}))


async def main() -> None:
    parser = argparse.ArgumentParser("python -m studies.own_servers", description=__doc__)
    parser.add_argument("what", choices=("cost", "quality"))
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--num", type=int, default=15)
    options = parser.parse_args()
    target = engine("target", options.target)
    if options.what == "cost":
        await cost(target, options.num)
    else:
        await quality(engine("draft", options.draft), target, options.num)


if __name__ == "__main__":
    asyncio.run(main())
