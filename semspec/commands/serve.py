"""`semspec serve`: runs the whole stack until Ctrl-C."""

import argparse
import json
import os
import sys
from dataclasses import replace
from functools import partial

from semspec.commands.options import API_KEY, stack_config
from semspec.decoding import PREFERRED
from semspec.keys import checked_key
from semspec.stack import Stack, StackConfig, StackError
from semspec.stack import run as run_until_signal
from semspec.stack.config import DEFAULTS
from semspec.stack.supervisor import keep_running

QUESTION = "What is 17 + 25?"
EXAMPLE = (
    "Ben has coins: 52. Day 1: Ben finds 9 coins. Day 2: Ben naps. Day 3: Ben sells 4 coins. Day 4: Ben gets 6 coins. "
    "Day 5: Ben reads. Day 6: Ben loses 7 coins. How many coins does Ben have now?"
)
"""A question of the kind that the bundled pair answers."""
CURL = """\
curl -N {base_url}/v1/chat/completions -H 'authorization: Bearer {api_key}' -H 'content-type: application/json' -d '{{
  "model": "{model}", "stream": true,
  "messages": [{{"role": "user", "content": "{question}"}}]
}}'"""
WITHOUT_PROBES = """\
This pair has no probes: requests that name no strategy are answered by {}.
`semspec train run --config FILE` trains some; `semspec train calibrate --config FILE` is enough for `likelihood`."""


def run(arguments: argparse.Namespace) -> int:
    try:
        key = os.environ.get(API_KEY)
        config = replace(stack_config(arguments), api_key=checked_key(key) if key else None)
        return run_until_signal(serve(config))
    except StackError as error:
        print(f"{error.log_tail}\nsemspec: {error}", file=sys.stderr)
        return 1


async def serve(config: StackConfig) -> int:
    """Run the stack until a signal. Processes that end are started again. Raises: StackError when it does not start."""
    print(f"starting redis, {', '.join(config.roles)} and gateway ...", flush=True)
    async with Stack(config) as stack:
        page = f"{stack.base_url}/#key={stack.api_key}"  # a URL fragment is not sent to the server
        pages = {"metrics": f"{stack.base_url}/metrics", "playground": page, "API key": stack.api_key}
        for name, address in (stack.addresses | pages).items():
            print(f"{name:>10}  {address}", flush=True)
        print(f"\n{await _first_request(stack, config)}\n\nCtrl-C stops it.", flush=True)
        await keep_running(stack, partial(print, file=sys.stderr))


async def _first_request(stack: Stack, config: StackConfig) -> str:
    """A request to the pair; before it, how a pair is served that has neither probes nor a calibration."""
    model, *named = await stack.models()
    question = QUESTION if config.model_name else EXAMPLE
    request = CURL.format(base_url=stack.base_url, api_key=stack.api_key, model=model, question=question)
    if config.has_probes or config.calibration:
        return request
    given = json.loads(config.gateway_defaults().get(DEFAULTS, "{}")).get("strategy")
    name = given or next(strategy for strategy in PREFERRED if f"{model}:{strategy}" in named)
    return f"{WITHOUT_PROBES.format(name)}\n\n{request}"
