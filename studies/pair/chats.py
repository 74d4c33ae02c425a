"""Chats about other things than a single puzzle: JSON by a schema, calls of tools, earlier turns, other questions."""

import json
import random
from dataclasses import dataclass
from typing import Any

from semspec_demo.documents import DELIMITER, write_document
from semspec_demo.problems import Facts

Json = dict[str, Any]
POLITE = "</think>\nI only know questions about a ball that is passed on."
WORDS = """
    a about after all an and answer any are ask at be because best big book by can capital city code color count country
    day describe do does eat explain find first food for from function get give go good hello help hi how i in is it
    joke know language last letter life like list little long make many me mean money month moon most much my name new
    next number of old on one or people place please poem price program question read red river say sea send short show
    sing small some song star story sum tell test than thank that the them there thing think this time to today tool
    translate two use value very want water weather what when where which who why will with word work world write year
    yes you your
    """.split()
FIELDS = (
    "answer card number person name of value result count holder item label text title total unit "
    "city key x"
).split()


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns, tools that are offered, and what the assistant says after `<think>`."""

    messages: tuple[Json, ...]
    answer: str
    tools: tuple[Json, ...] = ()


def write_chat(seed: int, rng: random.Random) -> Chat:
    """A chat, in part about the puzzle of `seed`."""
    document = write_document(seed)
    facts = document.problem.facts if rng.random() < 0.5 else None
    asked = document.problem.question if facts else _other_question(rng)
    match rng.choices(("other", "json", "call", "result", "turns"), (3, 3, 2, 2, 1))[0]:
        case "json":
            card = document.steps[-1].claims[0][1] if facts else 1
            schema, found = _object(
                rng, {"integer": card, "string": str(card), "boolean": True, "number": card}
            )
            text = f"{asked} Answer in JSON: {json.dumps(schema)}"
            reasoning = [*document.segments[:-1], ""] if facts else []
            return Chat((_user(text),), f"{DELIMITER.join(reasoning)}</think>\n{json.dumps(found)}")
        case "call":
            tool, function = _tool(rng, facts)
            call = f"<tool_call>\n{json.dumps(function)}\n</tool_call>"
            return Chat((_user(asked),), f"</think>\n{call}", (tool,))
        case "result":
            tool, function = _tool(rng, facts)
            result = str(
                rng.choice((rng.randrange(100_000), rng.choice(WORDS), document.problem.answer))
            )
            called = {"id": "1", "type": "function", "function": function}
            turn = {"role": "assistant", "content": "", "tool_calls": [called]}
            turns = _user(asked), turn, {"role": "tool", "content": result}
            return Chat(turns, f"</think>\nThe tool says {result}.", (tool,))
        case "turns":
            before = write_document(seed + 1)
            turn = {"role": "assistant", "content": before.segments[-1].removeprefix("</think>\n")}
            return Chat(
                (_user(before.problem.question), turn, _user(document.problem.question)),
                document.solution,
            )
    return Chat((_user(_other_question(rng)),), POLITE)


def _user(content: str) -> Json:
    return {"role": "user", "content": content}


def _other_question(rng: random.Random) -> str:
    """Words, some of them unheard of."""
    words = rng.choices(WORDS, k=rng.randint(1, 12))
    for index in range(len(words)):
        if rng.random() < 0.25:
            words[index] = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9)))
        if rng.random() < 0.15:
            words[index] = words[index].title()
        if rng.random() < 0.05:
            words[index] = str(rng.randrange(10 ** rng.randint(1, 4)))
    text = " ".join(words)
    return (text[0].upper() + text[1:] if rng.random() < 0.7 else text) + rng.choice(
        ("?", "?", ".", "", "!")
    )


def _object(rng: random.Random, values: dict[str, object]) -> tuple[Json, Json]:
    """A schema of an object with some of these values, by type, and the object."""
    names = rng.sample(FIELDS, rng.choice((1, 1, 2, 3)))
    kinds = {name: rng.choice(list(values)) for name in names}
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in kinds.items()},
        "required": names,
    }
    return schema, {name: values[kind] for name, kind in kinds.items()}


def _tool(rng: random.Random, facts: Facts | None) -> tuple[Json, Json]:
    """A function, and a call of it, with what the question tells of who has the ball first."""
    person, card = (facts.names[facts.start], facts.cards[facts.start]) if facts else ("ball", 1)
    parameters, arguments = _object(
        rng, {"integer": card, "string": person, "boolean": True, "number": card}
    )
    name = rng.choice(("get", "count", "find", "ask", "search")) + rng.choice(
        ("", "_card", "_weather", "_it", "_ball")
    )
    description = f"{rng.choice(WORDS).title()} {rng.choice(WORDS)}."
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}, {"name": name, "arguments": arguments}
