"""How many calls of a gateway process to one replica could share a frame? Counts those that begin at one turn of the
gateway's event loop, on the bundled stack under load.

python -m studies.wire [--sessions 1 8 24 64]    writes results/frames.json
"""

import argparse
import asyncio
import json
import os
import signal
import tempfile
from itertools import count
from pathlib import Path

import httpx

from semspec.bench.environment import environment
from semspec.demo.problems import SPLITS, make_problem
from semspec.stack import BUNDLED_PAIR, Stack, StackConfig
from semspec.training.files import write_json

RESULTS = Path(__file__).parent / "results"
HOOK = """
import asyncio, collections, importlib.abc, json, os, signal, sys
sizes, waiting = collections.Counter(), collections.Counter()
def flush():
    sizes.update(waiting.values())
    waiting.clear()
def noted(method):
    def call(self, *arguments):
        if not waiting:
            asyncio.get_running_loop().call_soon(flush)
        waiting[id(self)] += 1
        return method(self, *arguments)
    return call
def dump(*_):
    with open(os.environ["FRAMES"], "w") as file:
        json.dump(sizes, file)
    sizes.clear()
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "semspec.gateway.app":
            sys.meta_path.remove(self)
            from semspec.rpc.connection import Connection
            Connection._responses = noted(Connection._responses)
if "semspec.gateway" in sys.orig_argv:
    sys.meta_path.insert(0, Finder())
    signal.signal(signal.SIGUSR1, dump)
"""


async def measure(levels: list[int]) -> dict[int, dict[int, int]]:
    """By sessions: how often so many calls began at one turn of the loop."""
    seeds, found = count(), dict[int, dict[int, int]]()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(HOOK)
        path = Path(folder) / "sizes.json"
        os.environ |= {"FRAMES": str(path), "PYTHONPATH": folder, "SEMSPEC_GATEWAY_MAX_CONCURRENT": str(max(levels))}
        async with Stack(StackConfig()) as stack:
            pid = stack.processes["gateway"].pid
            async with httpx.AsyncClient(base_url=stack.base_url, headers=stack.headers, timeout=600) as http:

                async def ask(num_questions: int) -> None:
                    for seed in (next(seeds) for _ in range(num_questions)):
                        question = make_problem(SPLITS["tune"][seed]).question
                        body = {"messages": [{"role": "user", "content": question}], "seed": seed, "stream": True}
                        (await http.post("/v1/chat/completions", json=body)).raise_for_status()

                await ask(1)
                for level in levels:
                    os.kill(pid, signal.SIGUSR1)  # forgets what was before
                    await asyncio.sleep(0.5)
                    await asyncio.gather(*(ask(max(2, 12 // level)) for _ in range(level)))
                    os.kill(pid, signal.SIGUSR1)
                    await asyncio.sleep(1)
                    found[level] = {int(size): times for size, times in json.loads(path.read_text()).items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 24, 64])
    found = asyncio.run(measure(parser.parse_args().sessions))
    means = {
        level: sum(n * times for n, times in sizes.items()) / sum(sizes.values()) for level, sizes in found.items()
    }
    write_json(
        RESULTS / "frames.json", {"calls_a_frame": means, "sizes": found, "environment": environment(BUNDLED_PAIR)}
    )
    print(*(f"{level} sessions: {mean:.2f} calls a frame" for level, mean in means.items()), sep="\n")


if __name__ == "__main__":
    main()
