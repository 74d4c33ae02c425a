"""gRPC messages of the contract, sent to the services as a gateway would: odd fields, any sizes, any bytes."""

import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import grpc
from google.protobuf.message import Message as Wire

from semspec.rpc.calls import path_of
from tests.attacks.case import HIGH, MEDIUM, Case, Draw, Family, Found, Run
from tests.attacks.victim import Victim
from tests.grammars.growing import GROWN, written
from tests.security.support import METHODS, edited, sound_messages, spoil, status

REFUSED = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
"""What no request may cause."""
TIMEOUT_S = 30.0
HOW = ("odd", "odd", "grown", "bytes", "grammar")
WITH_GRAMMARS = ("semspec.v2.Draft.Generate", "semspec.v2.Target.Generate")


def drawn(seed: str, number: int) -> list[Case]:
    """Each method in turn, but grammars go to those that take them."""
    methods, cases = [method for method in METHODS if method.input_type.fields], list[Case]()
    grammars = [name for name in GROWN if name.startswith(("schema: ", "lark: "))]
    for i in range(number):
        chance = Random(f"{seed}/{i}")
        case: Case = {
            "method": methods[i % len(methods)].full_name,
            "how": chance.choice(HOW),
            "seed": f"{seed}/{i}",
        }
        if case["how"] == "grammar":
            case["method"] = chance.choice(WITH_GRAMMARS)
            case["grown"] = [chance.choice(grammars), round(10 ** chance.uniform(0, 6))]
        cases.append(case)
    return cases


def grow(message: Wire, chance: Random) -> None:
    """One field at any depth, a text or a list, of any size."""
    fields = [
        one for one in message.DESCRIPTOR.fields if one.type == one.TYPE_STRING or one.message_type
    ]
    fields = [one for one in fields if not isinstance(getattr(message, one.name), MutableMapping)]
    if not fields:
        return
    field, size = chance.choice(fields), round(10 ** chance.uniform(0, 5.5))
    if field.is_repeated:
        getattr(message, field.name).extend(list(getattr(message, field.name))[:1] * size)
    elif not field.message_type:
        kind = chance.choice([one for one in GROWN if one.startswith("text: ")])
        setattr(message, field.name, json.loads(written({"$grown": [kind, size]})))
    else:
        grow(getattr(message, field.name), chance)


@asynccontextmanager
async def opened(victim: Victim, _: Path) -> AsyncIterator[tuple[Draw, Run]]:
    addresses = {
        role: victim.stack.addresses[role.lower()] for role in ("Draft", "Target", "Verifier")
    }
    token = victim.stack.processes["target"].environment["SEMSPEC_SERVICE_TOKEN"]
    sound = await sound_messages(addresses["Target"], token)

    async def run(case: Case) -> None:
        method = next(one for one in METHODS if one.full_name == case["method"])
        chance, message = Random(case["seed"]), type(sound[method.name])()
        message.CopyFrom(sound[method.name])
        if case["how"] == "grown":
            grow(message, chance)
        if case["how"] == "grammar":
            text = written({"$grown": case["grown"]})
            message.grammar = (
                f"start: %json {text}"
                if case["grown"][0].startswith("schema")
                else json.loads(text)
            )
        for _ in range(chance.randint(1, 3) if case["how"] == "odd" else 0):
            spoil(message, chance)
        data = message.SerializeToString()
        data = edited(data, chance) if case["how"] == "bytes" else data
        answer = await status(
            addresses[method.containing_service.name], method, data, f"Bearer {token}", TIMEOUT_S
        )
        if answer in REFUSED or answer is grpc.StatusCode.DEADLINE_EXCEEDED:
            is_late = answer is grpc.StatusCode.DEADLINE_EXCEEDED
            raise Found(
                HIGH if is_late else MEDIUM, f"{path_of(method)}: {answer}", is_of_load=is_late
            )

    yield drawn, run


FAMILY = Family("gRPC", 1000, opened, at_once=16)
