"""What outlives a request, in Redis: generations with their traces, and the turns of sessions.

Keys carry a hash tag each generation or session, so that a script's keys share a cluster slot:
`semspec:{ID}:meta` (hash), `semspec:{ID}:segments` (list of JSON records), `semspec:session:{ID}:turns` (list of JSON
messages) and `semspec:session:{ID}:claim` (the token of the generation that holds the session).
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from semspec.core import Message
from semspec.errors import Conflict, NotFound, SemspecError, Unavailable
from semspec.trace import Json

FIRST_FENCE = 1
"""The fence token of a generation's first writer; whoever takes a generation over must raise it."""

_REFUSALS: dict[str, Callable[[str], SemspecError]] = {
    "exists": lambda subject: Conflict(f"{subject} exists already"),
    "missing": lambda subject: NotFound(f"{subject} does not exist, or has expired"),
    "fenced": lambda subject: Conflict(f"{subject} was taken over by another writer"),
    "conflict": lambda subject: Conflict(f"{subject} was changed or is held by another request"),
    "full": lambda subject: Conflict(f"{subject} has reached its size limit"),
}


class Store:
    """Generations and sessions. Every method raises `Unavailable` when Redis does not answer in time."""

    def __init__(self, client: Redis, ttl_s: int, max_generation_bytes: int) -> None:
        """`client` must decode responses."""
        self._client = client
        self._ttl_s = ttl_s
        self._max_generation_bytes = max_generation_bytes
        self._scripts = {name: client.register_script(_source(name)) for name in _SCRIPTS}
        self.on_failure: Callable[[str], None] = lambda operation: None
        """Told the operation whenever Redis fails."""

    @classmethod
    def connect(cls, url: str, timeout_s: float, ttl_s: int, max_generation_bytes: int) -> Self:
        """A store on the Redis at `url`; nothing is sent yet. A broken pooled connection is replaced once a call."""
        client = Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        )
        return cls(client, ttl_s, max_generation_bytes)

    async def close(self) -> None:
        await self._client.aclose()

    async def begin(self, generation: str, meta: Mapping[str, str]) -> None:
        """Create a generation, its writer holding `FIRST_FENCE`. Raises: Conflict, Unavailable."""
        await self._run("begin", [_meta(generation)], [self._ttl_s, *_pairs(meta)], f"generation {generation}")

    async def append(self, generation: str, fence: int, version: int, record: str) -> None:
        """Append the record of segment number `version`. Raises: Conflict, NotFound, Unavailable."""
        arguments: list[str | int] = [fence, version, record, self._max_generation_bytes, self._ttl_s]
        await self._run("append", _generation_keys(generation), arguments, f"generation {generation}")

    async def finish(self, generation: str, fence: int, outcome: Mapping[str, str]) -> None:
        """Write how a generation ended. Raises: Conflict, NotFound, Unavailable."""
        arguments: list[str | int] = [fence, self._ttl_s, *_pairs(outcome)]
        await self._run("finish", _generation_keys(generation), arguments, f"generation {generation}")

    async def generation(self, generation: str) -> dict[str, str]:
        """The meta of a generation. Raises: NotFound, Unavailable."""
        meta: dict[str, str] = await self._guarded("read", self._client.hgetall(_meta(generation)))
        if not meta:
            raise NotFound(f"generation {generation} does not exist, or has expired", "id")
        return meta

    async def trace(self, generation: str) -> list[Json]:
        """The records of a generation, in order; empty for an unknown one. Raises: Unavailable."""
        records = await self._guarded("read", self._client.lrange(_segments(generation), 0, -1))
        return [json.loads(record) for record in records]

    async def claim(self, session: str, token: str, lease_s: float) -> tuple[Message, ...]:
        """Hold a session for one generation; its turns so far. Raises: Conflict, Unavailable."""
        keys = [_claim(session), _turns(session)]
        turns = await self._run("claim", keys, [token, _ms(lease_s)], f"session {session}")
        return tuple(Message(**json.loads(turn)) for turn in turns[1:])

    async def renew(self, session: str, token: str, lease_s: float) -> None:
        """Hold a session for longer. Raises: Conflict, Unavailable."""
        await self._run("renew", [_claim(session)], [token, _ms(lease_s)], f"session {session}")

    async def commit(self, session: str, token: str, version: int, turns: Sequence[Message]) -> None:
        """Append turns after the first `version` ones and give the session back. Raises: Conflict, Unavailable."""
        lines = [json.dumps({"role": turn.role, "content": turn.content}) for turn in turns]
        keys = [_claim(session), _turns(session)]
        await self._run("commit", keys, [token, version, self._ttl_s, *lines], f"session {session}")

    async def release(self, session: str, token: str) -> None:
        """Give a session back unchanged. Raises: Unavailable."""
        await self._run("release", [_claim(session)], [token], f"session {session}")

    async def _run(self, name: str, keys: list[str], arguments: Sequence[str | int], subject: str) -> list[str]:
        reply = await self._guarded(name, self._scripts[name](keys=keys, args=arguments))
        lines: list[str] = [reply] if isinstance(reply, str) else reply
        if lines[0] != "ok":
            raise _REFUSALS[lines[0]](subject)
        return lines

    async def _guarded(self, operation: str, reply: Awaitable[Any]) -> Any:
        try:
            return await reply
        except (RedisError, OSError, TimeoutError) as error:
            self.on_failure(operation)
            raise Unavailable("the store of traces and sessions (Redis) does not answer; try again later") from error


_SCRIPTS = ("begin", "append", "finish", "claim", "renew", "commit", "release")


def _source(name: str) -> str:
    return files("gateway").joinpath("lua", f"{name}.lua").read_text()


def _meta(generation: str) -> str:
    return f"semspec:{{{generation}}}:meta"


def _segments(generation: str) -> str:
    return f"semspec:{{{generation}}}:segments"


def _generation_keys(generation: str) -> list[str]:
    return [_meta(generation), _segments(generation)]


def _claim(session: str) -> str:
    return f"semspec:session:{{{session}}}:claim"


def _turns(session: str) -> str:
    return f"semspec:session:{{{session}}}:turns"


def _pairs(fields: Mapping[str, str]) -> list[str]:
    return [item for pair in fields.items() for item in pair]


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
