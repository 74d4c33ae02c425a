"""The loads: who comes when, what is counted, what the pages say; and both played to a gateway over fake models."""

import csv
import io
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from semspec.bench.load.asking import GREEDY_SHARE, HUNG, OWNERS, STAGES, Answer, Stage, Visit, arrivals, ask, client
from semspec.bench.load.overload import Load, Plan, measured
from semspec.bench.load.overload_report import REFUSED, Overload, facts, page, percentiles, ratio, speeds
from semspec.bench.load.processes import MEBIBYTE, Held, Sample, Watch
from semspec.bench.load.soak import CANCELLATIONS, CANCELLED_SHARE, Clients, gauges, order
from semspec.bench.load.soak_report import Soak, slope
from semspec.bench.load.soak_report import page as soak_page
from semspec.training.report.document import as_markdown
from tests.gateway.fakes import Fakes
from tests.gateway.support import API_KEY, Gateway, eventually, make_settings, redis_server, running_gateway

WHERE = {"environment": {"processor": "a processor", "num_cores": 2}, "load_average": 0.5}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    with redis_server(tmp_path) as redis:
        settings = make_settings(redis_url=redis.url, max_concurrent=1, max_n=1, max_queued=1, queue_timeout_s=30)
        async with running_gateway(settings, Fakes.make()) as running:
            yield running


def test_arrivals_are_as_many_as_the_rate_says_and_mostly_greedy() -> None:
    found = list(arrivals(rate=50, duration_s=200, rng=random.Random(1)))
    gaps = np.diff([arrival.at_s for arrival in found])
    assert len(found) == pytest.approx(10_000, abs=400), "four standard deviations"
    assert gaps.mean() == pytest.approx(gaps.std(), rel=0.05), "as of a Poisson process"
    assert fmean(arrival.owner == "greedy" for arrival in found) == pytest.approx(GREEDY_SHARE, abs=0.02)


def test_slope_is_found_with_its_error() -> None:
    rng, x = np.random.default_rng(1), np.linspace(0, 10, 400)
    found = [slope(x, 3 + 0.5 * x + rng.normal(0, 1, len(x))) for _ in range(200)]
    errors = np.array([(one.value - 0.5) / one.error for one in found])
    assert abs(errors.mean()) < 0.3 and 0.85 < errors.std() < 1.25


@pytest.mark.parametrize("x", [[], [1.0, 2.0], [1.0, 1.0, 1.0]])
def test_slope_of_too_little_is_unknown(x: Sequence[float]) -> None:
    assert np.isnan(slope(x, x).value)


def test_ratio_of_means_has_the_error_of_both() -> None:
    rng = np.random.default_rng(1)
    found = [ratio(rng.normal(4, 1, 50).tolist(), rng.normal(2, 0.5, 50).tolist()) for _ in range(200)]
    errors = np.array([(one.value - 2) / one.error for one in found])
    assert abs(errors.mean()) < 0.3 and 0.85 < errors.std() < 1.2


def test_percentiles_of_nothing_are_none() -> None:
    assert percentiles([]) is None
    assert percentiles(list(range(101))) == {"p50": 50, "p90": 90, "p99": 99}


def test_a_third_of_the_orders_is_given_up() -> None:
    rng = random.Random(1)
    orders = [order(number, rng, "session") for number in range(4000)]
    given_up = [one.ending for one in orders if one.ending != "read"]
    assert len(given_up) / len(orders) == pytest.approx(CANCELLED_SHARE, abs=0.03)
    assert set(given_up) == set(CANCELLATIONS)
    assert {one.body["n"] for one in orders if "session" in one.body["semspec"]} == {1}
    assert all(one.body["stream"] for one in orders if one.ending in ("cancel", "hang up in mid-stream"))


def visit(stage: str, *codes: str, owner: Any = "greedy", service_s: float = 1.0) -> Visit:
    attempts = tuple(Answer(3.0, code, 2.0 if code else None, 2.5, None if code else service_s, 40) for code in codes)
    return Visit(stage, owner, attempts)


@pytest.fixture
def overload() -> Overload:
    visits = [visit("1x", "", service_s=1.0 + 0.1 * (i % 2)) for i in range(20)]
    visits += [visit("2x", REFUSED, "", service_s=1.2 + 0.1 * (i % 2)) for i in range(20)]
    visits += [visit("2x", REFUSED, REFUSED, REFUSED), visit("2x", HUNG, owner="modest")]
    return Overload([4.0], [visit("", "").last, visit("", "").last], STAGES[1:3], visits)


def test_outcomes_are_counted_by_what_became_of_the_last_attempt(overload: Overload) -> None:
    found = facts(overload.of(STAGES[2]))
    counts = {name: number for name, number in found.items() if name.startswith("num_") and number}
    assert counts == {
        "num_requests": 22,
        "num_answered": 20,
        "num_refused": 1,
        "num_hung": 1,
        "num_attempts": 44,
        "num_attempts_refused": 23,
    }
    assert found["wait_s"]["p50"] == pytest.approx(1.75) and found["latency_s"]["p99"] == 3.0
    assert found["first_segment_after_wait_s"]["p50"] == pytest.approx(0.75)


def test_speed_is_compared_from_admission_on(overload: Overload) -> None:
    assert speeds(overload)["2x over 1x"].value == pytest.approx(1.25 / 1.05)
    assert speeds(overload)["2x over full"].value == pytest.approx(1.25)


def test_page_of_an_overload_tells_who_was_answered(overload: Overload) -> None:
    contents = page(overload, {**WHERE, "plan": asdict(Plan(4, 16, 5.0, 90.0, 3))})
    text = as_markdown("Overload", contents)
    assert "| 2x | 22 | 20 | 0 | 1 | 0 | 1 | 0 | 23 |" in text
    assert "| 2x | modest | 1 | 0 | 0% | 0% | - |" in text
    assert "4.00 answers a second" in text and "](overload.png)" in text


def test_every_attempt_has_a_line(overload: Overload) -> None:
    rows = list(csv.DictReader(io.StringIO(overload.as_csv())))
    assert Counter(row["load"] for row in rows) == {"full": 2, "1x": 20, "2x": 44}
    twice = [row for row in rows if row["load"] == "2x"][:2]
    assert len({row["request"] for row in twice}) == 1
    assert [(row["attempt"], row["code"]) for row in twice] == [("0", REFUSED), ("1", "")]
    assert float(twice[1]["service_s"]) == pytest.approx(1.2)


def sample(number: int) -> Sample:
    held = {name: Held((100 + number) * MEBIBYTE, 50 * MEBIBYTE, 10, 4, 2) for name in ("gateway", "target")}
    return Sample(float(number), 100 * number, held, MEBIBYTE, 300, {"target": 60.0 * MEBIBYTE})


def test_page_of_a_soak_tells_the_slope_of_the_second_half() -> None:
    soak = Soak(60.0, [sample(i) for i in range(101)], {"read": 7000, "cancel": 3000}, {}, {"queue_depth": 0.0})
    assert soak.growth("gateway", "rss_bytes").value == pytest.approx(10.0)
    facts = {**WHERE, "cache_bytes": 64 * MEBIBYTE, "ttl_s": 30, "num_clients": 6}
    text = as_markdown("Soak", soak_page(soak, facts))
    assert "| gateway | 100.0 | 150.0 | 200.0 | 10.00 ± 0.00 | 50.0 | 0.00 ± 0.00 |" in text
    assert "64.0 MiB of keys and values" in text and "target 60.0 MiB." in text
    assert "30% of the requests" in text and "Errors: none." in text
    assert "](soak.png)" in text


async def nothing() -> dict[str, float]:
    return {}


async def test_process_is_looked_at_from_outside(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        watch = Watch({"ours": os.getpid()}, redis.url, lambda: 3, nothing)
        await watch.look()
        with (tmp_path / "file").open("w"):
            await watch.look()
    first, second = (one.held["ours"] for one in watch.samples)
    assert second.num_fds > first.num_fds and 0 < first.uss_bytes <= first.rss_bytes
    assert watch.samples[0].num_requests == 3 and watch.samples[0].num_redis_keys == 0


async def test_overload_is_played_to_its_end(gateway: Gateway) -> None:
    """Far more than one generation at a time allows, so that some wait and some are refused; nobody hangs."""
    async with client(gateway.base_url, API_KEY) as http:
        load = Load(dict.fromkeys(OWNERS, http), "semspec-demo")
        burst = Stage("burst", 200.0, is_patient=False)
        visits = await load.play(burst, capacity=1.0, duration_s=0.3)
        found = facts(visits)
        assert found["num_answered"] + found["num_refused"] == found["num_requests"] > 10
        assert found["num_hung"] == found["num_other"] == 0 and found["num_answered"]
        assert await gauges(http) == {"generations_in_flight": 0, "queue_depth": 0}


async def test_answer_holds_what_the_gateway_says_of_it(gateway: Gateway) -> None:
    async with client(gateway.base_url, API_KEY) as http:
        body = {"model": "semspec-demo", "messages": [{"role": "user", "content": "How many?"}]}
        answer = await ask(http, body, 30)
        assert answer.is_whole and answer.num_tokens > 0
        assert 0 < answer.service_s <= answer.latency_s and answer.first_segment_s <= answer.latency_s  # type: ignore[operator]
        refused = await ask(http, {**body, "n": 9}, 30)
        assert refused.code == "invalid_value" and refused.retry_after_s is None
        gateway.fakes.drafter.stuck_at = 1
        assert (await ask(http, body, 0.2)).code == HUNG
        await eventually(lambda: gateway.fakes.num_writing == 0)


async def test_soak_is_played_without_an_error(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        async with running_gateway(make_settings(redis_url=redis.url), Fakes.make()) as gateway:
            async with client(gateway.base_url, API_KEY) as http:
                clients = Clients(http, "semspec-demo")
                await clients.ask_all(80, 4)
            assert clients.errors == {} and clients.num_ended == 80
            assert set(clients.endings) == {"read", *CANCELLATIONS}


class Noted(Load):
    """Asks nobody, and notes what it is told to play."""

    def __init__(self) -> None:
        super().__init__({}, "")
        self.played: list[tuple[str, float]] = []

    async def capacity(self, num_clients: int, duration_s: float) -> tuple[float, list[Answer]]:
        self.played.append((f"{num_clients} clients", duration_s))
        return 5.0, [Answer(1.0)]

    async def play(self, stage: Stage, capacity: float, duration_s: float) -> list[Visit]:
        self.played.append((stage.name, duration_s))
        return [visit(stage.name, "")]


async def test_stages_take_turns() -> None:
    load, full = Noted(), ("4 clients", 1.5)
    found = await measured(load, Plan(4, 16, 5.0, 3.0, 2), STAGES[:2])
    assert found.capacities == [5.0, 5.0] and len(found.full) == 2 and len(found.visits) == 4
    assert load.played[1:] == [full, ("0.5x", 1.5), ("1x", 1.5), full, ("1x", 1.5), ("0.5x", 1.5)]
