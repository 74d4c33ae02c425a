"""Slots for generations: shared fairly, queued for with a bound, and always released, in any order of requests."""

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semspec.errors import Overloaded
from semspec.keys import entry
from semspec.types import Token
from semspec_gateway.generation.admission import MAX_RETRY_AFTER_S, Admission, Limits
from semspec_gateway.metrics import Metrics
from tests.helpers.gateway import GENEROUS_S, GatewayFactory, bearer, eventually

TARGET: dict[str, Any] = {"model": "semspec-demo:target"}
NUM_STEPS = 4
"""Rounds of the event loop after which every task waits."""


@dataclass(eq=False)
class Client:
    """One request: waits for slots, and keeps them until `done` is set."""

    owner: str
    num_generations: int
    number: int
    is_running: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None]" = field(init=False)

    async def hold(self, admission: Admission) -> None:
        async with admission.admitted(self.owner, self.num_generations):
            self.is_running = True
            try:
                await self.done.wait()
            finally:
                self.is_running = False

    @property
    def is_waiting(self) -> bool:
        return not self.task.done() and not self.is_running

    @property
    def refusal(self) -> Overloaded | None:
        error = self.task.exception() if self.task.done() and not self.task.cancelled() else None
        return error if isinstance(error, Overloaded) else None


class AdmissionClients:
    """An admission queue and all its clients, by order of arrival."""

    def __init__(self, limits: Limits) -> None:
        self.now_s = 0.0
        """Only tests advance it."""
        self.metrics = Metrics()
        self.admission = Admission(limits, self.metrics, lambda: self.now_s)
        self.clients: list[Client] = []

    async def ask(self, owner: str = "", num_generations: int = 1) -> Client:
        client = Client(owner, num_generations, len(self.clients))
        self.clients.append(client)
        client.task = asyncio.create_task(client.hold(self.admission))
        await settle()
        return client

    async def leave(self, client: Client) -> None:
        client.done.set()
        await settle()

    async def aclose(self) -> None:
        """Every client leaves, and no slot is lost."""
        for client in self.clients:
            client.task.cancel()
        await asyncio.gather(*(client.task for client in self.clients), return_exceptions=True)
        assert (self.admission.num_running, self.admission.num_waiting) == (0, 0)

    @property
    def running(self) -> list[Client]:
        return [client for client in self.clients if client.is_running]

    @property
    def waiting(self) -> list[Client]:
        return [client for client in self.clients if client.is_waiting]

    def num_generations(self, owner: str | None = None) -> int:
        return sum(
            client.num_generations for client in self.running if owner in (None, client.owner)
        )


async def settle() -> None:
    for _ in range(NUM_STEPS):
        await asyncio.sleep(0)


def admission_clients(
    capacity: int, max_queued: int = 1000, timeout_s: float = 600
) -> "aclosing[AdmissionClients]":
    return aclosing(AdmissionClients(Limits(capacity, capacity, max_queued, timeout_s)))


async def in_turn(here: AdmissionClients) -> list[Client]:
    """All clients by order of admission; the longest running one leaves first."""
    served = list(here.running)
    for leaving in served:
        await here.leave(leaving)
        served.extend(client for client in here.running if client not in served)
    return served


async def test_one_greedy_owner_takes_nothing_from_a_modest_one() -> None:
    """A hundred requests of one key are there first; each of the other key's is next in turn all the same."""
    async with admission_clients(capacity=4, max_queued=64) as here:
        for _ in range(100):
            await here.ask("greedy")
        modest = [await here.ask("modest") for _ in range(20)]
        assert all(client.is_waiting for client in modest)
        served = await in_turn(here)
        assert len(served) == 4 + 64, "whoever ran or could wait"
        assert {client.owner for client in served[:4]} == {"greedy"}
        assert Counter(client.owner for client in served[4:44])["modest"] == 20, (
            "half of the room as long as it asks"
        )


async def test_full_queue_refuses_the_newcomer_where_all_ask_alike() -> None:
    async with admission_clients(capacity=1, max_queued=2) as here:
        clients = [await here.ask(owner) for owner in ("a", "a", "b", "c")]
        assert [client.refusal is not None for client in clients] == [False, False, False, True]


async def test_full_queue_refuses_the_latest_of_the_busiest_owner() -> None:
    async with admission_clients(capacity=1, max_queued=3) as here:
        greedy = [await here.ask("greedy") for _ in range(4)]
        modest = await here.ask("modest")
        assert modest.is_waiting and greedy[3].refusal is not None
        assert greedy[1].is_waiting and greedy[2].is_waiting
        assert (await here.ask("greedy")).refusal is not None


async def test_wait_for_slot_times_out() -> None:
    async with admission_clients(capacity=1, timeout_s=0.01) as here:
        await here.ask()
        late = await here.ask()
        await eventually(lambda: late.refusal is not None)
        assert late.refusal is not None and "no free slot for 0.01 s" in late.refusal.message
        assert here.admission.num_waiting == 0


@pytest.mark.parametrize(
    ("held_s", "num_waiting", "retry_after_s"),
    [(0.01, 0, 1), (4.0, 0, 2), (4.0, 3, 8), (1000.0, 3, MAX_RETRY_AFTER_S)],
)
async def test_refused_are_told_when_room_may_come(
    held_s: float, num_waiting: int, retry_after_s: int
) -> None:
    """Two at a time, each as long as those before: what waits and the newcomer take as many turns of half of that."""
    async with admission_clients(capacity=2, max_queued=num_waiting) as here:
        for _ in range(40):
            client = await here.ask()
            here.now_s += held_s
            await here.leave(client)
        clients = [await here.ask() for _ in range(2 + num_waiting + 1)]
        assert clients[-1].refusal is not None
        assert clients[-1].refusal.retry_after_s == retry_after_s


async def test_wait_is_measured_from_asking_to_having_room() -> None:
    async with admission_clients(capacity=1) as here:
        first = await here.ask()
        await here.ask()
        assert b"semspec_gateway_queue_depth 1.0" in here.metrics.exposition()
        here.now_s += 3
        await here.leave(first)
        exposed = here.metrics.exposition()
        assert b"semspec_gateway_queue_depth 0.0" in exposed
        assert b"semspec_gateway_queue_wait_seconds_count 2.0" in exposed
        assert b"semspec_gateway_queue_wait_seconds_sum 3.0" in exposed


async def test_request_over_http_waits_for_room(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(max_concurrent=1)
    async with gateway.held(2) as running:
        waiting = asyncio.create_task(gateway.chat(model="semspec-demo:draft"))
        await eventually(lambda: gateway.app.state.admission.num_waiting == 1)
        prompts = gateway.fakes.drafter.prompts + gateway.fakes.target.prompts
        assert len(prompts) == 1, "not tokenized before it has room"
    assert [response.status_code for response in (running.response, await waiting)] == [200, 200]


async def test_client_that_hangs_up_in_the_queue_leaves_no_trace(
    start_gateway: GatewayFactory,
) -> None:
    gateway = await start_gateway(max_concurrent=1)
    admission = gateway.app.state.admission
    async with gateway.held(2) as running:
        for stream in (False, True):
            waiting = asyncio.create_task(gateway.chat(stream=stream))
            await eventually(lambda: admission.num_waiting == 1)
            waiting.cancel()
            await eventually(lambda: admission.num_waiting == 0)
    assert running.response.status_code == 200
    await eventually(lambda: admission.num_running == 0)


async def test_reattached_generation_asks_for_room_as_any_other(
    start_gateway: GatewayFactory,
) -> None:
    first = await start_gateway()
    second = await start_gateway(max_concurrent=1, queue_timeout_s=0.05)
    id = (await first.hang_up_after(2, **TARGET))[0]["id"]
    async with second.held(2, model="semspec-demo:draft"):
        refused = await second.events(id)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert (await second.events(id)).status_code == 200


async def test_choices_attached_again_have_their_room_together(
    start_gateway: GatewayFactory,
) -> None:
    """Else two requests of two choices each would take a part of it each, and wait for the other's."""
    first = await start_gateway()
    second = await start_gateway(max_concurrent=2, queue_timeout_s=GENEROUS_S)
    ids = [(await first.hang_up_after(1, n=2, **TARGET))[0]["id"] for _ in range(2)]
    target = second.fakes.target
    target.pause_at = 2
    attached = [asyncio.create_task(second.events(id)) for id in ids]
    await asyncio.wait_for(target.paused.wait(), GENEROUS_S)
    await eventually(lambda: second.app.state.admission.num_waiting == 1)
    await eventually(lambda: target.num_writing == 2)
    target.pause_at = None
    target.resume.set()
    for response in await asyncio.gather(*attached):
        assert response.status_code == 200 and response.text.endswith("data: [DONE]\n\n")


async def test_owner_who_tokenizes_long_texts_leaves_room_for_others(
    start_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {owner: f"sk-{owner}" for owner in ("greedy", "modest")}
    gateway = await start_gateway(
        api_keys=" ".join(entry(owner, key) for owner, key in keys.items())
    )
    held, begun = asyncio.Event(), list[str]()
    tokenize = gateway.fakes.target.tokenize

    async def slow(text: str) -> list[Token]:
        begun.append(text)
        if text == "slow":
            await held.wait()
        return await tokenize(text)

    monkeypatch.setattr(gateway.fakes.target, "tokenize", slow)

    async def ask(owner: str, text: str) -> int:
        headers = bearer(keys[owner])
        return (
            await gateway.http.post("/tokenize", json={"inputs": text}, headers=headers)
        ).status_code

    async with asyncio.timeout(GENEROUS_S):
        many = asyncio.gather(*(ask("greedy", "slow") for _ in range(12)))
        await eventually(lambda: len(begun) == 2)
        assert await ask("modest", "quick") == 200 and begun == ["slow", "slow", "quick"]
        held.set()
        assert await many == [200] * 12


class AnyOrder(RuleBasedStateMachine):
    """Requests arrive, end and disconnect in any order, several of them in one round of the event loop."""

    capacity, per_owner, max_queued = 5, 3, 6
    max_generations = 3

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.here = AdmissionClients(Limits(self.capacity, self.per_owner, self.max_queued, 600))

    @rule(owner=st.sampled_from("abc"), num_generations=st.integers(1, max_generations))
    def come(self, owner: str, num_generations: int) -> None:
        self.loop.run_until_complete(self.here.ask(owner, num_generations))

    @precondition(lambda self: self.here.running or self.here.waiting)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Up to four end or disconnect in one round of the event loop."""
        alive = [client.number for client in (*self.here.running, *self.here.waiting)]
        for number in data.draw(
            st.lists(st.sampled_from(alive), min_size=1, max_size=4, unique=True)
        ):
            client = self.here.clients[number]
            client.done.set() if data.draw(st.booleans()) else client.task.cancel()
        self.loop.run_until_complete(settle())

    @invariant()
    def keeps_its_promises(self) -> None:
        here, admission = self.here, self.here.admission
        assert admission.num_running == here.num_generations() <= self.capacity
        assert admission.num_waiting == len(here.waiting) <= self.max_queued
        for owner in "abc":
            assert here.num_generations(owner) <= self.per_owner
        self._nobody_waits_while_the_next_in_turn_has_room()
        self._first_come_first_served_within_an_owner()

    def _nobody_waits_while_the_next_in_turn_has_room(self) -> None:
        first = {client.owner: client for client in reversed(self.here.waiting)}.values()
        held = {client: self.here.num_generations(client.owner) for client in first}
        able = [
            client for client in first if held[client] + client.num_generations <= self.per_owner
        ]
        if able:
            turn = min(able, key=lambda client: (held[client], client.number))
            assert self.here.num_generations() + turn.num_generations > self.capacity

    def _first_come_first_served_within_an_owner(self) -> None:
        for owner in "abc":
            oldest = next(
                (client.number for client in self.here.waiting if client.owner == owner),
                len(self.here.clients),
            )
            assert all(
                client.number < oldest for client in self.here.running if client.owner == owner
            )

    def teardown(self) -> None:
        self.loop.run_until_complete(self.here.aclose())
        self.loop.close()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
