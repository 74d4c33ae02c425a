"""Which replica gets a call: sessions stay where they are, and nobody gets much more than the others."""

from collections import Counter
from dataclasses import dataclass
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from semspec.rpc.replica import Health
from semspec.rpc.selection import BALANCE, best, capacity, weight

NUM_SESSIONS = 3000
SESSIONS = [f"session-{i}" for i in range(NUM_SESSIONS)]

addresses = st.lists(
    st.from_regex(r"10\.0\.0\.[1-9][0-9]?:50052", fullmatch=True),
    min_size=1,
    max_size=9,
    unique=True,
)
loads = st.lists(st.integers(0, 40), min_size=1, max_size=9)


@dataclass
class Endpoint:
    """A replica as the choice sees it."""

    address: str
    num_in_flight: int = 0
    health: Health = Health.SERVING
    is_overloaded: bool = False


def places(count: int) -> list[Endpoint]:
    return [Endpoint(f"10.0.0.{i}:50052") for i in range(1, count + 1)]


@given(addresses, st.text(min_size=1), st.data())
def test_replica_that_goes_moves_only_its_own_sessions(
    addresses: list[str], session: str, data: st.DataObject
) -> None:
    before = [Endpoint(address) for address in addresses]
    gone = data.draw(st.sampled_from(addresses))
    after = [endpoint for endpoint in before if endpoint.address != gone]
    chosen = best(before, session).address
    assert chosen == gone or best(after, session).address == chosen


@pytest.mark.parametrize("count", [2, 3, 8])
def test_replica_that_comes_takes_its_share_and_nothing_else_moves(count: int) -> None:
    before, after = places(count - 1), places(count)
    newcomer = after[-1].address
    moved = [to for s in SESSIONS if best(before, s).address != (to := best(after, s).address)]
    assert set(moved) == {newcomer}
    assert 0.8 / count < len(moved) / NUM_SESSIONS < 1.2 / count


@pytest.mark.parametrize("count", [2, 5, 16])
def test_sessions_are_spread_evenly(count: int) -> None:
    shares = Counter(best(places(count), session).address for session in SESSIONS)
    assert chisquare([shares[endpoint.address] for endpoint in places(count)]).pvalue > 0.001


@given(loads, st.lists(st.integers(0, 99).map(str), min_size=1, max_size=60))
def test_no_replica_gets_more_than_its_bound(loads: list[int], sessions: list[str]) -> None:
    replicas = places(len(loads))
    for replica, load in zip(replicas, loads, strict=True):
        replica.num_in_flight = load
    for session in sessions:
        mean = sum(replica.num_in_flight for replica in replicas) / len(replicas)
        chosen = best(replicas, session)
        assert chosen.num_in_flight <= ceil(BALANCE * mean)
        chosen.num_in_flight += 1


def test_session_spills_over_to_the_next_in_its_order_and_comes_back() -> None:
    replicas = places(3)
    first, second, _ = sorted(replicas, key=lambda endpoint: -weight("s", endpoint.address))
    assert best(replicas, "s") is first
    first.num_in_flight = capacity([1, 0, 0]) + 1
    assert best(replicas, "s") is second
    second.num_in_flight = first.num_in_flight = 0
    second.is_overloaded = True
    assert best(replicas, "s") is first
    first.is_overloaded, second.is_overloaded = True, False
    assert best(replicas, "s") is second


def test_calls_without_a_session_go_where_the_fewest_are() -> None:
    replicas = places(4)
    for _ in range(40):
        best(replicas, "").num_in_flight += 1
    assert [replica.num_in_flight for replica in replicas] == [10, 10, 10, 10]


def test_healthier_replicas_are_taken_however_busy_they_are() -> None:
    serving, unknown, away = replicas = places(3)
    serving.num_in_flight, unknown.health, away.health = 99, Health.UNKNOWN, Health.NOT_SERVING
    for session in ("", *SESSIONS[:50]):
        assert best(replicas, session) is serving
        assert best(replicas[1:], session) is unknown


@given(st.text())
def test_any_session_has_a_weight(session: str) -> None:
    assert 0 <= weight(session + "\ud800", "10.0.0.1:1") < 2**64
