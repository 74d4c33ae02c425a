"""The services' methods, sound requests to each, and ways to spoil them."""

import math
import secrets
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import Any

import grpc
from google.protobuf.message import Message as Wire
from grpc import aio

from semspec.rpc.calls import path_of
from semspec.rpc.clients import RemoteTarget
from semspec.rpc.connection import ClientOptions
from semspec.types import Context, Message
from semspec.v2 import draft_pb2, target_pb2, verifier_pb2
from tests.helpers.rpc import ORDER, sound_requests

TOKEN = secrets.token_urlsafe(32)
METHODS = [
    method
    for file in (draft_pb2, target_pb2, verifier_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
ODD_VALUES: dict[type, tuple[object, ...]] = {
    bool: (True, False),
    int: (0, 1, 2, 3, 9, 2**16, 2**31 - 1, 2**32 - 1),
    float: (0.0, -0.0, -1.0, 1e-320, 1e30, math.nan, math.inf, -math.inf),
    str: ("", "x", "\0", "\u2028", "{{ 7 * 7 }}", "</think>", "x" * 5000),
    bytes: (b"", b"\0", b"\xff" * 4, b"\xff\xff\xff\x7f" * 6, b"\0" * 4096),
}


async def status(
    address: str,
    method: Any,
    message: bytes,
    authorization: str = f"Bearer {TOKEN}",
    timeout_s: float = 60,
) -> grpc.StatusCode:
    """What a call with these bytes for a message ends with, or OK once a stream has begun."""
    async with aio.insecure_channel(address) as channel:
        metadata = (("authorization", authorization),) if authorization else ()
        try:
            if method.server_streaming:
                stream: Any = channel.unary_stream(path_of(method))
                await stream(message, timeout=timeout_s, metadata=metadata).read()
            else:
                unary: Any = channel.unary_unary(path_of(method))
                await unary(message, timeout=timeout_s, metadata=metadata)
        except aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def sound_messages(address: str, token: str = "") -> dict[str, Any]:
    """A request that the real services can answer, by its method's name."""
    async with aclosing(RemoteTarget(address, ClientOptions(token=token))) as client:
        prompt = await client.encode([Message("user", "Tom has pens: 25.")])
    return sound_requests(
        Context((prompt,)), replace(ORDER, max_tokens=6, max_segment_tokens=3, max_segments=2)
    )


def spoil(message: Wire, random: Random) -> None:
    """Change one field, at any depth, to something that its type allows."""
    fields: Sequence[Any] = message.DESCRIPTOR.fields
    if not fields:
        return
    field = random.choice(fields)
    value = getattr(message, field.name)
    if field.is_repeated:
        _spoil_items(message, field, random)
    elif field.message_type:
        spoil(value, random) if random.random() < 0.9 else message.ClearField(field.name)
    else:
        setattr(message, field.name, _odd_value(field, value, random))


def _odd_value(field: Any, value: object, random: Random) -> object:
    return random.randrange(10) if field.enum_type else random.choice(ODD_VALUES[type(value)])


def _spoil_items(message: Wire, field: Any, random: Random) -> None:
    items = getattr(message, field.name)
    if field.message_type and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        items[_odd_value(key, key.default_value, random)] = _odd_value(
            value, value.default_value, random
        )
        return
    match random.choice(("clear", "many", "one", "one")):
        case "clear":
            message.ClearField(field.name)
        case "many":
            items.extend(list(items)[:3] * 30)
        case _ if field.message_type and items:
            spoil(random.choice(items), random)
        case _ if not field.message_type and items:
            items[random.randrange(len(items))] = _odd_value(field, items[0], random)


def edited(data: bytes, chance: Random) -> bytes:
    """Up to five edits: some bytes go, others come, or a piece is repeated."""
    for _ in range(chance.randint(1, 5)):
        place = chance.randint(0, len(data))
        end = min(len(data), place + chance.choice((0, 1, 1, 2, 12)))
        new = chance.choice(
            (b"", chance.randbytes(chance.randint(1, 12)), data[place : place + 40])
        )
        data = data[:place] + new + data[end:]
    return data


ODD_JSON: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 10**30, -(10**30), 2**31, 2**63, 2**64, "", "x", "\0", "\u2028",
    "0", "true", "{{ 7 * 7 }}", "</think>", "../../etc/passwd", "x" * 5000, [], {}, [[]], [None], {"": None},
    ["x"] * 40, {"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/"}},
    "\ud800",
)  # fmt: skip


def odd_json(value: Any, chance: Random) -> Any:
    """The value with one part, at any depth, replaced, removed, repeated, renamed or added."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(sorted(value))
        rest = {key: part for key, part in value.items() if key != name}
        other = chance.choice(
            ("", name.upper(), f"{name} ", f"{name}\0", "__proto__", "seed", "__class__", "n")
        )
        odd = {**value, name: odd_json(value[name], chance)}
        return chance.choice(
            (odd, odd, odd, rest, {**rest, other: value[name]}, {**value, other: 1})
        )
    if isinstance(value, list) and value and chance.random() < 0.85:
        place = chance.randrange(len(value))
        part = odd_json(value[place], chance)
        return [*value[:place], *[part] * chance.choice((1, 1, 1, 0, 2, 50)), *value[place + 1 :]]
    return chance.choice(ODD_JSON)
