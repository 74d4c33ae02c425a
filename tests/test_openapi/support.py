"""Requests made up from /openapi.json, and their answers held to that document."""

import asyncio
import hashlib
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import quote

import httpx
import hypothesis
import jsonschema  # type: ignore[import-untyped]
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from tests.attacks.case import HIGH, LOW, MEDIUM, Case, Found
from tests.grammars.growing import written

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
MOST_TOKENS = 8
TURN = {"role": "user", "content": "How many?"}
BODIES: dict[str, Json] = {
    CHAT: {"model": "semspec-demo", "messages": [TURN], "max_tokens": MOST_TOKENS},
    "/v1/completions": {"model": "semspec-demo", "prompt": "How many?", "max_tokens": MOST_TOKENS},
    "/v1/responses": {"model": "semspec-demo", "input": [TURN], "max_output_tokens": MOST_TOKENS},
    "/generate": {"inputs": "How many?", "parameters": {"max_new_tokens": MOST_TOKENS}},
    "/generate_stream": {"inputs": "How many?", "parameters": {"max_new_tokens": MOST_TOKENS}},
    "/tokenize": {"inputs": "How many?"},
    "/detokenize": {"model": "semspec-demo", "tokens": [1, 2]},
}
"""A sound body of each route."""
LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"}
END_S = 90.0
"""In which a request of few tokens is answered."""
_HELD = ("status_code", "content_type", "response_headers", "response_schema")
CHECKED = [getattr(checks, f"{what}_conformance") for what in _HELD]
IDS = ("own generation", "own response", "neighbour's generation")
"""In place of ids that are known only when a stack runs."""


def operations(document: Any) -> dict[str, Any]:
    """Of /openapi.json by their labels, as `GET /v1/models`."""
    every: Any = schemathesis.openapi.from_dict(document).get_all_operations()
    return {one.ok().label: one.ok() for one in every}


def described(document: Json, seed: str, number: int) -> list[Case]:
    """Requests of every operation in turn, three of four as described."""
    cases, every = list[Case](), operations(document)
    for label, operation in every.items():
        for mode, share in ((GenerationMode.POSITIVE, 3), (GenerationMode.NEGATIVE, 1)):
            own = drawn(
                operation.as_strategy(generation_mode=mode),
                f"{seed}/{label}/{share}",
                share * number // 4,
            )
            cases += [_as_json(case, Random(f"{seed}/{label}/{i}")) for i, case in enumerate(own)]
    return cases


def drawn(cases: Any, seed: str, number: int) -> list[Any]:
    """At most `number` values of a strategy, which differ; the same for a seed and a version of hypothesis."""
    found, checks = dict[str, Any](), list(hypothesis.HealthCheck)

    @hypothesis.seed(int(hashlib.sha256(seed.encode()).hexdigest(), 16))
    @hypothesis.settings(
        max_examples=max(1, number), database=None, deadline=None, suppress_health_check=checks
    )
    @hypothesis.given(cases)
    def keep(case: Any) -> None:
        found[repr(case)] = case

    with suppress(hypothesis.errors.Unsatisfiable):  # there may be nothing to draw
        keep()
    return list(found.values())[:number]


def _as_json(made: Any, chance: Random) -> Case:
    parts = {
        name: chance.choice((str(value), *IDS, "neighbours"))
        for name, value in made.path_parameters.items()
    }
    headers = {
        name: str(value)
        for name, value in (made.headers or {}).items()
        if name.lower() != "authorization"
    }
    query = {name: str(value) for name, value in (made.query or {}).items()}
    is_wrong = made.meta.generation.mode is GenerationMode.NEGATIVE
    case = {
        "label": made.operation.label,
        "parts": parts,
        "headers": headers,
        "query": query,
        "is_wrong": is_wrong,
    }
    if isinstance(made.body, bytes):
        return {**case, "raw": made.body.decode("latin-1")}
    for part in (made.body, made.body.get("parameters")) if isinstance(made.body, dict) else ():
        if isinstance(part, dict):
            part.update(dict.fromkeys(LIMITS & part.keys(), MOST_TOKENS))
    return case if made.body is schemathesis.core.NOT_SET else {**case, "body": made.body}


async def sent(case: Case, http: httpx.AsyncClient, ids: Json) -> httpx.Response | None:
    """The response; none to what no client sends."""
    method, _, path = case["label"].partition(" ")
    for name, value in case["parts"].items():
        path = path.replace(
            f"{{{name}}}", quote(ids.get(value, value), safe="", errors="surrogatepass")
        )
    content = written(case["body"]).encode("utf-8", "surrogatepass") if "body" in case else None
    content = case["raw"].encode("latin-1") if "raw" in case else content
    headers = {
        **({"content-type": "application/json"} if content is not None else {}),
        **case["headers"],
    }
    raw = {
        name.encode(errors="replace"): value.encode("utf-8", "surrogatepass")
        for name, value in headers.items()
    }
    try:
        async with asyncio.timeout(END_S):
            return await http.request(
                method, path, params=case["query"], content=content, headers=raw
            )
    except TimeoutError:
        raise Found(HIGH, f"no answer within {END_S:g} s", is_of_load=True) from None
    except (httpx.LocalProtocolError, httpx.InvalidURL, UnicodeError):
        return None


def check(case: Case, response: httpx.Response, document: Json, every: dict[str, Any]) -> None:
    """Raises: Found if the answer blames the server, or is not as described."""
    status, text = response.status_code, response.text
    is_text = response.headers.get("content-type", "").startswith(
        "text/plain"
    )  # whose labels have these words
    if status >= 500 or (
        not is_text and ('"internal_error"' in text or '"service_unavailable"' in text)
    ):
        raise Found(MEDIUM, f"{status}: {text[-300:]}", is_of_load=status in (503, 504))
    if status in (404, 405, 413, 431):
        return
    try:
        every[case["label"]].Case(path_parameters=case["parts"]).validate_response(
            response, checks=CHECKED
        )
    except (AssertionError, schemathesis.errors.SchemathesisError, BaseExceptionGroup) as flaw:
        raise Found(LOW, f"{status}: {flaw} {getattr(flaw, 'exceptions', '')}"[:600]) from None
    if status >= 400 and any(
        word in text for word in ("Traceback", " object at 0x", "NoneType", "Error(")
    ):
        raise Found(LOW, f"{status}: {text[:300]!r}")
    if status == 200 and case["is_wrong"] and "body" in case:
        asked = every[case["label"]].definition.raw["requestBody"]["content"]["application/json"][
            "schema"
        ]
        validator = jsonschema.Draft202012Validator({**asked, "components": document["components"]})
        if flaws := [flaw.message[:200] for flaw in validator.iter_errors(case["body"])]:
            raise Found(LOW, f"answered, though {flaws}")
