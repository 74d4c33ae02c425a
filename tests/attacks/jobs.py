"""Loads files in processes of their own, which may need any amount of memory, hang or end."""

import asyncio
import contextlib
import io
import json
import os
import resource
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MEMORY_BYTES = 6 << 30
"""Address space of a job."""
JOB_S = 900
Json = dict[str, Any]

_PROCESSES = get_context("forkserver")  # which imports once what every job needs
_PROCESSES.set_forkserver_preload(
    [
        "semspec.engine.torch_engine",
        "semspec_gateway.settings",
        "semspec.probes.verifier",
        "semspec.stack",
    ]
)


def done(job: str, path: Path) -> Json:
    """The job's result: `loaded`, `refused` or `defect` with what it says, or `killed`. Blocking."""
    source, sink = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_send_result, args=(sink, job, str(path)))
    process.start()
    sink.close()
    try:
        result: Json = (
            source.recv()
            if source.poll(JOB_S)
            else {"end": "killed", "why": f"no end within {JOB_S} s"}
        )
    except EOFError:
        result = {"end": "killed", "why": "it ended without a result"}
    process.kill()
    process.join()
    return result


def _send_result(sink: Connection, job: str, path: str) -> None:
    import torch

    from semspec.errors import SemspecError

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            sink.send({"end": "loaded", **JOBS[job](path)})
    except SemspecError as error:
        sink.send({"end": "refused", "why": str(error)})
    except SystemExit:
        sink.send({"end": "refused", "why": told.getvalue().strip()})
    except BaseException:
        sink.send({"end": "defect", "why": traceback.format_exc()[-2000:]})


def model(path: str) -> Json:
    """Load a checkpoint as a target, and have it write."""
    from semspec.engine.torch_engine import TorchEngine
    from semspec.types import Context, GenerationParams, Message, SamplingParams, Writer

    async def written() -> Json:
        engine = TorchEngine.load(path, writer=Writer.TARGET, device="cpu")
        info = await engine.info()
        prompt = await engine.encode([Message("user", "Tom has pens: 25. How many?")])
        order = GenerationParams(
            SamplingParams(0.0, seed=3), max_tokens=16, max_segment_tokens=8, max_segments=2
        )
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
    from semspec.stack import BUNDLED_PAIR
    from semspec.types import SURPRISAL_FEATURES, SegmentScore, States

    verifier = ProbeVerifier.load(Path(path))
    cards = (BUNDLED_PAIR / "probes" / f"{role}.json" for role in ("draft", "target"))
    shapes = [json.loads(card.read_text())["shape"][:2] for card in cards]

    async def judged() -> Json:
        info = await verifier.info()
        draft, target = (
            States(b"\0\0\x80\x3e" * rows * width, (rows, width), model)
            for (rows, width), model in zip(
                shapes, (info.draft_model, info.target_model), strict=True
            )
        )
        score = SegmentScore(target, (-0.5,) * len(SURPRISAL_FEATURES), 9, 1.0)
        try:
            return {"identity": [str(info)], "said": [str(await verifier.judge([draft], [score]))]}
        except SemspecError as error:
            return {"identity": [str(info)], "said": [str(error)]}

    return asyncio.run(judged())


def likelihood(path: str) -> Json:
    """Load a calibration."""
    from semspec.decoding.likelihood.calibration import load_calibration

    return {"identity": [], "said": [str(load_calibration(Path(path) / "likelihood.json"))]}


def release(path: str) -> Json:
    """Read `pair.json` as the gateway does. Any of its rule may be left out or be another: the digest tells."""
    from semspec.settings import load_settings
    from semspec_gateway.releases import load_served_release
    from semspec_gateway.settings import GatewaySettings

    os.environ.update(SEMSPEC_GATEWAY_PAIR=path, SEMSPEC_GATEWAY_AUTH="none")
    release = load_served_release(Path(path), load_settings(GatewaySettings).defaults)
    assert release is not None
    return {
        "identity": [release.pair.label, release.digest, str(release.pair)],
        "said": [str(release.pair.rule)],
    }


def datastore(path: str) -> Json:
    """Load a datastore; `said`: what it knows to follow two tokens."""
    from semspec.decoding.retrieval.datastore import Datastore

    store = Datastore.load(Path(path))
    return {
        "identity": [store.card.digest],
        "said": list(store.static.match("\x03\x01", 2).continuations),
    }


def training(path: str) -> Json:
    """Read a configuration of training, which may be another one after a change."""
    from semspec.training.config import load_config

    return {"identity": [str(load_config(Path(path) / "training.yaml"))], "said": []}


def equivalence(path: str) -> Json:
    """Load the equivalence of meaning of a verifier."""
    from semspec.clustering.loading import served_equivalence

    name, _ = served_equivalence(str(Path(path) / "equivalence.json"), {})
    return {"identity": [name], "said": []}


_JOBS = (model, probes, likelihood, release, datastore, training, equivalence)
JOBS = {job.__name__: job for job in _JOBS}
