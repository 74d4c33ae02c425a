"""A slice of `make attack`, drawn from the hash of the commit, and cases that once took something from a neighbour."""

import pytest

from tests.attacks.__main__ import attacked
from tests.attacks.case import KEPT, Case, seed_of_commit
from tests.attacks.messages import WITH_GRAMMARS
from tests.attacks.odd_http import line
from tests.attacks.rest import SCHEMAS_AT, posted, with_schema
from tests.test_openapi.support import BODIES, CHAT

pytestmark = pytest.mark.slow
NUMBERS = {
    "REST": 150,
    "odd HTTP": 26,
    "floods": 5,
    "floods within the limits": 0,
    "gRPC": 24,
    "broken files": 4,
    "lying services": 0,
}
TEXT = {"$grown": ["text: letters", 900_000]}
COSTLY = (["schema: required", 30_000], ["schema: allOf", 59], ["schema: multiples", 4])
LINES = {
    "GET /v1/generations/": 404, "GET /v1/generations//trace": 404, "GET /v1/generations/abc/": 404,
    "GET /v1/generations/abc%2F": 404, "GET /v1/generations/abc%0A": 400, "GET /v1/models/%": 404, "OPTIONS *": 404,
    "GET /v1/generations/abc/events?trace=maybe": 400, "GET /v1/generations/abc/events?trace=1&trace=0&other=%ff": 404,
    "GET /v1/models/%ff%00%ed%a0%80": 404, "POST /v1/chat/completions/": 404, "CONNECT example.org:1": 404,
    "OPTIONS /v1/models": 405, "TRACE /v1/models": 405, "BREW /v1/models": 405, "HEAD /v1/generations/abc/events": 405,
}  # fmt: skip
DEEP = (
    ("model", "config.json"),
    ("training", "training.yaml"),
)
KNOWN: dict[str, list[Case]] = {
    "REST": [
        *(with_schema(place, {"$grown": grown}) for place in SCHEMAS_AT for grown in COSTLY),
        posted("/tokenize", {"inputs": TEXT}),
        posted(CHAT, {**BODIES[CHAT], "messages": [{"role": "user", "content": TEXT}]}),
        posted(CHAT, {**BODIES[CHAT], "repetition_penalty": 1e-300}),
    ],
    "floods within the limits": [
        {"kind": kind, "seed": "1"} for kind in ("refused grammars", "costly grammars", "one key")
    ],
    "broken files": [
        {"job": "model", "file": "tokenizer_config.json", "how": "json", "seed": "88"},
        *({"job": job, "file": file, "how": "deep", "seed": "1"} for job, file in DEEP),
    ],
    "lying services": [
        {
            "method": f"semspec.v2.{service}.Info",
            "kind": "early",
            "after": 0,
            "strategy": "semantic",
            "seed": "1",
        }
        for service in ("Draft", "Target", "Verifier")
    ],
    "odd HTTP": [line(f"{asked} HTTP/1.1", status) for asked, status in LINES.items()],
    "gRPC": [
        {"method": method, "how": "grammar", "seed": "", "grown": grown}
        for method in WITH_GRAMMARS
        for grown in COSTLY
    ],
}


async def test_no_case_of_this_commit_finds_anything(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        results, _ = await attacked(seed_of_commit(), NUMBERS, KNOWN)
    assert [result.line() for result in results if result.severity is not KEPT] == []
    assert len(results) >= sum(NUMBERS.values())
