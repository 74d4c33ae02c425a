"""`semspec serve`: runs the whole stack until Ctrl-C."""

import argparse
import shlex
import sys
from functools import partial
from typing import Any

from semspec.commands import BAD_VERDICT, BUNDLED, EXAMPLE, KNOWN, program
from semspec.commands.options import API_KEY, stack_config
from semspec.engine.hub import fetch
from semspec.stack import Stack, StackConfig, StackError
from semspec.stack import run as run_until_signal
from semspec.stack.supervisor import keep_running

QUESTION = "What is 17 + 25?"
REQUEST = """\
{api_key_name}={api_key} {program} chat --url {base_url}

curl -s {base_url}/v1/chat/completions -H {authorization} -H 'content-type: application/json' -d '{{
  "model": "{model}",
  "messages": [{{"role": "user", "content": "{question}"}}]
}}' | python3 -m json.tool"""
WITHOUT_PROBES = """\
This pair has no probes: requests that name no strategy are answered by {}.
`semspec train run --config FILE` trains some. `semspec train calibrate --from-prompts FILE` makes a rule without."""


def run(arguments: argparse.Namespace) -> int:
    try:
        tell = partial(print, flush=True)
        config = stack_config(arguments, tell)
        for role, model in (("DRAFT", config.draft_model), ("TARGET", config.target_model)):
            if model is not None:  # downloads do not count towards the start timeout
                fetch(str(model), config.given(f"SEMSPEC_{role}_REVISION") or None, tell)
        return run_until_signal(serve(config))
    except StackError as error:
        print(f"{error.log_tail}\nsemspec: {error}", file=sys.stderr)
        return 1


async def serve(config: StackConfig) -> int:
    """Run the stack until a signal. Processes that end are started again. Raises: StackError when it does not start."""
    print(f"starting redis, {', '.join(config.roles)} and gateway ...", flush=True)
    async with Stack(config) as stack:
        page = f"{stack.base_url}/#key={stack.api_key}"  # a URL fragment is not sent to the server
        metrics = f"curl -H {_authorization(stack)} {stack.base_url}/metrics"
        pages = {"metrics": metrics, "playground": page, "API key": stack.api_key}
        for name, address in (stack.addresses | pages).items():
            print(f"{name:>10}  {address}", flush=True)
        print(f"\n{await _first_request(stack, config)}\n\nCtrl-C stops it.", flush=True)
        await keep_running(stack, partial(print, file=sys.stderr))


async def _first_request(stack: Stack, config: StackConfig) -> str:
    """Return a sample request to the pair, after notes on the pair and its probes."""
    models = await stack.model_list()
    model, strategy = models["data"][0]["id"], models["data"][0]["strategy"]
    is_bundled = config.release is not None and config.release.name == BUNDLED
    question = EXAMPLE if is_bundled else QUESTION
    notes = (
        "" if config.pair else WITHOUT_PROBES.format(strategy),
        _support(models),
        f"The report of the probes says: {config.bad_verdicts} To do: {BAD_VERDICT}."
        if config.bad_verdicts
        else "",
        KNOWN if is_bundled else "",
        REQUEST.format(
            program=program(),
            base_url=stack.base_url,
            api_key_name=API_KEY,
            api_key=shlex.quote(stack.api_key),
            authorization=_authorization(stack),
            model=model,
            question=question,
        ),
    )
    return "\n\n".join(filter(None, notes))


def _authorization(stack: Stack) -> str:
    """Return the header with the API key, quoted for a shell."""
    return shlex.quote(f"authorization: Bearer {stack.api_key}")


def _support(models: dict[str, Any]) -> str:
    """Name the strategies that the pair supports, and what it lacks for the others."""
    strategies = [model["strategy"] for model in models["data"] if ":" in model["id"]]
    unsupported = ", ".join(f"{name} ({lacks})" for name, lacks in models["unsupported"].items())
    return f"It supports {', '.join(strategies)}{unsupported and f', but not {unsupported}'}."
