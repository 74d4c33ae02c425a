"""Loaded by schemathesis: makes most right bodies keep the rules that hold between fields, which a schema cannot state.

One body in four stays as it was made up, so that the refusals are asked for too.
"""

import zlib
from typing import Any

import schemathesis

Json = dict[str, Any]


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: Json) -> None:
    body = case.body
    if case.meta is not None and case.meta.generation.mode is schemathesis.GenerationMode.NEGATIVE:
        return
    if not isinstance(body, dict) or (chance := zlib.crc32(repr(sorted(body.items())).encode())) % 4 == 0:
        return
    _keep_rules(body)
    for name in [name for name in case.headers or {} if name.lower() == "idempotency-key"]:
        case.headers[name] = f"{chance:x}"  # else all bodies would come under the few keys that are made up


def _keep_rules(body: Json) -> None:
    for of_template in ("chat_template_kwargs", "reasoning_effort", "reasoning"):
        body.pop(of_template, None)  # the template has no variables
    if body.get("stream") is not True:
        body.pop("stream_options", None)
    if body.get("logprobs") is not True and "messages" in body:
        body.pop("top_logprobs", None)
    if "max_completion_tokens" in body:
        body.pop("max_tokens", None)
    if body.get("prompt") == "":
        body["prompt"] = "Once"
    for message in _objects(body.get("messages")):
        if not message.get("content"):
            message["content"] = "How many?"
    if "model" in body:
        body["model"] = "semspec-demo"
    if isinstance(options := body.get("semspec"), dict):
        _keep_rules_of_options(body, options)


def _keep_rules_of_options(body: Json, options: Json) -> None:
    if "strategy" in options:
        options["strategy"] = "semantic"
    if "messages" not in body or body.get("n") not in (None, 1):
        options.pop("session", None)
    if options.get("strictness") is not None:
        options.pop("acceptance", None)


def _objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
