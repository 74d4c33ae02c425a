"""What a soak asks for: requests of every kind, some of which their clients give up."""

import random
from dataclasses import dataclass
from typing import Any, Literal

from demo.problems import SPLITS, make_problem

Ending = Literal["read", "hang up before an answer", "hang up in mid-stream", "cancel"]
CANCELLED_SHARE = 0.3
SESSION_SHARE = 0.2
CANCELLATIONS: tuple[Ending, ...] = ("hang up before an answer", "hang up in mid-stream", "cancel")
STRATEGIES = (
    "semantic", "semantic", "semantic", "auto", "target", "draft", "token-level", "semantic+token-level",
    "spec-thinking", "last-hidden", "surprisal", "random",
)  # fmt: skip
NUM_TOKENS = (4, 48)
MOST_DELAY_S = 0.1
MOST_EVENTS = 4

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """One request, and what its client does."""

    body: Json
    ending: Ending
    delay_s: float
    """Before a client hangs up that does not wait for an answer."""
    num_events: int
    """That a client reads before it hangs up or cancels."""


def order(number: int, rng: random.Random, session: str) -> Order:
    """The request of this number; a share of those that are read to the end belongs to `session`."""
    ending: Ending = rng.choice(CANCELLATIONS) if rng.random() < CANCELLED_SHARE else "read"
    stream = ending in ("hang up in mid-stream", "cancel") or rng.random() < 0.5
    semspec: Json = {"strategy": rng.choice(STRATEGIES), "gamma": rng.randint(1, 3), "trace": rng.random() < 0.2}
    has_session = ending == "read" and rng.random() < SESSION_SHARE
    if has_session:
        semspec["session"] = session
    questions = SPLITS["report"]
    body = {
        "messages": [{"role": "user", "content": make_problem(questions[number % len(questions)]).question}],
        "seed": number,
        "max_tokens": rng.randint(*NUM_TOKENS),
        "n": 1 if has_session else rng.choice((1, 1, 1, 1, 2, 3)),
        "temperature": rng.choice((0.0, 0.6, 1.0)),
        "stream": stream,
        "semspec": semspec,
    }
    return Order(body, ending, rng.uniform(0, MOST_DELAY_S), rng.randint(1, MOST_EVENTS))
