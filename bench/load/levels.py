"""Load at several numbers of streams: contestants take turns with the same problems, each stream without pause."""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from semspec.bench.environment import Say, environment
from semspec.bench.load.contestants import Contestant, Launcher, Running
from semspec.bench.load.levels_report import page
from semspec.bench.load.levels_sums import Reply, Request, Turn, summaries
from semspec.bench.runners.protocol import RunnerError
from semspec.bench.tasks import Question, Task
from semspec.errors import InvalidRequest
from semspec.stack import StackError
from semspec.training.files import write_json
from semspec.training.report.document import as_markdown, write_pictures, write_text
from semspec.types import derive_seed

LEVELS = (1, 2, 4, 8, 16, 32, 64)
PER_STREAM = 3
"""Least problems of a turn for each stream: fewer would measure how a turn begins and ends."""
HUNG_AFTER_S = 600.0
NUM_WARM_UP = 8
"""Requests at once that a contestant answers, uncounted, when it is up."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    task: Task
    contestants: Sequence[Contestant]
    streams: Sequence[int]
    """Levels: numbers of requests under way at once."""
    num_problems: int
    """Least problems of a turn."""
    num_rounds: int
    temperature: float
    max_tokens: int
    limit_ms: float
    """Largest latency of a request that counts as goodput."""
    pair: Path
    vllm: Path
    one_at_a_time: bool = False
    """Whether contestants are started and stopped in each round, instead of all staying up."""
    seed: int = 0

    @property
    def settings(self) -> Json:
        return {
            "task": self.task.name,
            "contestants": [one.label for one in self.contestants],
            "streams": list(self.streams),
            "problems": self.num_problems,
            "rounds": self.num_rounds,
            "temperature": self.temperature,
            "top_p": self.task.top_p,
            "max_tokens": self.max_tokens,
            "goodput_e2el_ms": self.limit_ms,
            "one_at_a_time": self.one_at_a_time,
            "seed": self.seed,
        }

    def questions(self, round_number: int, streams: int) -> list[Question]:
        """The questions of a turn, the same for all contestants. Turns have different ones as long as the task has
        enough, since the context of a repeated one could be cached."""
        sizes = {level: max(self.num_problems, PER_STREAM * level) for level in self.streams}
        before = round_number * sum(sizes.values())
        before += sum(
            size
            for level, size in sizes.items()
            if self.streams.index(level) < self.streams.index(streams)
        )
        all_ = self.task.questions
        return [all_[(before + index) % len(all_)] for index in range(sizes[streams])]


def check(plan: Plan) -> Plan:
    """Raises: InvalidRequest naming the option that is wrong."""
    for name, values, least in (
        ("streams", plan.streams, 1),
        ("problems", [plan.num_problems], 1),
        ("rounds", [plan.num_rounds], 1),
        ("max-tokens", [plan.max_tokens], 1),
        ("goodput-e2el-ms", [plan.limit_ms], 1),
    ):
        if not values or min(values) < least:
            raise InvalidRequest(
                f"{name} is {', '.join(map(str, values)) or 'empty'}; give {least} or more", name
            )
    for name, given in (
        ("streams", plan.streams),
        ("contestant", [one.label for one in plan.contestants]),
    ):
        if twice := next((one for one in given if list(given).count(one) > 1), None):
            raise InvalidRequest(f"{name} {twice} is named twice; name it once", name)
    return plan


@dataclass(frozen=True, slots=True)
class Place:
    """One entry of the schedule."""

    round_number: int
    streams: int
    contestant: Contestant


def schedule(plan: Plan) -> Iterator[Place]:
    """All turns in order. In each round the contestants take turns at each level, the first one rotating; one at a
    time, each plays all levels of its round in a row, as it is started for it."""
    contestants = list(plan.contestants)
    for number in range(plan.num_rounds):
        if plan.one_at_a_time:
            yield from (
                Place(number, level, one)
                for one in _rotated(contestants, number)
                for level in plan.streams
            )
            continue
        for index, level in enumerate(plan.streams):
            yield from (Place(number, level, one) for one in _rotated(contestants, number + index))


def _rotated(contestants: Sequence[Contestant], number: int) -> list[Contestant]:
    first = number % len(contestants)
    return [*contestants[first:], *contestants[:first]]


async def play(
    running: Running, requests: Iterable[Request], streams: int
) -> tuple[float, float, list[Reply]]:
    """Send all requests, `streams` at once. Seconds until the last reply, the client's CPU seconds, the replies.

    Replies are only received here, and read later: what the client computes would be the servers' time.
    """
    left, replies = deque(requests), list[Reply]()
    start, cpu_start = time.perf_counter(), time.process_time()

    async def keep_asking() -> None:
        while left:
            replies.append(await _received(running.http, left.popleft()))

    await asyncio.gather(*(keep_asking() for _ in range(streams)))
    return time.perf_counter() - start, time.process_time() - cpu_start, replies


async def _received(http: httpx.AsyncClient, request: Request) -> Reply:
    start, chunks, error = time.perf_counter(), list[tuple[float, bytes]](), ""
    try:
        async with asyncio.timeout(HUNG_AFTER_S):
            async with http.stream("POST", "/v1/chat/completions", json=request.body) as response:
                async for chunk in response.aiter_raw():
                    chunks.append((time.perf_counter() - start, chunk))
                if response.is_error:
                    error = f"{response.status_code} {b''.join(part for _, part in chunks)[:300]!r}"
    except TimeoutError:
        error = "hung"
    except httpx.TransportError as broken:
        error = f"connection broke: {type(broken).__name__}"
    return Reply(request, chunks, time.perf_counter() - start, error)


class Tournament:
    """Plays a plan and writes its results after each round."""

    def __init__(self, plan: Plan, folder: Path, say: Say) -> None:
        self._plan, self._folder, self._say = plan, folder, say
        self._launcher = Launcher(plan.pair, plan.vllm, max(plan.streams))
        self._left_out: dict[str, str] = {}
        self._turns: list[Turn] = []
        self._load_averages: list[float] = []

    async def run(self) -> None:
        """Raises: RunnerError when no contestant can run, or one fails later than at its start."""
        places = list(schedule(self._plan))
        async with self._kept() as running_of:
            for index, place in enumerate(places):
                running = await running_of(place.contestant)
                if running is not None:
                    turn = await self._turn(place, running)
                    self._turns.append(turn)
                    self._say(
                        f"round {place.round_number + 1} of {self._plan.num_rounds}, {turn.describe()}"
                    )
                if index + 1 == len(places) or places[index + 1].round_number > place.round_number:
                    self._write()

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[Callable[[Contestant], Awaitable[Running | None]]]:
        """Gives contestants that are up; started when first asked for, and None for one that cannot start."""
        async with AsyncExitStack() as all_:
            up: dict[str, Running] = {}
            current = await all_.enter_async_context(AsyncExitStack())

            async def running_of(contestant: Contestant) -> Running | None:
                label = contestant.label
                if label not in up and label not in self._left_out:
                    if self._plan.one_at_a_time:
                        up.clear()
                        await current.aclose()
                    if running := await self._started(contestant, current):
                        up[label] = running
                return up.get(label)

            yield running_of

    async def _started(self, contestant: Contestant, stack: AsyncExitStack) -> Running | None:
        try:
            running = await stack.enter_async_context(self._launcher.running(contestant))
        except (RunnerError, StackError) as error:
            if any(turn.label == contestant.label for turn in self._turns):
                raise
            tail = getattr(error, "log_tail", "").strip().splitlines()[-1:]
            self._left_out[contestant.label] = ": ".join((str(error), *tail))
            self._say(f"{contestant.label} is left out: {self._left_out[contestant.label]}")
            if len(self._left_out) == len(self._plan.contestants):
                raise RunnerError("no contestant can run here") from error
            return None
        questions = self._plan.task.questions[-NUM_WARM_UP:]
        *_, replies = await play(running, self._requests(running, questions, -1), NUM_WARM_UP)
        if failed := next((reply.error for reply in replies if reply.error), ""):
            raise RunnerError(f"{contestant.label} does not answer: {failed}")
        return running

    async def _turn(self, place: Place, running: Running) -> Turn:
        questions = self._plan.questions(place.round_number, place.streams)
        requests = self._requests(running, questions, place.round_number)
        self._load_averages.append(os.getloadavg()[0])
        before = running.cpu_s()
        duration_s, client_s, replies = await play(running, requests, place.streams)
        used = {name: after - before[name] for name, after in running.cpu_s().items()}
        results = [reply.result(self._plan.task) for reply in replies]
        return Turn(
            place.contestant.label,
            place.round_number,
            place.streams,
            duration_s,
            results,
            used | {"client": client_s},
        )

    def _requests(
        self, running: Running, questions: Sequence[Question], round_number: int
    ) -> list[Request]:
        plan = self._plan
        common = {
            "model": running.model,
            "temperature": plan.temperature,
            "top_p": plan.task.top_p,
            "max_tokens": plan.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **running.fields,
        }
        requests = []
        for question in questions:
            messages = [{"role": one.role, "content": one.content} for one in question.messages]
            seed = (
                derive_seed(plan.seed, question.id, round_number) >> 11
            )  # JSON numbers are exact up to 53 bits
            own = {"messages": messages} | ({"seed": seed} if running.takes_seed else {})
            requests.append(Request(question, common | own))
        return requests

    def _write(self) -> None:
        plan = self._plan
        facts = {
            "settings": plan.settings,
            "environment": environment(plan.pair),
            "load_average": [round(one, 2) for one in self._load_averages],
            "left_out": self._left_out,
        }
        found = summaries(self._turns, plan.contestants, plan.limit_ms)
        write_json(
            self._folder / "load.json", facts | {"results": [one.as_json() for one in found]}
        )
        contents = page(found, facts)
        write_pictures(self._folder, contents)
        write_text(self._folder / "README.md", as_markdown("Load", contents))
