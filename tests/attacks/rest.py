"""Whole REST requests: of every operation of /openapi.json, right and wrong; every field of their bodies with an odd
value and grown to every size; schemas of every keyword."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from tests.attacks.case import Case, Draw, Family, Run
from tests.attacks.victim import Victim, hold_apart
from tests.grammars.growing import GROWN, KEYWORDS, schema
from tests.security.support import ODD_JSON
from tests.test_openapi.support import BODIES, CHAT, IDS, TURN, check, described, operations, sent

Way = tuple[str | int, ...]
Json = dict[str, Any]
PARTS: dict[str, Any] = {
    "messages": TURN, "input": TURN, "content": {"type": "text", "text": "x"}, "logit_bias": {"1": 1.5},
    "tools": {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
    "tool_calls": {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}},
}  # fmt: skip
"""An item of lists that are no lists of words."""
Place = tuple[str, Json, Way]
SCHEMAS_AT: tuple[Place, ...] = (
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
     ("response_format", "json_schema", "schema")),
    (CHAT, {"tools": [PARTS["tools"]]}, ("tools", 0, "function", "parameters")),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "x"}}}, ("text", "format", "schema")),
    ("/generate", {"parameters": {"max_new_tokens": 8, "grammar": {"type": "json"}}},
     ("parameters", "grammar", "value")),
)  # fmt: skip
TYPES = {
    "boolean": bool,
    "integer": int,
    "number": int | float,
    "string": str,
    "array": list,
    "object": dict,
}
ODD = {kind: [one for one in ODD_JSON if isinstance(one, own)] for kind, own in TYPES.items()} | {
    "null": []
}
"""Odd values by the type of a field."""


def ways(schema: Json, named: Json, way: Way = ()) -> Iterator[tuple[Way, str]]:
    """The ways to every field that a body may have, and the field's type."""
    schema = named[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for one in schema.get("anyOf") or schema.get("oneOf") or ():
        yield from ways(one, named, way)
    if kind := schema.get("type"):
        yield way, kind
    inside = [
        *schema.get("properties", {}).items(),
        *[(0, one) for one in [schema.get("items")] if one],
    ]
    for name, own in inside if len(way) < 6 else ():
        yield from ways(own, named, (*way, name))


def changed(document: Json, seed: str) -> list[Case]:
    """Sound requests with one field odd, or of a size in each decade."""
    cases, chance = list[Case](), Random(seed)
    for path in BODIES:
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for way, kind in dict.fromkeys(ways(content["schema"], document["components"]["schemas"])):
            if "semspec" in way and path != CHAT:
                continue
            values = [*ODD[kind], chance.choice(ODD_JSON)]
            if kind in ("string", "array", "object") and way:
                sizes = [round(10 ** (half / 2 + chance.random() / 2)) for half in range(12)]
                sizes = sizes if kind == "array" else sizes[chance.randint(0, 1) :: 2]
                values += [_grown(way, kind, size, chance) for size in sizes]
            cases += [posted(path, put(BODIES[path], way, value)) for value in values]
    return chance.sample(cases, len(cases))


def _grown(way: Way, kind: str, size: int, chance: Random) -> Json:
    if kind == "array":
        item = next((PARTS[name] for name in reversed(way) if name in PARTS), "s")
        if chance.random() < 0.9:
            return {"$many": [item, size]}
    prefix = {"string": "text: "}.get(kind, "other: ")
    return {"$grown": [chance.choice([name for name in GROWN if name.startswith(prefix)]), size]}


def of_schemas(seed: str, number: int) -> list[Case]:
    """Requests with schemas of each keyword in turn, a third of them grown."""
    chance, grown = Random(seed), [name for name in GROWN if name.startswith("schema: ")]
    keywords = list(KEYWORDS)
    values = [schema(chance, keywords[i % len(keywords)]) for i in range(number - number // 3)]
    sizes = [round(10 ** (i % 6 + chance.random())) for i in range(number // 3)]
    values += [{"$grown": [chance.choice(grown), size]} for size in sizes]
    return [with_schema(place, one) for place, one in zip(cycle(SCHEMAS_AT), values, strict=False)]


def with_schema(place: Place, one: Any) -> Case:
    path, own, way = place
    return posted(path, put({**BODIES[path], **own}, way, one))


def posted(path: str, body: Any) -> Case:
    return {
        "label": f"POST {path}",
        "parts": {},
        "headers": {},
        "query": {},
        "is_wrong": False,
        "body": body,
    }


def put(value: Any, way: Way, part: Any) -> Any:
    """The body with another part there, and what is missing on the way."""
    if not way:
        return part
    if isinstance(way[0], int):
        rest = value[1:] if isinstance(value, list) else []
        return [put(value[0] if isinstance(value, list) and value else None, way[1:], part), *rest]
    known = value if isinstance(value, dict) else {}
    return {**known, way[0]: put(known.get(way[0]), way[1:], part)}


@asynccontextmanager
async def opened(victim: Victim, _: Path) -> AsyncIterator[tuple[Draw, Run]]:
    document = (await victim.http.get("/openapi.json")).json()
    every = operations(document)
    own = [await victim.http.post(path, json=BODIES[path]) for path in (CHAT, "/v1/responses")]
    told = [response.json()["id"] for response in own]
    ids = dict(zip(IDS, [*told, victim.hidden[0].rpartition("/")[2]], strict=True))

    async def run(case: Case) -> None:
        if (response := await sent(case, victim.http, ids)) is not None:
            hold_apart(case, response, victim.hidden)
            check(case, response, document, every)

    def draw(seed: str, number: int) -> list[Case]:
        made = changed(document, seed)[: number * 8 // 10]
        made += described(document, seed, number // 10 // len(every) or 1)
        made += of_schemas(seed, number // 10)
        return Random(seed).sample(made, len(made))

    yield draw, run


FAMILY = Family("REST", 4200, opened, at_once=24)
