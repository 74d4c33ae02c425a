"""Storage in Redis: generations with their traces, the turns of sessions, idempotency keys and handshakes.

Keys have a hash tag per generation or session, so that a script's keys share a cluster slot:
`semspec:{ID}:meta` (hash), `semspec:{ID}:segments` (list of JSON records), `semspec:{ID}:writer` (the writer's fence,
as long as its lease lasts), `semspec:{ID}:events` (stream with the last change, which wakes followers),
`semspec:{ID}:request` (hash with what all choices of a request share; ID is that of the first),
`semspec:session:{ID}:turns` (list of JSON messages), `semspec:session:{ID}:claim` (the generation that has the
session), `semspec:sessions:{OWNER}` (sorted set of the owner's last sessions), `semspec:{owner:OWNER}:uses` and
`semspec:{owner:OWNER}:bytes` (what an owner stores, by last use and by size), `semspec:idempotency:{DIGEST}` (the id
and content of a key's request) and `semspec:handshake:{TARGET}` (the services' models and probes). A session's ID
begins with its owner, see `stored_name`.
"""

import asyncio
import json
import logging
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.resources import files
from itertools import chain
from typing import Any

from pydantic import TypeAdapter
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from semspec.errors import Cancelled, Conflict, NotFound, SemspecError, Unavailable
from semspec.types import Message, calls_json, read_calls
from semspec_gateway.settings import GatewaySettings
from semspec_gateway.store.sharing import Shared

_log = logging.getLogger(__name__)
_MESSAGE = TypeAdapter(Message)

FIRST_FENCE = 1
"""The fence of a generation's first writer; each writer that takes the generation over raises it."""

_REFUSALS: dict[str, Callable[[str], SemspecError]] = {
    "exists": lambda subject: Conflict(f"{subject} exists already"),
    "missing": lambda subject: NotFound(f"{subject} does not exist, or has expired", "id"),
    "cancelled": lambda subject: Cancelled(f"{subject} was cancelled"),
    "fenced": lambda subject: Conflict(f"{subject} was taken over by another writer"),
    "conflict": lambda subject: Conflict(f"{subject} was changed or is used by another request"),
    "full": lambda subject: Conflict(f"{subject} has reached its size limit"),
    "quota": lambda subject: Conflict(
        f"{subject} fill the key's share of the store, and are all in use"
    ),
}

MAX_LISTED = 50
"""Sessions in an owner's list."""

OWNER_SHARE = 4
"""An owner may store Redis' `maxmemory` divided by this."""
UNLIMITED_OWNER_BYTES = 256 << 20
"""Bytes that an owner may store in a Redis that has no `maxmemory`, or does not tell it."""
OVERHEAD_BYTES = 2048
"""Bytes that Redis takes for a choice, its idempotency key and the account of both, next to their contents."""

NUM_CONNECTIONS = 32
"""Most concurrent calls. Others wait: a call takes a millisecond."""
NUM_WATCHES = 32
"""Most generations whose next event is awaited concurrently, each over its own connection."""


@contextmanager
def reading(subject: str) -> Iterator[None]:
    """Raise Unavailable instead of errors that decoding what Redis holds of `subject` raises in the block."""
    try:
        yield
    except (ValueError, LookupError, TypeError, StopIteration) as error:
        _log.error(
            "what Redis holds of %s cannot be read: %s", subject, str(error).partition("\n")[0]
        )
        message = (
            f"what Redis holds of {subject} cannot be read: another program or version wrote it"
        )
        raise Unavailable(message, remedy="delete it") from error


def choice_id(request: str, index: int) -> str:
    """Return the id of one choice's generation; the first one has the request's id."""
    return f"{request}-{index}" if index else request


def stored_name(session: str, owner: str) -> str:
    """Return the session's name in the store; sessions of different owners are separate, even with the same name."""
    return f"{owner}/{session}" if owner else session


class Store:
    """Generations and sessions. Every method raises `Unavailable` when Redis does not answer in time."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Nothing is sent yet. Each call replaces a broken connection at most once."""
        self._settings, self._ttl_s, timeout_s = settings, settings.ttl_s, settings.redis_timeout_s
        self._lease_ms = int(settings.writer_lease_s * 1000)
        self._client = client = Redis.from_url(
            settings.redis_url.get_secret_value(),
            decode_responses=True,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        )
        folder = files("semspec_gateway").joinpath("store", "lua")
        self._scripts = {
            name: client.register_script(folder.joinpath(f"{name}.lua").read_text())
            for name in _SCRIPTS
        }
        self._calls: set[asyncio.Future[Any]] = set()
        self._connections = asyncio.Semaphore(NUM_CONNECTIONS)
        self._watches = asyncio.Semaphore(NUM_WATCHES)
        self._shared = Shared()
        self.max_owner_bytes = UNLIMITED_OWNER_BYTES
        """Bytes that an owner may store, by the last `check`."""
        self.on_failure: Callable[[str], None] = lambda operation: None
        """Called with the operation's name whenever Redis fails."""

    async def close(self) -> None:
        """Wait for calls whose callers were cancelled, or their connections would stay open; then disconnect."""
        await self._shared.close()
        if self._calls:
            await asyncio.wait(self._calls)
        await self._client.aclose()

    async def account(self, owner: str, name: str, num_bytes: int, use_s: float = 0.0) -> None:
        """Count bytes that an owner stores under a name, which is in use for `use_s` from now on.

        Beyond its share, the owner's generations and sessions that are not in use are deleted, those used longest ago
        first. Raises: Conflict when that does not suffice; Unavailable.
        """
        use_ms = int(use_s * 1000)
        limits = self.max_owner_bytes, use_ms, self._ttl_s
        _, *displaced = await self._run("account", owner, name, num_bytes, *limits)
        if not displaced:
            return
        steps = self._client.pipeline(transaction=False)  # of keys in several slots
        for key in (key for dropped in displaced for key in _keys_of(owner, dropped)):
            steps.unlink(key)
        await self._guarded("account", steps.execute(), f"what {owner or 'everybody'} stores")

    async def keep_request(self, request: str, fields: Mapping[str, str]) -> None:
        """Store what all choices of a request share. Raises: Unavailable."""
        steps, key = self._client.pipeline(), _key("generation", request, "request")
        steps.hset(key, items=[*chain(*fields.items())])
        steps.expire(key, self._ttl_s)
        await self._guarded("begin", steps.execute(), f"generation {request}")

    async def touch_request(self, request: str) -> None:
        """Keep what all choices of a request share as long as a choice that is stored now. Raises: Unavailable."""
        call = self._client.expire(_key("generation", request, "request"), self._ttl_s)
        await self._guarded("hold", call, f"generation {request}")

    async def begin(self, generation: str, meta: Mapping[str, str]) -> None:
        """Create a generation, whose writer gets `FIRST_FENCE`. Raises: Conflict, Unavailable."""
        await self._run(
            "begin",
            generation,
            self._ttl_s,
            self._lease_ms,
            secrets.token_hex(8),
            *chain(*meta.items()),
        )

    async def append(self, generation: str, fence: int, version: int, record: str) -> None:
        """Append the record of segment number `version`. Raises: Cancelled, Conflict, NotFound, Unavailable."""
        limits = self._settings.max_generation_bytes, self._ttl_s, self._lease_ms
        await self._run("append", generation, fence, version, record, *limits)

    async def finish(self, generation: str, fence: int, outcome: Mapping[str, str]) -> None:
        """Store a generation's outcome and release it. Raises: Cancelled, Conflict, NotFound, Unavailable."""
        await self._run("finish", generation, fence, self._ttl_s, *chain(*outcome.items()))

    async def hold(self, generation: str, fence: int) -> None:
        """Renew the lease of a generation's writer. Raises: Cancelled, Conflict, NotFound, Unavailable."""
        await self._run("hold", generation, fence, self._lease_ms)

    async def take(self, generation: str) -> int | str:
        """Become a generation's writer; returns the new fence, "held" or "ended". Raises: NotFound, Unavailable."""
        _, outcome = await self._run("take", generation, self._ttl_s, self._lease_ms)
        return int(outcome) if outcome.isdecimal() else outcome

    async def cancel(self, generation: str) -> None:
        """Cancel a generation, unless it has ended. Raises: NotFound, Unavailable."""
        await self._run("cancel", generation)

    async def remember(self, digest: str, value: str) -> str:
        """The value of an idempotency key, which a new key takes from `value`. Raises: Unavailable."""
        return (await self._run("remember", digest, value, self._ttl_s))[1]

    async def recall(self, digest: str) -> str | None:
        """Return the value of an idempotency key; None for a new key. Raises: Unavailable."""
        call = self._client.get(_key("idempotency", digest, ""))
        value: str | None = await self._guarded("remember", call, _SUBJECTS["idempotency"])
        return value

    async def replace(self, digest: str, value: str, new_value: str) -> bool:
        """Set an idempotency key to `new_value` if it has this `value`; return whether it had. Raises: Unavailable."""
        return (await self._run("replace", digest, value, new_value, self._ttl_s))[1] == "replaced"

    async def disown(self, digest: str, value: str) -> None:
        """Delete an idempotency key if it has this `value`. Raises: Unavailable."""
        await self._run("disown", digest, value)

    async def keep_handshake(self, target: str, served: str) -> None:
        """Store what is served with a target (by its fingerprint), for gateways started later. Raises: Unavailable."""
        await self._guarded(
            "keep", self._client.set(f"semspec:handshake:{target}", served), "the handshake"
        )

    async def handshake(self, target: str) -> str | None:
        """What was served with this target at the last complete handshake. Raises: Unavailable."""
        call = self._client.get(f"semspec:handshake:{target}")
        served: str | None = await self._guarded("read", call, "the handshake")
        return served

    async def check(self) -> tuple[int, int]:
        """Write a key that expires, and learn what an owner may store.

        Returns: bytes that Redis takes, and may take; 0: not known. Raises: Unavailable.
        """
        await self._guarded("check", self._client.set("semspec:check", "", ex=60), "this gateway")
        memory = {}
        with suppress(Unavailable):  # a user of Redis may lack this command
            memory = await self._guarded("", self._client.info("memory"), "this gateway")
        used_bytes, max_bytes = memory.get("used_memory", 0), memory.get("maxmemory", 0)
        self.max_owner_bytes = max_bytes // OWNER_SHARE or UNLIMITED_OWNER_BYTES
        return used_bytes, max_bytes

    async def state(self, generation: str) -> dict[str, str]:
        """Return the fields of a generation that its choice has alone. The status is `interrupted` once a running
        writer's lease has expired. Raises: NotFound, Unavailable."""

        async def read() -> dict[str, str]:
            _, *pairs = await self._run("read", generation)
            return dict(zip(pairs[::2], pairs[1::2], strict=True))

        return await self._shared.result(("state", generation), read)

    async def generation(self, generation: str) -> dict[str, str]:
        """Return all fields of a generation: its `state`, and what all choices of its request share.

        Raises: NotFound, Unavailable.
        """
        state = await self.state(generation)
        with reading(f"generation {generation}"):
            request = state["request"]

        async def read() -> dict[str, str]:
            call = self._client.hgetall(_key("generation", request, "request"))
            found: dict[str, str] = await self._guarded("read", call, f"generation {generation}")
            return found

        if not (shared := await self._shared.result(("request", request), read)):
            raise _REFUSALS["missing"](f"generation {generation}")
        return shared | state

    async def trace(self, generation: str, start: int = 0) -> list[str]:
        """The records of a generation from number `start` on, in order, as JSON. Raises: Unavailable."""

        async def read() -> list[str]:
            call = self._client.lrange(_key("generation", generation, "segments"), start, -1)
            return list(await self._guarded("read", call, f"generation {generation}"))

        return await self._shared.result(("trace", generation, start), read)

    async def next_event(self, generation: str, after: str, timeout_s: float) -> str:
        """Wait until a generation has changed since the event `after`; "0" stands before every event.

        Returns: the id of the last event; `after` if none came within `timeout_s`, or within that of a caller who has
        waited for the same event before. Raises: Unavailable.
        """
        # Redis takes 0 for no timeout.
        block_ms = max(1, int(1000 * min(timeout_s, self._settings.redis_timeout_s / 2)))

        async def read() -> str:
            call = self._client.xread(
                {_key("generation", generation, "events"): after}, count=1, block=block_ms
            )
            reply = await self._guarded("read", call, f"generation {generation}", self._watches)
            if not reply:
                return after
            with reading(f"generation {generation}"):
                [entries] = (
                    reply.values() if isinstance(reply, dict) else [entries for _, entries in reply]
                )
                return str(entries[-1][0])

        return await self._shared.result(("event", generation, after), read, joins_running=True)

    async def claim(self, session: str, token: str, lease_s: float) -> tuple[Message, ...]:
        """Claim a session for one generation; returns its turns so far. Raises: Conflict, Unavailable."""
        turns = await self._run("claim", session, token, int(lease_s * 1000))
        try:
            with reading(f"session {session}"):
                return tuple(map(_read_turn, turns[1:]))
        except Unavailable:
            await self.release(session, token)  # so that its owner can delete it at once
            raise

    async def turns(self, session: str) -> tuple[Message, ...]:
        """The turns of a session; none if it does not exist. Raises: Unavailable."""
        subject = f"session {session}"
        lines = await self._guarded(
            "read", self._client.lrange(_key("session", session, "turns"), 0, -1), subject
        )
        with reading(subject):
            return tuple(map(_read_turn, lines))

    async def forget(self, session: str, owner: str) -> None:
        """Delete the turns of an owner's session. Raises: Conflict while a generation has it; NotFound, Unavailable."""
        await self._run("forget", stored_name(session, owner))
        await self._run("unaccount", owner, f"session {session}")

    async def list_session(self, owner: str, name: str, session: str) -> None:
        """Put an owner's session first in the list of the last ones. Raises: Unavailable."""
        steps, key = self._client.pipeline(), f"semspec:sessions:{{{owner}}}"
        steps.zadd(key, {name: time.time()})
        steps.zremrangebyrank(key, 0, -MAX_LISTED - 1)
        steps.expire(key, self._ttl_s)
        await self._guarded("list", steps.execute(), f"session {session}")

    async def listed(self, owner: str) -> list[tuple[str, float]]:
        """An owner's last sessions and times of their last turns, s since 1970, latest first. Raises: Unavailable."""
        reply = self._client.zrange(
            f"semspec:sessions:{{{owner}}}", 0, -1, desc=True, withscores=True
        )
        pairs = await self._guarded("list", reply, "the list of sessions")
        return [(str(name), float(at)) for name, at in pairs]

    async def unlist(self, owner: str, name: str) -> None:
        """Take a session from its owner's list. Raises: Unavailable."""
        await self._guarded(
            "list", self._client.zrem(f"semspec:sessions:{{{owner}}}", name), f"session {name}"
        )

    async def renew(self, session: str, token: str, lease_s: float) -> None:
        """Renew a session's lease. Raises: Conflict, Unavailable."""
        await self._run("renew", session, token, int(lease_s * 1000))

    async def commit(
        self, session: str, token: str, version: int, turns: Sequence[Message]
    ) -> None:
        """Append turns after the first `version` ones and release the session. Raises: Conflict, Unavailable."""
        lines = map(_write_turn, turns)
        await self._run("commit", session, token, version, self._ttl_s, *lines)

    async def release(self, session: str, token: str) -> None:
        """Release a session unchanged. Raises: Unavailable."""
        await self._run("release", session, token)

    async def _run(self, name: str, id: str, *arguments: str | int) -> list[str]:
        """Run a script on the generation, session or idempotency key `id`, or on the account of an owner."""
        kind, *parts = _SCRIPTS[name]
        subject = _SUBJECTS.get(kind) or f"{kind} {id}"
        script = self._scripts[name](keys=[_key(kind, id, part) for part in parts], args=arguments)
        reply = await self._guarded(name, script, subject)
        with reading(subject):
            lines: list[str] = [reply] if isinstance(reply, str) else list(reply)
            if lines[0] != "ok":
                raise _REFUSALS[lines[0]](subject)
        return lines

    async def _guarded(
        self,
        operation: str,
        reply: Awaitable[Any],
        subject: str,
        limit: asyncio.Semaphore | None = None,
    ) -> Any:
        """Return the reply of Redis to an operation on `subject`; one without a name may fail.

        `limit`: bounds the concurrent calls; None: the bound of ordinary calls. Raises: Unavailable.
        """

        async def bounded() -> Any:
            async with limit or self._connections:
                return await reply

        # Never cancelled: redis-py may swallow a cancellation while it waits, and its caller would continue.
        call = asyncio.ensure_future(bounded())
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        # Its caller may be cancelled.
        call.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            with reading(subject):
                return await asyncio.shield(call)
        except (RedisError, OSError, TimeoutError) as error:
            if operation:
                self.on_failure(operation)
            raise _failure(error, subject) from error


def _write_turn(turn: Message) -> str:
    """Write a session's turn, its calls in OpenAI's format."""
    return json.dumps({**asdict(turn), "tool_calls": calls_json(turn.tool_calls)})


def _read_turn(line: str) -> Message:
    fields = json.loads(line)
    return _MESSAGE.validate_python(
        {**fields, "tool_calls": read_calls(fields.get("tool_calls", ""))}
    )


def _failure(error: Exception, subject: str) -> Unavailable:
    """Return what is wrong with Redis."""
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        return Unavailable(
            f"Redis refuses this gateway: {error}",
            remedy="fix its user and password",
            operator_hint="SEMSPEC_GATEWAY_REDIS_URL",
        )
    if isinstance(error, ResponseError) and "WRONGTYPE" in str(error):
        return Unavailable(
            f"a key of {subject} in Redis has a wrong type: another program wrote it",
            remedy="delete it",
        )
    if isinstance(error, ResponseError):
        return Unavailable(f"Redis refuses a call for {subject}: {error}")
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return Unavailable(
            "no TLS connection to Redis",
            remedy="fix its certificate, or its ssl_ca_certs",
            operator_hint="SEMSPEC_GATEWAY_REDIS_URL",
        )
    return Unavailable(
        "the store of traces and sessions (Redis) does not answer", remedy="try again later"
    )


_SCRIPTS = {
    "begin": ("generation", "meta", "writer"),
    "append": ("generation", "meta", "segments", "writer", "events"),
    "finish": ("generation", "meta", "segments", "writer", "events"),
    "hold": ("generation", "meta", "writer", "segments"),
    "take": ("generation", "meta", "writer"),
    "read": ("generation", "meta", "writer", "segments"),
    "cancel": ("generation", "meta", "writer", "events"),
    "account": ("owner", "uses", "bytes"),
    "unaccount": ("owner", "uses", "bytes"),
    "remember": ("idempotency", ""),
    "replace": ("idempotency", ""),
    "disown": ("idempotency", ""),
    "claim": ("session", "claim", "turns"),
    "renew": ("session", "claim"),
    "commit": ("session", "claim", "turns"),
    "release": ("session", "claim"),
    "forget": ("session", "claim", "turns"),
}
"""What each script is about, and the parts of it that are its keys."""

_SUBJECTS = {"idempotency": "this idempotency key", "owner": "the stored answers of this API key"}
"""Names in errors of subjects without an id."""


def _key(kind: str, id: str, part: str) -> str:
    """Return a key of a generation, a session, an owner or an idempotency key."""
    if kind == "idempotency":
        return f"semspec:idempotency:{id}"
    if kind == "owner":
        return f"semspec:{{owner:{id}}}:{part}"
    return f"semspec:{'session:' if kind == 'session' else ''}{{{id}}}:{part}"


def _keys_of(owner: str, name: str) -> list[str]:
    """Return the keys of what an owner has stored under a name: "session NAME" or "generation ID NUMBER_OF_CHOICES"."""
    kind, id, *numbers = name.split()
    if kind == "session":
        return [_key(kind, stored_name(id, owner), "turns")]
    choices = [choice_id(id, index) for index in range(*map(int, numbers))]
    parts = ("meta", "segments", "writer", "events")
    return [
        _key(kind, id, "request"),
        *(_key(kind, choice, part) for choice in choices for part in parts),
    ]
