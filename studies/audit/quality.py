"""Serve the bundled pair with its probes, or with the target's probe made worse on purpose, and watch the audit.

`--shuffle` permutes the inputs of that probe's first layer, so that it knows nothing of the states it reads and keeps
its size, card and calibration. Sends `--requests` problems of the split `report`, one after another, and gives the
audit time in between. Stops at the alarm unless told to `--go-on`, and after `--minutes`. Prints one line of JSON:
requests and audited segments until the alarm, support and reference, and the share of right answers; with `--target`
also that of the target alone. Usage:

    python -m studies.audit.quality [--shuffle] [--requests 500] [--share 0.25] [--minutes 60] [--go-on] [--target]
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import monotonic

import httpx
import torch

from semspec.demo.client import ChatClient, Client, Strategy
from semspec.demo.problems import SPLITS, make_problem
from semspec.probes.probe import load_probe, save_probe
from semspec.probes.verifier import ProbeVerifier
from semspec.release import load_release
from semspec.stack import BUNDLED_PAIR, Stack, StackConfig

AUDIT = "semspec_gateway_audit_"
GAUGES = ("support", "reference", "probability_gap", "ratio_drift", "evidence")
SEGMENTS = (f'{AUDIT}segments_total{{result="supported"}}', f'{AUDIT}segments_total{{result="unsupported"}}')


def shuffled(probes: Path, folder: Path) -> Path:
    """A copy of `probes` in `folder` with the target's probe shuffled."""
    shutil.copytree(probes, folder, ignore=shutil.ignore_patterns("alternatives", "likelihood.json"))
    path = folder / "target.safetensors"
    artifact = load_probe(path)
    torch.manual_seed(0)
    first = artifact.probe.network[0]
    assert isinstance(first, torch.nn.Linear)
    first.weight.data = first.weight.data[:, torch.randperm(first.weight.shape[1])]
    save_probe(artifact.probe, replace(artifact.card), path)
    load_release(folder).with_probes(ProbeVerifier.load(folder).handshake()).save(folder)
    return folder


async def metrics(http: httpx.AsyncClient) -> dict[str, float]:
    lines = (await http.get("/metrics")).text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith(AUDIT))}


async def measure(arguments: argparse.Namespace, probes: Path) -> dict[str, object]:
    environment = {
        "SEMSPEC_VERIFIER_EQUIVALENCE": "card",
        "SEMSPEC_GATEWAY_AUDIT": json.dumps({"share": arguments.share}),
    }
    config = replace(
        StackConfig.of_pair(BUNDLED_PAIR),
        pair=probes,
        environment=environment,
        start_timeout_s=600.0,
    )
    until = monotonic() + 60 * arguments.minutes
    strategies: tuple[Strategy, ...] = ("semantic", "target") if arguments.target else ("semantic",)
    right, num_judged, num_accepted, alarm = dict.fromkeys(strategies, 0), 0, 0, None
    async with (
        Stack(config) as stack,
        httpx.AsyncClient(base_url=stack.base_url, headers=stack.headers, timeout=300, trust_env=False) as http,
    ):
        client, number = Client(await ChatClient.connect(http), 0.6), 0
        for number, seed in enumerate(SPLITS["report"][: arguments.requests], 1):
            for strategy in strategies:
                answer = await client.ask(make_problem(seed), strategy, seed)
                right[strategy] += answer.is_right
                num_judged += answer.num_accepted + answer.num_rejected
                num_accepted += answer.num_accepted
            async with asyncio.timeout(600):
                while (found := await metrics(http))[f"{AUDIT}waiting_segments"]:
                    await asyncio.sleep(0.02)
            num_audited = sum(found[name] for name in SEGMENTS)
            if found[f"{AUDIT}alarm"] and alarm is None:
                alarm = {"requests": number, "audited_segments": num_audited}
            if number % 10 == 0:
                print(number, num_audited, found[f"{AUDIT}evidence"], file=sys.stderr, flush=True)
            if (alarm and not arguments.go_on) or monotonic() > until:
                break
    return {
        "probes": "shuffled" if arguments.shuffle else "bundled",
        "share": arguments.share,
        "requests": number,
        "audited_segments": num_audited,
        "alarm": alarm,
        "acceptance": round(num_accepted / num_judged, 4),
        "right": {strategy: round(count / number, 4) for strategy, count in right.items()},
        **{name: round(found[f"{AUDIT}{name}"], 4) for name in GAUGES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shuffle", action="store_true", help="shuffle the inputs of the target's probe")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--share", type=float, default=0.25, help="of accepted segments that are audited")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this time, with what there is")
    parser.add_argument("--target", action="store_true", help="ask the target alone, too")
    parser.add_argument("--go-on", action="store_true", help="go on after the alarm")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        probes = BUNDLED_PAIR / "probes"
        used = shuffled(probes, Path(folder) / "probes") if arguments.shuffle else probes
        print(json.dumps(asyncio.run(measure(arguments, used))))


if __name__ == "__main__":
    main()
