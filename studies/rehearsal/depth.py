"""Four answers of 30,000 tokens at once by a small pair with a window of 32,768: time a token, memory, a resume."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import numpy as np

from semspec.client import Gateway, read_events
from semspec.reporting.files import write_json
from semspec.stack import Stack, StackConfig
from semspec_bench.environment import ROLES
from semspec_bench.gpu.shapes import Shape
from semspec_demo.tokenizer import build_tokenizer
from studies.rehearsal.models import save_model, save_probes
from studies.rehearsal.processes import MEBIBYTE, Sample, Watch

WINDOW = 32_768
NUM_SESSIONS = 4
NUM_DEPTHS = 16
SHAPES = {
    "draft": Shape("draft", 1, 128, 256, 2, 1, 1024),
    "target": Shape("target", 2, 128, 256, 2, 1, 1024),
}
"""With heads of 64, the least that both engines run."""
SHARES = {"\n\n": 1 / 24, "<|im_end|>": 0.0}
OPTIONS: Mapping[str, dict[str, Any]] = {
    "target": {"strategy": "target"},
    "semantic": {"strategy": "semantic", "acceptance": {"rule": "threshold", "threshold": 0.0}},
}
"""All drafts are accepted, so that a token costs the same work at every depth."""
SETTINGS = {
    "SEMSPEC_GATEWAY_TARGET_PATIENCE_S": "300",
    "SEMSPEC_GATEWAY_GENERATION_DEADLINE_S": "7200",
    "SEMSPEC_DRAFT_KV_BYTES": str(512 * MEBIBYTE),
    "SEMSPEC_TARGET_KV_BYTES": str(512 * MEBIBYTE),
}
KILLS = {"gateway": 0.5, "target": 0.75}
"""Process -> share of the answers at which it is killed, in the run that is disturbed."""

VLLM_PYTHON = Path(".work/vllm/bin/python")
"""Where `scripts/vllm-venv` installs vLLM's CPU build."""
START_TIMEOUT_S = 900.0

Json = dict[str, Any]


def save_pair(folder: Path) -> None:
    """Write the pair."""
    tokenizer = build_tokenizer()
    for seed, (role, shape) in enumerate(SHAPES.items()):
        save_model(folder / role, shape, WINDOW, tokenizer, SHARES, seed)
    save_probes(folder)


@dataclass(slots=True)
class Answer:
    """What one client has received."""

    at_s: list[float] = field(default_factory=list)
    """When each segment was complete."""
    num_tokens: list[int] = field(default_factory=list)
    """Tokens so far, with each segment."""
    id: str = ""
    text: str = ""
    breaks: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.num_tokens[-1] if self.num_tokens else 0


@dataclass(frozen=True, slots=True)
class Run:
    """One strategy on one engine."""

    engine: str
    strategy: str
    answers: Sequence[Answer]
    samples: Sequence[Sample]
    kills: Mapping[str, float]
    """Process -> mean number of tokens of an answer when it was killed."""
    faults: Sequence[str]

    def cpu_s(self) -> np.ndarray:
        """CPU seconds of all processes by sample; those of a process that was killed go on where it ended."""
        total = np.zeros(len(self.samples))
        for name in self.samples[0].held:
            at = [
                sample.held[name].cpu_s if name in sample.held else 0.0 for sample in self.samples
            ]
            total += np.cumsum(np.maximum(np.diff(at, prepend=at[0]), 0.0))
        return total

    def depths(self) -> Iterator[tuple[float, float, bool]]:
        """Of each depth: its middle in tokens, CPU milliseconds of all processes for a token of every answer, and
        whether a kill disturbed it."""
        tokens = np.array([sample.num_tokens for sample in self.samples]) / len(self.answers)
        edges = np.linspace(0, tokens[-1], NUM_DEPTHS + 1)
        step = tokens[-1] / NUM_DEPTHS
        for start, end, spent in zip(
            edges, edges[1:], np.diff(np.interp(edges, tokens, self.cpu_s())), strict=False
        ):
            middle = (start + end) / 2
            yield (
                middle,
                1000 * spent / step,
                any(abs(middle - at) < step for at in self.kills.values()),
            )

    def line(self) -> tuple[float, float, float]:
        """CPU milliseconds a token at depth 0, their growth for each 1,000 tokens, and the greatest distance from this
        line as a share of it; without the first depth, which has the prompt, and those disturbed."""
        kept = [(at, ms) for at, ms, is_disturbed in [*self.depths()][1:] if not is_disturbed]
        at, ms = (np.array(column) for column in zip(*kept, strict=True))
        slope, start = np.polyfit(at, ms, 1)
        return (
            float(start),
            float(slope) * 1000,
            float(np.max(np.abs(ms / (start + slope * at) - 1))),
        )

    def as_json(self) -> Json:
        start, slope, off = self.line()
        return {
            "engine": self.engine,
            "strategy": self.strategy,
            "line": {"ms_at_0": start, "ms_per_1000_tokens": slope, "greatest_distance": off},
            "depths": [
                {"tokens": round(at), "ms_per_token": round(ms, 3), "disturbed": is_disturbed}
                for at, ms, is_disturbed in self.depths()
            ],
            "longest_wait_s": [float(np.max(np.diff(answer.at_s))) for answer in self.answers],
            "tokens": [answer.total for answer in self.answers],
            "segments": [len(answer.at_s) for answer in self.answers],
            "kills": dict(self.kills),
            "breaks": [answer.breaks for answer in self.answers],
            "faults": list(self.faults),
            "samples": [asdict(sample) for sample in self.samples[:: 1 + len(self.samples) // 40]],
        }


async def ask(gateway: Gateway, answer: Answer, seed: int, num_tokens: int, options: Json) -> None:
    """One answer, whose stream is resumed when it breaks."""
    body = {
        "model": (await gateway.models())[0]["id"],
        "messages": [
            {"role": "user", "content": f"Ben has {seed} coins. How many coins does Ben have now?"}
        ],
        "seed": seed,
        "max_tokens": num_tokens,
        "temperature": 0.6,
        "semspec": options | {"trace": True},
    }
    answer.at_s.append(perf_counter())
    answer.num_tokens.append(0)
    async with aclosing(gateway.chat(body, answer.breaks.append)) as chunks:
        async for chunk in chunks:
            answer.id = chunk["id"]
            answer.text += text_of(chunk)
            if record := (chunk.get("semspec") or {}).get("segment"):
                answer.at_s.append(perf_counter())
                answer.num_tokens.append(answer.total + record["num_tokens"])


def text_of(chunk: Json) -> str:
    """The reasoning or text that a chunk adds."""
    deltas = [choice["delta"] for choice in chunk["choices"]]
    return "".join(delta.get("reasoning_content") or delta.get("content") or "" for delta in deltas)


async def rehearse(
    stack: Stack, engine: str, strategy: str, num_tokens: int, has_kills: bool
) -> Run:
    """All answers of one strategy; with kills, the processes in `KILLS` die on the way."""
    answers, kills = [Answer() for _ in range(NUM_SESSIONS)], dict[str, float]()

    def mean() -> float:
        return sum(answer.total for answer in answers) / NUM_SESSIONS

    async def kill() -> None:
        for name, share in KILLS.items():
            while mean() < share * num_tokens:
                await asyncio.sleep(0.05)
            kills[name] = mean()
            stack.processes[name].kill()
            await stack.processes[name].process.wait()
            await stack.restart(name)

    async with aclosing(Gateway.at(stack.base_url, stack.api_key)) as gateway:
        watch = Watch(stack, lambda: sum(answer.total for answer in answers))
        await watch.look()
        aside = [
            asyncio.create_task(watch.keep_looking(2.0)),
            *([asyncio.create_task(kill())] if has_kills else []),
        ]
        asking = [
            ask(gateway, answer, seed, num_tokens, OPTIONS[strategy])
            for seed, answer in enumerate(answers)
        ]
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        for task in aside:
            task.cancel()
        ends = await asyncio.gather(*aside, return_exceptions=True)
        await watch.look()
        faults = [repr(one) for one in (*outcomes, *ends) if isinstance(one, Exception)]
        async with client(stack.base_url, stack.api_key) as http:
            faults += [fault async for fault in _faults(http, answers, num_tokens)]
    return Run(engine, strategy, answers, watch.samples, kills, faults)


async def _faults(
    http: httpx.AsyncClient, answers: Sequence[Answer], num_tokens: int
) -> AsyncIterator[str]:
    """What is wrong with the answers, beside what is stored of them."""
    for answer in answers:
        if answer.total != num_tokens:
            yield f"{answer.id}: {answer.total} tokens of {num_tokens}"
        records = (await http.get(f"/v1/generations/{answer.id}/trace")).json()["segments"]
        if [record["index"] for record in records] != list(range(len(records))):
            yield f"{answer.id}: the stored trace has a gap"
        stream = http.stream("GET", f"/v1/generations/{answer.id}/events")
        async with stream as response, aclosing(read_events(response)) as events:
            text = "".join([text_of(event.data) async for event in events])
        if text != answer.text:
            yield f"{answer.id}: {len(answer.text)} characters received, {len(text)} stored"
        if fallbacks := {record["fallback"] for record in records if record.get("fallback")}:
            yield f"{answer.id}: fell back: {fallbacks}"


def client(base_url: str, api_key: str) -> httpx.AsyncClient:
    """Return an HTTP client of the gateway without a time limit."""
    return httpx.AsyncClient(
        base_url=base_url,
        headers={"authorization": f"Bearer {api_key}"},
        timeout=None,  # noqa: S113, answers of 30,000 tokens take minutes
        trust_env=False,
    )


def stack_config(pair: Path, engine: str) -> StackConfig:
    """Return the stack of a pair with both models in one engine, `fast` or `vllm`."""
    usual = StackConfig.of_pair(pair)
    environment, commands = dict(SETTINGS), dict(usual.commands)
    if engine == "vllm":
        # Not resolved, because the interpreter of an environment is a link.
        python = str(VLLM_PYTHON.absolute())
        for role in ROLES:
            environment[f"SEMSPEC_{role.upper()}_ENGINE"] = "vllm"
            commands[role] = (python, "-m", f"semspec_{role}")
    return replace(
        usual, environment=environment, commands=commands, start_timeout_s=START_TIMEOUT_S
    )


async def depth(engine: str, num_tokens: int, folder: Path) -> None:
    """The target alone, then the whole loop with kills; writes a file of each."""
    with tempfile.TemporaryDirectory(prefix="semspec-depth-") as name:
        save_pair(pair := Path(name) / "small")
        for strategy in OPTIONS:
            async with Stack(stack_config(pair, engine)) as stack:
                run = await rehearse(
                    stack, engine, strategy, num_tokens, has_kills=strategy == "semantic"
                )
            write_json(folder / f"depth-{engine}-{strategy}.json", run.as_json())
            print(engine, strategy, run.line(), *run.faults, flush=True)
