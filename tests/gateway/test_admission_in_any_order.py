"""Invariants of the admission queue under arrivals, ends and disconnects in any order."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semspec.gateway.generation.admission import Limits
from tests.gateway.admission_clients import AdmissionClients, admission_clients, in_turn, settle


class AnyOrder(RuleBasedStateMachine):
    """Requests arrive, end and disconnect in any order, several of them in one round of the event loop."""

    capacity, per_owner, max_queued = 5, 3, 6
    max_generations = 3

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.here = self.loop.run_until_complete(self._open())

    async def _open(self) -> AdmissionClients:
        return AdmissionClients(Limits(self.capacity, self.per_owner, self.max_queued, 600))

    @rule(owner=st.sampled_from("abc"), num_generations=st.integers(1, max_generations))
    def come(self, owner: str, num_generations: int) -> None:
        self.loop.run_until_complete(self.here.ask(owner, num_generations))

    @precondition(lambda self: self.here.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.here.running).map(lambda client: client.number))
        self.loop.run_until_complete(self.here.leave(self.here.clients[client]))

    @precondition(lambda self: self.here.running or self.here.waiting)
    @rule(data=st.data())
    def happen_at_once(self, data: st.DataObject) -> None:
        """Several ends and disconnects in one round of the event loop."""
        alive = [client.number for client in (*self.here.running, *self.here.waiting)]
        for number in data.draw(st.lists(st.sampled_from(alive), min_size=1, max_size=4, unique=True)):
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
        able = [client for client in first if held[client] + client.num_generations <= self.per_owner]
        if able:
            turn = min(able, key=lambda client: (held[client], client.number))
            assert self.here.num_generations() + turn.num_generations > self.capacity

    def _first_come_first_served_within_an_owner(self) -> None:
        for owner in "abc":
            oldest = next(
                (client.number for client in self.here.waiting if client.owner == owner), len(self.here.clients)
            )
            assert all(client.number < oldest for client in self.here.running if client.owner == owner)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.here.close())
        assert (self.here.admission.num_running, self.here.admission.num_waiting) == (0, 0)
        self.loop.close()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 3)), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_everybody_in_the_queue_is_served_in_the_end(asked: list[tuple[str, int]]) -> None:
    async def all_served() -> bool:
        async with admission_clients(capacity=3, per_owner=3) as here:
            clients = [await here.ask(*one) for one in asked]
            return set(await in_turn(here)) == set(clients)

    assert asyncio.run(all_served())
