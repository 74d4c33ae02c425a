"""Run the frozen requests on the bundled pair: in process, resumed, over gRPC and over HTTP."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from semspec.decoding import STRATEGIES as SERVED
from semspec.decoding import Backends, Generation
from semspec.decoding.generation import RetrievalOptions
from semspec.decoding.likelihood.calibration import CALIBRATION_FILE, load_calibration
from semspec.decoding.retrieval.datastore import Datastore
from semspec.decoding.retrieval.drafter import RetrievingDraft
from semspec.probes.verifier import ProbeVerifier
from semspec.records import SegmentTrace
from semspec.stack import BUNDLED_PAIR, StackConfig
from semspec.types import (
    Acceptance,
    Context,
    GenerationParams,
    Message,
    SamplingParams,
    Segmentation,
    SegmentRecord,
)
from tests.golden.cases import ANSWERS, CHAT, QUESTIONS, SAMPLINGS, STRATEGIES, Json
from tests.helpers.checkpoints import loaded
from tests.helpers.engines import behind_sockets, trace
from tests.helpers.processes import GENEROUS_S
from tests.helpers.stack import Running, chat_body, served, text_of
from tests.helpers.variants import PLAIN, changed
from tests.retrieval.support import write

KEPT = (
    *("writer", "verdict", "text", "token_ids", "end", "draw", "draft_probability"),
    *("target_probability", "num_proposed_tokens", "num_accepted_tokens", "repeats"),
)
"""Fields of a segment's record that are frozen, in addition to the token ids of the rejected draft."""
VOLATILE = {
    "id",
    "created",
    "created_at",
    "completed_at",
    "system_fingerprint",
    "semspec",
    "metrics",
}
"""Keys of answers over HTTP that differ from run to run, or that the traces cover."""

Run = Callable[[str, Json], Awaitable[list[Json]]]
"""Answer a question with the fields of a request; return the frozen part of each segment's record."""


@asynccontextmanager
async def runs(folder: Path) -> AsyncIterator[tuple[dict[str, Run], Running]]:
    """Start the stack; yield each way to run a request by its name, and the stack.

    Drafts are written ahead over gRPC and over HTTP, and not in process: this must not change a trace.
    """
    async with loaded(BUNDLED_PAIR / "draft", BUNDLED_PAIR / "target") as (engine, target):
        await _write_datastore(target, folder)
        draft = RetrievingDraft(engine, Datastore.load(folder))
        probes = BUNDLED_PAIR / "probes"
        likelihood = load_calibration(probes / CALIBRATION_FILE)
        local = Backends(draft, target, ProbeVerifier.load(probes), likelihood=likelihood)
        async with (
            behind_sockets(draft, target, local.verifier) as remote,
            served(StackConfig(datastore=folder, start_timeout_s=GENEROUS_S)) as running,
        ):
            yield (
                {
                    "in process": partial(_run, local),
                    "resumed": partial(_resume, local),
                    "gRPC": partial(_run, replace(remote, likelihood=likelihood), draft_ahead=True),
                    "HTTP": partial(_ask, running),
                },
                running,
            )


async def trace_strategy(name: str, run: Run) -> dict[str, list[Json]]:
    """The frozen part of the segments of each case of a strategy, by the case and how it is sampled."""
    return {
        f"{case}, {sampled}": await run(
            question, {**sampling, "semspec": {"strategy": name, **own}}
        )
        for case, own in STRATEGIES[name].items()
        for question, (sampled, sampling) in zip(QUESTIONS, SAMPLINGS.items(), strict=True)
    }


def is_served(strategy: str) -> bool:
    """Whether the gateway has the strategy; the others belong to the benchmarks."""
    return strategy in SERVED


async def answer(running: Running, name: str) -> Json:
    """The stable part of an answer over HTTP."""
    path, fields = ANSWERS[name]
    if path == CHAT:
        fields = chat_body(QUESTIONS[0], {**SAMPLINGS["sampled"], **fields})
    response = await running.http.post(path, json=fields)
    assert response.status_code == 200, response.text
    stable: Json = _stable(response.json())
    return stable


async def stream(running: Running) -> Json:
    """The text of a stream, and of one whose client comes back after half of its events."""
    async with running.events(QUESTIONS[0], **SAMPLINGS["sampled"]) as events:
        seen = [event async for event in events]
    half = seen[: len(seen) // 2]
    rest = await running.attached(seen[0].data["id"], half[-1].id)
    return {
        "whole": text_of([event.data for event in seen]),
        "resumed": text_of([event.data for event in (*half, *rest)]),
    }


async def _run(
    backends: Backends, question: str, fields: Json, draft_ahead: bool = False
) -> list[Json]:
    generation = await _generation(backends, question, fields, draft_ahead)
    return [_frozen_part(record) for record in await trace(generation, backends)]


async def _resume(backends: Backends, question: str, fields: Json) -> list[Json]:
    """Run the request, and its second half once more as another gateway would.

    A verification that wrote parts of both halves counts its tokens in one of them, so these counts are not compared.
    """
    generation = await _generation(backends, question, fields, draft_ahead=True)
    records = await trace(generation, backends)
    kept, rest = records[: len(records) // 2], records[len(records) // 2 :]
    resumed = replace(
        generation,
        context=generation.context.extended(*(record.segment for record in kept)),
        open_piece=kept[-1].open_piece,
    )
    again = [
        replace(
            record,
            num_proposed_tokens=first.num_proposed_tokens,
            num_accepted_tokens=first.num_accepted_tokens,
        )
        for first, record in zip(rest, await trace(resumed, backends), strict=True)
    ]
    return [_frozen_part(record) for record in (*kept, *again)]


async def _ask(running: Running, question: str, fields: Json) -> list[Json]:
    semspec = {**fields["semspec"], "trace": True}
    answer = await running.answer(question, **{**fields, "semspec": semspec})
    assert answer["semspec"]["fallback"] is None
    return [_select(segment) for segment in answer["semspec"]["trace"]]


async def _generation(
    backends: Backends, question: str, fields: Json, draft_ahead: bool
) -> Generation:
    prompt = await backends.target.encode([Message("user", question)])
    sampling = SamplingParams(temperature=fields["temperature"], seed=fields["seed"])
    types: dict[str, Callable[[Any], Any]] = {
        "acceptance": lambda given: Acceptance(**given),
        "retrieval": lambda given: RetrievalOptions(**given),
        "segmentation": Segmentation,
    }
    options = {name: types.get(name, lambda v: v)(v) for name, v in fields["semspec"].items()}
    generation = Generation(Context((prompt,)), sampling, fields["max_tokens"], strategy=PLAIN)
    return changed(generation, **{**options, "draft_ahead": draft_ahead})


def _frozen_part(record: SegmentRecord) -> Json:
    assert record.fallback is None
    return _select(SegmentTrace.of(record).model_dump(mode="json"))


def _select(segment: Json) -> Json:
    """The fields that are frozen; those without a value are left out."""
    kept = {name: segment.get(name) for name in KEPT}
    kept["rejected"] = (segment["rejected"] or {}).get("token_ids")
    return {name: value for name, value in kept.items() if value not in (None, 0)}


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stable(item) for name, item in value.items() if name not in VOLATILE}
    return [_stable(item) for item in value] if isinstance(value, list) else value


async def _write_datastore(target: Any, folder: Path) -> None:
    """Write the target's own answers, with every ninth token replaced."""
    documents = []
    for question in QUESTIONS:
        prompt = await target.encode([Message("user", question)])
        params = GenerationParams(SamplingParams(0), max_segments=0, max_tokens=220)
        segments = [one.segment async for one in target.generate(Context((prompt,)), params)]
        token_ids = [token for segment in segments for token in segment.token_ids]
        token_ids[5::9] = [(token + 1) % 50 for token in token_ids[5::9]]
        documents.append([*prompt.token_ids, *token_ids])
    write(folder, await target.info(), documents)
