"""The two roads a question can take: over REST through every process, or straight into the loop in this process."""

import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import httpx

from bench.configuration import Configuration
from bench.record import Record
from demo.problems import Problem, make_problem
from semspec.core import Context, Generation, Message, Sampling, SegmentRecord, Writer
from semspec.decoding import Roles, decode
from semspec.engine.transformers_engine import TransformersEngine
from semspec.probes.verifier import ProbeVerifier
from semspec.stack import Stack, StackConfig

MAX_TOKENS = 512
STAGES = ("draft_ms", "read_ms", "judge_ms", "write_ms")


class Road(Protocol):
    """Asks one problem under one configuration."""

    async def ask(self, seed: int, configuration: Configuration, temperature: float) -> Record: ...


class GatewayRoad:
    """Over HTTP, as any client."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self._http, self._model = http, model

    async def ask(self, seed: int, configuration: Configuration, temperature: float) -> Record:
        problem = make_problem(seed)
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": problem.question}],
            "temperature": temperature,
            "max_tokens": MAX_TOKENS,
            "seed": seed,
            "semspec": configuration.options,
        }
        start = perf_counter()
        response = await self._http.post("/v1/chat/completions", json=body)
        latency_s = perf_counter() - start
        response.raise_for_status()
        answer = response.json()
        trace: list[dict[str, Any]] = answer["semspec"]["trace"]
        return _record(
            configuration,
            seed,
            problem,
            answer["choices"][0]["message"]["content"],
            latency_s,
            tokens=((row["writer"], len(row["token_ids"])) for row in trace),
            verdicts=(row["accepted"] for row in trace),
            times=(row["times"] for row in trace),
        )


class InProcessRoad:
    """The same engines and probes in this process: the loop without wire or web."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles

    async def ask(self, seed: int, configuration: Configuration, temperature: float) -> Record:
        problem = make_problem(seed)
        start = perf_counter()
        prompt = await self._roles.target.encode([Message("user", problem.question)])
        generation = Generation(
            Context((prompt,)),
            Sampling(temperature, 0.95, 0, seed),
            max_tokens=MAX_TOKENS,
            strategy=configuration.strategy,
            gamma=configuration.gamma,
            acceptance=configuration.acceptance,
            draft_ahead=configuration.draft_ahead,
            session=f"bench-{seed}-{configuration.label}",
        )
        records = [event async for event in decode(generation, self._roles) if isinstance(event, SegmentRecord)]
        latency_s = perf_counter() - start
        return _record(
            configuration,
            seed,
            problem,
            "".join(record.segment.text for record in records),
            latency_s,
            tokens=((record.segment.writer, len(record.segment.token_ids)) for record in records),
            verdicts=(record.accepted for record in records),
            times=({name: getattr(record.times, name) for name in STAGES} for record in records),
        )


def _record(
    configuration: Configuration,
    seed: int,
    problem: Problem,
    text: str,
    latency_s: float,
    *,
    tokens: Iterable[tuple[str, int]],
    verdicts: Iterable[bool | None],
    times: Iterable[Mapping[str, float]],
) -> Record:
    by_writer: Counter[str] = Counter()
    for writer, num_tokens in tokens:
        by_writer[writer] += num_tokens
    judged = Counter(verdicts)
    stages: Counter[str] = Counter()
    for row in times:
        stages.update({name: row[name] for name in STAGES})
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return Record(
        label=configuration.label,
        seed=seed,
        is_right=bool(boxed) and boxed[-1].strip() == str(problem.answer),
        latency_s=round(latency_s, 6),
        num_tokens=by_writer.total(),
        num_target_tokens=by_writer[Writer.TARGET],
        num_accepted=judged[True],
        num_rejected=judged[False],
        stages_ms={name: round(total, 3) for name, total in stages.items()},
        text_digest=hashlib.sha256(text.encode()).hexdigest()[:12],
    )


@asynccontextmanager
async def open_gateway(pair: Path) -> AsyncIterator[GatewayRoad]:
    """The whole stack, for as long as the block lasts."""
    async with (
        Stack(StackConfig.of_pair(pair)) as stack,
        httpx.AsyncClient(base_url=stack.base_url, timeout=600, trust_env=False) as http,
    ):
        models = (await http.get("/v1/models")).raise_for_status().json()
        yield GatewayRoad(http, models["data"][0]["id"])


@asynccontextmanager
async def open_in_process(pair: Path) -> AsyncIterator[InProcessRoad]:
    """Both engines in this process, a thread each."""
    draft = TransformersEngine.load(str(pair / "draft"), writer=Writer.DRAFT)
    target = TransformersEngine.load(str(pair / "target"), writer=Writer.TARGET)
    verifier = ProbeVerifier.load(pair / "probes" / "draft.safetensors", pair / "probes" / "target.safetensors")
    try:
        yield InProcessRoad(Roles(draft, target, verifier))
    finally:
        await draft.aclose()
        await target.aclose()
