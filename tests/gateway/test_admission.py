"""Slots for generations: shared fairly, queued for with a bound, and always released; see also the machine of
`test_admission_in_any_order`."""

from collections import Counter

import pytest

from semspec.gateway.generation.admission import MAX_RETRY_AFTER_S
from tests.gateway.admission_clients import admission_clients, in_turn
from tests.gateway.support import eventually


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
        assert Counter(client.owner for client in served[4:44])["modest"] == 20, "half of the room as long as it asks"


async def test_room_granted_to_whoever_hangs_up_in_that_moment_is_passed_on() -> None:
    async with admission_clients(capacity=1) as here:
        async with here.admission.admitted("", 1):
            second, third = await here.ask(), await here.ask()
        assert here.admission.num_running == 1 and second.is_waiting, "it has room and does not know yet"
        await here.hang_up(second)
        assert third.is_running and second.task.cancelled()


async def test_error_inside_gives_the_room_back() -> None:
    async with admission_clients(capacity=1) as here:
        with pytest.raises(ZeroDivisionError):
            async with here.admission.admitted("", 1):
                raise ZeroDivisionError
        assert (await here.ask()).is_running


async def test_full_queue_refuses_the_newcomer_where_all_ask_alike() -> None:
    async with admission_clients(capacity=1, max_queued=2) as here:
        clients = [await here.ask(owner) for owner in ("a", "a", "b", "c")]
        assert [client.refusal is not None for client in clients] == [False, False, False, True]


async def test_full_queue_displaces_the_youngest_of_the_greediest() -> None:
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
    ("held_s", "num_waiting", "retry_after_s"), [(0.01, 0, 1), (4.0, 0, 2), (4.0, 3, 8), (1000.0, 3, MAX_RETRY_AFTER_S)]
)
async def test_refused_are_told_when_room_may_come(held_s: float, num_waiting: int, retry_after_s: int) -> None:
    """Two at a time, each as long as those before: what waits and the newcomer take as many turns of half of that."""
    async with admission_clients(capacity=2, max_queued=num_waiting) as here:
        for _ in range(40):
            client = await here.ask()
            here.clock.now_s += held_s
            await here.leave(client)
        clients = [await here.ask() for _ in range(2 + num_waiting + 1)]
        assert clients[-1].refusal is not None and clients[-1].refusal.retry_after_s == retry_after_s


async def test_wait_is_measured_from_asking_to_having_room() -> None:
    async with admission_clients(capacity=1) as here:
        first = await here.ask()
        await here.ask()
        assert b"semspec_gateway_queue_depth 1.0" in here.metrics.exposition()
        here.clock.now_s += 3
        await here.leave(first)
        exposed = here.metrics.exposition()
        assert b"semspec_gateway_queue_depth 0.0" in exposed
        assert b"semspec_gateway_queue_wait_seconds_count 2.0" in exposed
        assert b"semspec_gateway_queue_wait_seconds_sum 3.0" in exposed
