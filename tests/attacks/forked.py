"""Runs functions of this module in processes of their own, forked from one that has imported what they need.

A function may then need any amount of memory, hang, be killed, or end the process. As a program
(`python -m tests.attacks.forked`) it reads one JSON line a job and writes one line a result.
"""

import asyncio
import contextlib
import io
import json
import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.processes import ordinary_user

MEMORY_BYTES = 6 << 30
"""Address space of a job."""
JOB_S = 900
TRAINING_S = 3000
Json = dict[str, Any]


class Forks:
    """`async with forks() as forks: await forks.done("model", path=...)`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def done(self, job: str, kill_after_s: float | None = None, **arguments: str) -> Json:
        """The job's result: `loaded`, `refused` or `defect` with what it says, or `killed`.

        `kill_after_s`: SIGKILL after that time.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        line = json.dumps({"job": job, "kill_after_s": kill_after_s, "arguments": arguments})
        self._process.stdin.write(line.encode() + b"\n")
        result: Json = json.loads(await self._process.stdout.readline())
        return result


@asynccontextmanager
async def forks(log: Path) -> AsyncIterator[Forks]:
    """The program, running; what the jobs print goes to the log."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *ordinary_user(), sys.executable, "-m", "tests.attacks.forked", stdin=-1, stdout=-1, stderr=errors,
            limit=1 << 24, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    try:
        yield Forks(process)
    finally:
        process.kill()
        await process.wait()


def model(path: str) -> Json:
    """Load a checkpoint as a target, and have it write."""
    from semspec.engine.transformers_engine import TransformersEngine
    from semspec.types import Context, GenerationParams, Message, SamplingParams, Writer

    async def written() -> Json:
        engine = TransformersEngine.load(path, writer=Writer.TARGET, device="cpu")
        info = await engine.info()
        prompt = await engine.encode([Message("user", "Tom has pens: 25. How many?")])
        order = GenerationParams(SamplingParams(0.0, seed=3), max_tokens=16, max_segment_tokens=8, max_segments=2)
        names = [info.fingerprint, info.tokenizer, info.chat_template, str(info.max_context_tokens)]
        try:
            segments = [one.segment async for one in engine.generate(Context((prompt,)), order)]
        except Exception as error:  # weights may be no numbers
            return {"identity": names, "said": [repr(error)]}
        finally:
            await engine.aclose()
        ids = [list(prompt.token_ids), *(list(segment.token_ids) for segment in segments)]
        return {"identity": names, "said": [ids, [segment.text for segment in segments]]}

    return asyncio.run(written())


def probes(path: str) -> Json:
    """Load probes, and have them judge."""
    from semspec.errors import SemspecError
    from semspec.probes.verifier import ProbeVerifier
    from semspec.types import SURPRISAL_FEATURES, SegmentScore, States

    folder = Path(path)
    verifier = ProbeVerifier.load(folder / "draft.safetensors", folder / "target.safetensors", folder / "alternatives")

    async def judged() -> Json:
        info = await verifier.info()
        draft, target = (
            States(b"\0\0\x80\x3e" * rows * width, (rows, width), model)
            for (rows, width), model in zip(_state_shapes(), (info.draft_model, info.target_model), strict=True)
        )
        score = SegmentScore(target, (-0.5,) * len(SURPRISAL_FEATURES), 9, 1.0)
        try:
            return {"identity": [str(info)], "said": [str(await verifier.judge([draft], [score]))]}
        except SemspecError as error:
            return {"identity": [str(info)], "said": [error.message]}

    return asyncio.run(judged())


def _state_shapes() -> list[tuple[int, int]]:
    """Of the bundled draft and target."""
    from semspec.stack import BUNDLED_PAIR

    cards = [json.loads((BUNDLED_PAIR / "probes" / f"{role}.json").read_text()) for role in ("draft", "target")]
    return [(card["shape"][0], card["shape"][1]) for card in cards]


def likelihood(path: str) -> Json:
    """Load a calibration."""
    from semspec.decoding.likelihood.calibration import load_calibration

    return {"identity": [], "said": [str(load_calibration(Path(path) / "likelihood.json"))]}


def serving(path: str) -> Json:
    """Read `serving.json`, and check it as the gateway does. Any of its settings may be left out or be another."""
    from semspec.gateway.settings import GatewaySettings
    from semspec.settings import load_settings
    from semspec.stack import StackConfig

    defaults = StackConfig(target_probe=Path(path) / "target.safetensors").gateway_defaults()
    os.environ.update(defaults, SEMSPEC_GATEWAY_AUTH="none")
    load_settings(GatewaySettings)
    return {"identity": [str(defaults)], "said": [defaults]}


def datastore(path: str) -> Json:
    """Load a datastore; `said`: what it knows to follow two tokens."""
    from semspec.decoding.retrieval.datastore import Datastore

    store = Datastore.load(Path(path))
    return {"identity": [store.card.digest], "said": list(store.static.match("\x03\x01", 2).continuations)}


def train(command: str, config: str, work: str) -> Json:
    """`semspec train`; `said`: its exit status."""
    from semspec.training.cli import main

    try:
        main([command, "--config", config, "--work", work, "--threads", "1"])
    except SystemExit as end:
        return {"identity": [], "said": [end.code]}
    return {"identity": [], "said": [0]}


JOBS = {function.__name__: function for function in (model, probes, likelihood, serving, datastore, train)}


def _result(name: str, arguments: dict[str, str]) -> Json:
    from semspec.errors import SemspecError
    from semspec.stack import StackError

    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            outcome = {"end": "loaded", **JOBS[name](**arguments)}
    except (SemspecError, StackError) as error:
        outcome = {"end": "refused", "why": str(error)}
    except SystemExit:
        outcome = {"end": "refused", "why": told.getvalue().strip()}
    except BaseException:
        outcome = {"end": "defect", "why": traceback.format_exc()[-2000:]}
    return {**outcome, "told": told.getvalue()[-4000:]}


def _forked(name: str, arguments: dict[str, str], kill_after_s: float | None) -> Json:
    """The result of a job, which another process computes."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        result = json.dumps(_result(name, arguments)).encode()
        with os.fdopen(sink, "wb") as out:
            out.write(result)
        os._exit(0)
    os.close(sink)
    limit_s = kill_after_s or (TRAINING_S if name == "train" else JOB_S)
    with os.fdopen(source, "rb") as into:
        is_done, _, _ = select.select([into], [], [], limit_s)
        if not is_done:
            os.kill(pid, signal.SIGKILL)
        data = into.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(data) if data else {"end": "killed", "why": f"signal {os.WTERMSIG(status)}", "told": ""}


def _warm_up() -> None:
    """Import what the jobs need; no computation, since threads do not survive a fork."""
    own = ("engine.transformers_engine", "decoding.likelihood.calibration", "gateway.settings", "probes.verifier")
    for name in (*own, "stack"):
        import_module(f"semspec.{name}")
    for name in ("semspec.decoding.retrieval.datastore", "semspec.training.cli", "tests.training.support"):
        import_module(name)


def main() -> None:
    """Until the end of the input."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints, prints into the log
    _warm_up()
    for line in sys.stdin:
        job = json.loads(line)
        results.write(json.dumps(_forked(job["job"], job["arguments"], job["kill_after_s"])) + "\n")
        results.flush()


if __name__ == "__main__":
    main()
