"""A case of an attack: what is done, and what came of it. Seeded changes of bytes and of JSON that families share."""

import asyncio
import enum
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.attacks.fixtures import Victim

BOUND_S = 3600.0
"""Timeout of a case, after which its answer counts as lost."""


class Verdict(enum.StrEnum):
    """The result of a case."""

    KEPT = "kept"
    MEDIUM = "medium"
    """A promise of the documentation was broken, but no answer was lost or changed."""
    LOST = "lost"
    """A request without an end, or a process that is gone."""
    DIFFERING = "differing"
    """Another answer than the undisturbed one, with no word of it."""


class Broken(Exception):
    """A promise is broken."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict, self.why = verdict, why


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be done. `run` raises Broken, or anything else, if a promise is broken."""

    kind: str
    what: str
    run: Callable[[], Awaitable[None]]


Draw = Callable[[Random], Case]
"""Draws a case; equal generators draw equal cases."""


@dataclass(frozen=True, slots=True)
class Family:
    """Attacks of one kind."""

    name: str
    num_cases: int
    opened: Callable[["Victim", Path], AbstractAsyncContextManager[Draw]]
    """`opened(victim, folder)`: with an empty folder for its files."""


@dataclass(frozen=True, slots=True)
class Result:
    """One case and its verdict."""

    family: str
    number: int
    kind: str
    what: str
    verdict: Verdict
    why: str = ""
    seed: int = 1
    duration_s: float = 0.0


async def tried(family: str, seed: int, number: int, draw: Draw) -> Result:
    """Draw the case with this number, and run it."""
    case = draw(Random(f"{seed}/{family}/{number}"))
    verdict, why, begin = Verdict.KEPT, "", monotonic()
    try:
        async with asyncio.timeout(BOUND_S):
            await case.run()
    except Broken as broken:
        verdict, why = broken.verdict, broken.why
    except TimeoutError:
        verdict, why = Verdict.LOST, f"no end within {BOUND_S:g} s"
    except Exception as error:
        verdict, why = Verdict.MEDIUM, f"{type(error).__name__}: {error}"
    return Result(family, number, case.kind, case.what, verdict, why, seed, round(monotonic() - begin, 1))


def edited(data: bytes, chance: Random) -> bytes:
    """Up to five edits: some bytes go, others come, or a piece is repeated."""
    for _ in range(chance.randint(1, 5)):
        place = chance.randint(0, len(data))
        end = min(len(data), place + chance.choice((0, 1, 1, 2, 12)))
        new = chance.choice((b"", chance.randbytes(chance.randint(1, 12)), data[place : place + 40]))
        data = data[:place] + new + data[end:]
    return data


def flipped(data: bytes, chance: Random) -> bytes:
    """One bit changed."""
    if not data:
        return b"\0"
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


ODD_JSON: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 10**30, -(10**30), 2**31, 2**63, 2**64, "", "x", "\0", "\u2028",
    "0", "true", "{{ 7 * 7 }}", "</think>", "../../etc/passwd", "x" * 5000, [], {}, [[]], [None], {"": None},
    ["x"] * 40, {"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/"}},
    "\ud800",
)  # fmt: skip


def odd_json(value: Any, chance: Random) -> Any:
    """The value with one part, at any depth, replaced, removed, repeated or added."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(sorted(value))
        rest = {key: part for key, part in value.items() if key != name}
        match chance.choice(("inside", "inside", "inside", "remove", "rename", "add")):
            case "remove":
                return rest
            case "rename":
                return {**rest, chance.choice(("", name.upper(), f"{name} ", f"{name}\0", "__proto__")): value[name]}
            case "add":
                return {**value, chance.choice(("seed", "__class__", "n", name[::-1])): chance.choice(ODD_JSON)}
        return {**value, name: odd_json(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        place = chance.randrange(len(value))
        part = odd_json(value[place], chance)
        return [*value[:place], *[part] * chance.choice((1, 1, 1, 0, 2, 50)), *value[place + 1 :]]
    return chance.choice(ODD_JSON)


def shown(value: object, length: int = 160) -> str:
    """For a report: one line of ASCII."""
    text = value if isinstance(value, str) else ascii(value) if isinstance(value, bytes) else json.dumps(value)
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= length else f"{text[:length]}... ({len(text)} characters)"
