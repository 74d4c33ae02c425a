"""The Lua scripts, on a real Redis."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

from semspec.background import Background
from semspec.errors import Cancelled, Conflict, NotFound
from semspec.stack.redis import private_redis, servers
from semspec.types import Message
from semspec_gateway.store.leases import Account, Journal, Leases
from semspec_gateway.store.store import (
    FIRST_FENCE,
    NUM_CONNECTIONS,
    NUM_WATCHES,
    UNLIMITED_OWNER_BYTES,
    Store,
)
from tests.helpers.gateway import eventually, make_settings, redis_server

TTL_S = 1000
FIRST, SECOND = "first 1 a", "second 1 b"
"""Claims on a session: generation, fence, nonce."""


@pytest.fixture(scope="module", params=servers(), ids=lambda program: Path(program).parent.name)
def redis_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Each redis-server at hand: the bundled 6.2, and the one of the system if there is one."""
    with redis_server(tmp_path_factory.mktemp("redis"), request.param) as server:
        yield server.url


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    settings = make_settings(
        redis_url=redis_url, redis_timeout_s=5, ttl_s=TTL_S, max_generation_bytes=1024
    )
    store = Store(settings)
    yield store
    await store.close()


async def assert_conflicts(*calls: Awaitable[object], match: str | None = None) -> None:
    for call in calls:
        with pytest.raises(Conflict, match=match):
            await call


@pytest.fixture
def name() -> str:
    return f"test-{secrets.token_hex(8)}"


@pytest.fixture
async def begun(store: Store, name: str) -> str:
    """The id of a generation that runs."""
    await store.begin(name, {"status": "running", "model": "m"})
    return name


async def test_a_generation_begins_once(store: Store, name: str) -> None:
    await store.begin(name, {"status": "running"})
    await assert_conflicts(store.begin(name, {"status": "other"}), match="exists")
    assert (await store.state(name))["status"] == "running"


async def test_append_at_another_version_is_a_conflict_and_a_repeated_one_is_none(
    store: Store, begun: str
) -> None:
    for _ in range(2):
        await store.append(begun, FIRST_FENCE, 0, '{"index": 0}')
    changed = (store.append(begun, FIRST_FENCE, version, '{"index": 9}') for version in (0, 2))
    await assert_conflicts(*changed, match="changed")
    assert await store.trace(begun) == ['{"index": 0}']


async def test_running_generation_without_a_lease_reads_as_interrupted(
    store: Store, redis: Redis, begun: str
) -> None:
    await redis.delete(f"semspec:{{{begun}}}:writer")  # as when the lease expires
    meta = await store.state(begun)
    assert meta["status"] == "interrupted" and meta["model"] == "m"
    await store.hold(begun, FIRST_FENCE)  # the writer was only slow
    assert (await store.state(begun))["status"] == "running"


async def test_append_to_an_expired_generation_is_refused(store: Store, name: str) -> None:
    for refused in (store.append(name, FIRST_FENCE, 0, "{}"), store.state(name)):
        with pytest.raises(NotFound):
            await refused
    assert await store.trace(name) == []


async def test_append_renews_both_keys(store: Store, redis: Redis, begun: str) -> None:
    keys = [f"semspec:{{{begun}}}:meta", f"semspec:{{{begun}}}:segments"]
    await redis.expire(keys[0], 5)
    await store.append(begun, FIRST_FENCE, 0, "{}")
    for key in keys:
        assert TTL_S - 60 < await redis.ttl(key) <= TTL_S
        await redis.expire(key, 5)
    await store.finish(begun, FIRST_FENCE, {"status": "finished"})
    for key in keys:
        assert TTL_S - 60 < await redis.ttl(key) <= TTL_S


async def test_a_session_has_one_holder(store: Store, redis: Redis, name: str) -> None:
    assert await store.claim(name, FIRST, 100) == ()
    await assert_conflicts(store.claim(name, SECOND, 100))
    await store.release(name, SECOND)
    await assert_conflicts(store.claim(name, SECOND, 100))
    turns = (Message("user", "q"), Message("assistant", "a"))
    await store.commit(name, FIRST, 0, turns)
    assert await store.claim(name, SECOND, 100) == turns
    assert 0 < await redis.ttl(f"semspec:session:{{{name}}}:turns") <= TTL_S
    await store.release(name, SECOND)
    assert await store.claim(name, "third 1 c", 100) == turns


async def test_lease_runs_out_unless_renewed(store: Store, redis: Redis, name: str) -> None:
    await store.claim(name, FIRST, 100)
    await store.renew(name, FIRST, 500)
    assert await redis.ttl(f"semspec:session:{{{name}}}:claim") > 400
    await redis.delete(f"semspec:session:{{{name}}}:claim")
    await store.claim(name, SECOND, 100)
    await assert_conflicts(
        store.renew(name, FIRST, 100), store.commit(name, FIRST, 0, [Message("user", "late")])
    )


async def test_commit_checks_the_version(store: Store, redis: Redis, name: str) -> None:
    await store.claim(name, FIRST, 100)
    await redis.rpush(
        f"semspec:session:{{{name}}}:turns", '{"role": "user", "content": "in between"}'
    )
    await assert_conflicts(store.commit(name, FIRST, 0, [Message("user", "q")]))
    assert await store.claim(name, SECOND, 100) == (Message("user", "in between"),)


async def test_keys_of_a_name_share_a_slot(store: Store, redis: Redis, name: str) -> None:
    await store.begin(name, {"status": "running"})
    await store.append(name, FIRST_FENCE, 0, "{}")
    await store.claim(name, FIRST, 100)
    await store.commit(name, FIRST, 0, [Message("user", "q")])
    keys = [key async for key in redis.scan_iter(f"*{name}*")]
    assert len(keys) == 5 and all(f"{{{name}}}" in key for key in keys)


async def test_generation_has_one_writer(store: Store, begun: str) -> None:
    assert await store.take(begun) == "held"
    await store.finish(begun, FIRST_FENCE, {"status": "interrupted"})
    fence = await store.take(begun)
    assert fence == FIRST_FENCE + 1 and await store.take(begun) == "held"
    late = (store.append(begun, FIRST_FENCE, 0, "{}"), store.hold(begun, FIRST_FENCE))
    await assert_conflicts(*late, match="taken over")
    await store.append(begun, fence, 0, "{}")
    await store.finish(begun, fence, {"status": "finished"})
    assert await store.take(begun) == "ended"
    with pytest.raises(NotFound):
        await store.take("nobody's")


async def test_cancelled_generation_takes_nothing_more(store: Store, begun: str) -> None:
    await store.append(begun, FIRST_FENCE, 0, "{}")
    await store.cancel(begun)
    await store.cancel(begun)
    late = store.append(begun, FIRST_FENCE, 1, "{}"), store.hold(begun, FIRST_FENCE)
    for refused in (*late, store.finish(begun, FIRST_FENCE, {"status": "finished"})):
        with pytest.raises(Cancelled):
            await refused
    assert (await store.state(begun))["status"] == "cancelled"
    assert len(await store.trace(begun)) == 1
    assert await store.take(begun) == "ended"


async def test_session_is_claimed_again_by_its_own_generation_only(store: Store, name: str) -> None:
    await store.claim(name, FIRST, 100)
    assert await store.claim(name, FIRST, 100) == (), "a repeated claim is no conflict"
    await assert_conflicts(
        *(store.claim(name, other, 100) for other in (SECOND, "first 1 another"))
    )
    turns = [Message("user", "q"), Message("assistant", "a")]
    await store.commit(name, FIRST, 0, turns)
    await store.commit(name, FIRST, 0, turns)
    assert await store.claim(name, SECOND, 100) == tuple(turns), "a repeated commit adds nothing"


async def test_cancelled_caller_stops_at_once(store: Store, begun: str) -> None:
    """redis-py swallows a cancellation now and then; a generation whose client is gone must not go on."""

    async def write() -> None:
        while True:
            await store.hold(begun, FIRST_FENCE)

    for round in range(20):
        tasks = [asyncio.create_task(write()) for _ in range(3)]
        await asyncio.sleep(0.001 * round)
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(tasks, timeout=5)
        assert not pending


async def test_session_passes_to_the_next_writer_of_its_generation(store: Store, name: str) -> None:
    heir = "first 2 b"
    await store.claim(name, FIRST, 100)
    assert await store.claim(name, heir, 100) == ()
    await assert_conflicts(
        store.renew(name, FIRST, 100), store.commit(name, FIRST, 0, [Message("user", "late")])
    )
    await store.release(name, FIRST)
    await assert_conflicts(store.claim(name, SECOND, 100))
    await store.commit(name, heir, 0, [Message("user", "q")])


async def test_claim_that_ran_out_still_counts_if_nobody_came(store: Store, name: str) -> None:
    turn = Message("user", "q")
    await store.claim(name, FIRST, 0.02)
    await asyncio.sleep(0.05)
    await store.renew(name, FIRST, 0.02)
    await asyncio.sleep(0.05)
    await store.commit(name, FIRST, 0, [turn])
    assert await store.claim(name, SECOND, 100) == (turn,)


async def test_end_of_a_generation_is_said_once(store: Store, redis: Redis, begun: str) -> None:
    for _ in range(2):
        await store.finish(begun, FIRST_FENCE, {"status": "finished"})
    interrupted = store.finish(begun, FIRST_FENCE, {"status": "interrupted"})
    await assert_conflicts(
        interrupted, store.append(begun, FIRST_FENCE, 0, "{}"), store.hold(begun, FIRST_FENCE)
    )
    assert (await store.state(begun))["status"] == "finished" and await store.take(begun) == "ended"
    assert 0 < await redis.ttl(f"semspec:{{{begun}}}:events") <= 10, (
        "no one waits for a change any more"
    )


async def test_turns_may_be_many(store: Store, name: str) -> None:
    turns = [Message("user", "q")] * 9000
    await store.claim(name, FIRST, 100)
    await store.commit(name, FIRST, 0, turns)
    assert len(await store.claim(name, SECOND, 100)) == len(turns)


async def test_follower_wakes_at_a_change_and_not_before(store: Store, begun: str) -> None:
    assert await store.next_event(begun, "0", 0.01) == "0", "nothing has changed since it began"
    await store.append(begun, FIRST_FENCE, 0, '{"index": 0}')
    first = await store.next_event(begun, "0", 60)
    waiting = asyncio.create_task(store.next_event(begun, first, 60))
    await store.append(begun, FIRST_FENCE, 1, '{"index": 1}')
    second = await waiting
    await store.cancel(begun)
    third = await store.next_event(begun, second, 60)
    assert len({first, second, third}) == 3
    for timeout_s in (0.01, 0.0001):
        assert await store.next_event(begun, third, timeout_s) == third


async def stored_bytes(redis: Redis, owner: str) -> int:
    """Return the bytes that the account of an owner counts."""
    counted = await redis.hgetall(f"semspec:{{owner:{owner}}}:bytes")
    total = int(counted.pop("", 0))
    assert total == sum(map(int, counted.values()))
    return total


async def test_owner_over_its_quota_loses_what_it_used_longest_ago(
    store: Store, redis: Redis, name: str
) -> None:
    store.max_owner_bytes = 1000
    ids = [f"{name}x{number}" for number in range(4)]
    for id in ids[:3]:
        await store.account(name, f"generation {id} 2", 300)
        await store.keep_request(id, {"call": "{}"})
        for choice in (id, f"{id}-1"):
            await store.begin(choice, {"status": "running"})
            await store.append(choice, FIRST_FENCE, 0, "{}")
        await asyncio.sleep(0.002)
    await store.account(name, f"generation {ids[0]} 2", 0)
    await store.account(name, f"generation {ids[3]} 1", 300)
    assert await redis.keys(f"semspec:{{{ids[1]}*") == []
    for id in (ids[0], ids[2]):
        assert len(await redis.keys(f"semspec:{{{id}*")) == 9
    assert await stored_bytes(redis, name) == 900


async def test_session_is_dropped_like_a_generation(store: Store, redis: Redis, name: str) -> None:
    store.max_owner_bytes = 1000
    for session, num_bytes in (("first", 600), ("second", 300), ("third", 300)):
        await store.account(name, f"session {session}", num_bytes)
        await store.claim(f"{name}/{session}", FIRST, 100)
        await store.commit(f"{name}/{session}", FIRST, 0, [Message("user", "q")])
        await asyncio.sleep(0.002)
    assert [
        len(await store.turns(f"{name}/{session}")) for session in ("first", "second", "third")
    ] == [0, 1, 1]
    await store.forget("second", name)
    assert await stored_bytes(redis, name) == 300


async def test_account_counts_all_texts_of_a_session(store: Store, redis: Redis, name: str) -> None:
    background = Background()
    async with AsyncExitStack() as stack:
        lease = await Leases(store, background, 6).session("s", name, f"{name} 1", stack)
        assert lease
        assert await lease.commit(
            [Message("tool", "a", tool_call_id="b" * 10_000, name="c" * 10_000)], 0
        )
    assert await stored_bytes(redis, name) > 20_000
    await background.drain(5)


async def test_session_with_a_running_request_is_not_dropped(
    store: Store, redis: Redis, name: str
) -> None:
    store.max_owner_bytes = 1000
    background, session, turns = Background(), f"{name}/s", [Message("user", "q")]
    leases = Leases(store, background, 6)
    for version in range(2):
        async with AsyncExitStack() as stack:
            lease = await leases.session("s", name, f"{name}{version} 1", stack)
            if version:
                await store.account(name, "generation other 1", 400)
                await assert_conflicts(
                    store.account(name, "generation large 1", 900), match="share of the store"
                )
            assert lease and await lease.commit(turns, version)
    assert len(await store.turns(session)) == 2
    await background.drain(5)


async def test_request_is_in_use_until_its_last_choice_has_ended(
    store: Store, redis: Redis, name: str
) -> None:
    store.max_owner_bytes = 10_000
    background, request = Background(), f"{name}x"
    leases, account = Leases(store, background, 6), Account(request, name, 2)
    assert await leases.keep_request(account, {"call": "{}"})
    journals = [Journal(leases, id, account, asyncio.Event()) for id in (request, f"{request}-1")]
    for journal in journals:
        await journal.begin({"status": "running"})
        journal.beat()
    await journals[0].finish("finished")
    await asyncio.sleep(0.05)  # what is counted after the end
    await assert_conflicts(
        store.account(name, "generation large 1", 9000), match="share of the store"
    )
    await journals[1].append(0, "{}")
    await journals[1].finish("finished")
    assert not journals[1].degraded
    await background.drain(5)
    await store.account(name, "generation large 1", 9000)


async def test_quota_of_one_owner_takes_nothing_from_another(
    store: Store, redis: Redis, name: str
) -> None:
    store.max_owner_bytes = 1000
    await store.account(f"{name}-other", "session s", 900)
    for number in range(10):
        await store.account(name, f"generation {name}{number} 1", 400)
    assert await stored_bytes(redis, f"{name}-other") == 900
    assert await stored_bytes(redis, name) == 800


async def test_what_is_in_use_is_not_dropped(store: Store, redis: Redis, name: str) -> None:
    store.max_owner_bytes = 1000
    await store.account(name, "generation idle 1", 300)
    for id in ("first", "second"):
        await store.account(name, f"generation {id} 1", 300, use_s=60)
    await assert_conflicts(
        store.account(name, "generation large 1", 500), match="share of the store"
    )
    assert await stored_bytes(redis, name) == 900, "nothing is dropped in vain"
    await store.account(name, "generation third 1", 300, use_s=60)
    assert await stored_bytes(redis, name) == 900
    assert "generation idle 1" not in await redis.hkeys(f"semspec:{{owner:{name}}}:bytes")


@pytest.mark.parametrize("is_refused", [False, True])
async def test_account_forgets_what_has_expired(
    redis_url: str, redis: Redis, name: str, is_refused: bool
) -> None:
    store = Store(make_settings(redis_url=redis_url, redis_timeout_s=5, ttl_s=1))
    store.max_owner_bytes = 1000
    for id in ("first", "second"):
        use_s = 60 if is_refused and id == "second" else 0
        await store.account(name, f"generation {id} 1", 300, use_s=use_s)
        await asyncio.sleep(0.7)
    if is_refused:
        large = store.account(name, "generation large 1", 900)
        await assert_conflicts(large, match="share of the store")
    else:
        await store.account(name, "generation third 1", 300)
    assert await stored_bytes(redis, name) == (300 if is_refused else 600)
    await store.close()


@pytest.mark.parametrize("lost", ["uses", "bytes"])
async def test_account_of_which_redis_lost_a_part_begins_anew(
    store: Store, redis: Redis, name: str, lost: str
) -> None:
    store.max_owner_bytes = 1000
    await store.account(name, "generation first 1", 900)
    await redis.delete(f"semspec:{{owner:{name}}}:{lost}")
    await store.account(name, "generation second 1", 900)
    assert await stored_bytes(redis, name) == 900


async def test_share_of_an_owner_follows_the_memory_of_redis(redis_url: str, redis: Redis) -> None:
    store = Store(make_settings(redis_url=redis_url, redis_timeout_s=5))
    await store.check()
    assert store.max_owner_bytes == UNLIMITED_OWNER_BYTES
    await redis.config_set("maxmemory", 400 << 20)
    await store.check()
    assert store.max_owner_bytes == 100 << 20
    await redis.config_set("maxmemory", 0)
    await store.close()


async def test_connections_are_bounded(store: Store, redis: Redis, begun: str) -> None:
    others = [f"{begun}-other-{number}" for number in range(2 * NUM_WATCHES)]
    watching = [asyncio.create_task(store.next_event(other, "0", 0.2)) for other in others]
    await asyncio.gather(*(store.trace(begun, number) for number in range(4 * NUM_CONNECTIONS)))
    assert len(await redis.client_list()) <= NUM_CONNECTIONS + NUM_WATCHES + 2
    assert await asyncio.gather(*watching) == ["0"] * len(others)


async def test_followers_of_a_generation_share_a_connection(
    store: Store, redis: Redis, begun: str
) -> None:
    await store.append(begun, FIRST_FENCE, 0, "{}")
    first = await store.next_event(begun, "0", 60)
    watching = [asyncio.create_task(store.next_event(begun, first, 60)) for _ in range(800)]
    await asyncio.sleep(0.1)
    blocked = [
        client
        for client in await redis.client_list()
        if client["cmd"] == "xread" and "b" in client["flags"]
    ]
    assert len(blocked) == 1
    for task in watching[:400]:
        task.cancel()
    await store.append(begun, FIRST_FENCE, 1, "{}")
    events = await asyncio.gather(*watching[400:])
    assert len(set(events)) == 1 and events[0] != first


async def test_redis_that_semspec_starts_has_a_limit_as_deployed_ones_have(tmp_path: Path) -> None:
    url, command = private_redis(tmp_path)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        await eventually((tmp_path / "redis.sock").exists)
        async with Redis.from_url(url, decode_responses=True) as redis:
            options = await redis.config_get("maxmemory*")
        assert options["maxmemory"] == str(400 << 20)
        assert options["maxmemory-policy"] == "volatile-lru"
    finally:
        process.kill()
        await process.wait()
