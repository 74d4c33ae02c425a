"""What the verifier serves: batches of many calls, first layers that engines compute, and the same judgements."""

import asyncio
import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.probe import LayerSet, load_probe
from semspec.probes.projection import ServedProbe
from semspec.probes.verifier import ProbePair, ProbeVerifier
from semspec.types import SURPRISAL_FEATURES, States
from tests.helpers.features import assemble
from tests.probes.support import QUESTION, SHAPE, card, load_with, reading, save, spoilt, states


async def test_calls_of_many_sessions_are_judged_as_one_at_a_time(alternatives: Path) -> None:
    verifier = load_with(alternatives)
    calls = [
        (
            [states("draft-fingerprint", i / 7)] * (1 + i % 3),
            [reading("target-fingerprint", i / 5)] * (1 + i % 3),
            name,
        )
        for i, name in enumerate(["", "last-hidden", "surprisal", ""] * 20)
    ]
    together = await asyncio.gather(*(verifier.judge(*call) for call in calls))
    for call, judged in zip(calls, together, strict=True):
        for one, other in zip(judged, await verifier.judge(*call), strict=True):
            assert one.draft_probability == pytest.approx(other.draft_probability, abs=1e-6)
            assert one.target_probability == pytest.approx(other.target_probability, abs=1e-6)


async def test_call_with_a_bad_number_fails_alone_in_its_batch(verifier: ProbeVerifier) -> None:
    (drafted,), (read,) = QUESTION
    bad = spoilt(drafted, math.nan)
    calls = [([drafted, bad if i % 4 == 1 else drafted], [read, read]) for i in range(20)]
    results = await asyncio.gather(
        *(verifier.judge(*call) for call in calls), return_exceptions=True
    )
    alone = await verifier.judge([drafted, drafted], [read, read])
    for i, result in enumerate(results):
        if i % 4 == 1:
            assert isinstance(result, InvalidRequest) and result.parameter == "draft_states[1].data"
        else:
            assert (
                result == pytest.approx(alone, abs=1e-6)
                if isinstance(result, float)
                else result == alone
            )


async def test_cancelled_call(verifier: ProbeVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    released, judge, sizes = threading.Event(), ProbePair.judge, list[int]()

    def held(pair: ProbePair, draft_states: Any, scores: Any) -> Any:
        sizes.append(len(scores))
        assert released.wait(10)
        return judge(pair, draft_states, scores)

    monkeypatch.setattr(ProbePair, "judge", held)
    calls = [asyncio.create_task(verifier.judge(*QUESTION)) for _ in range(4)]
    while not sizes:
        await asyncio.sleep(0.001)  # would not return while the loop is blocked
    first = sizes[0]
    calls[-1].cancel()
    await asyncio.sleep(0)
    assert (verifier.steps.num_steps, verifier.steps.is_busy) == (0, True)
    released.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[-1], asyncio.CancelledError)
    assert len({str(result) for result in results[:-1]}) == 1
    assert sum(sizes) == (4 if first == 4 else 3)
    assert (verifier.steps.num_steps, verifier.steps.is_busy) == (len(sizes), False)


@pytest.mark.parametrize("layers", ["all", "last", (0, 2), (1, 2)])
def test_projection_of_raw_states_equals_the_probe(tmp_path: Path, layers: LayerSet) -> None:
    path = save(tmp_path / "p.safetensors", card("target", "states+surprisal", layers))
    probe = load_probe(path).probe
    torch.manual_seed(1)
    probe.mean.normal_(3), probe.scale.uniform_(0.1, 2)
    values, surprisal = torch.randn(5, *SHAPE), torch.rand(5, len(SURPRISAL_FEATURES))
    expected = probe(assemble("states+surprisal", layers, values, surprisal)).tolist()
    raw = [States(one.numpy().tobytes(), SHAPE, "target-fingerprint") for one in values]
    artifact = load_probe(path)
    artifact.probe.load_state_dict(probe.state_dict())
    served = ServedProbe(artifact, "cpu")
    assert served.probabilities(raw, surprisal) == pytest.approx(expected, abs=1e-5)
    assert served.projection is not None
    sent = served.projection.project_pooled(values)
    projected = [
        States(one.numpy().tobytes(), (1, len(one)), "target-fingerprint", served.projection.digest)
        for one in sent
    ]
    served.check("target", projected)
    assert served.probabilities(projected, surprisal) == pytest.approx(expected, abs=1e-5)
    mixed = [raw[0], projected[1], raw[2], projected[3], projected[4]]
    assert served.probabilities(mixed, surprisal) == pytest.approx(expected, abs=1e-5)


async def test_projection_of_another_probe_is_refused_by_name(alternatives: Path) -> None:
    verifier = load_with(alternatives)
    own, last, surprisal = (await verifier.info()).projections
    assert own.probes == ""
    assert last.probes == "last-hidden"
    assert surprisal.probes == "surprisal"
    assert surprisal.target == ""
    assert own.draft == surprisal.draft != last.draft
    draft = States(bytes(4 * 256), (1, 256), "draft-fingerprint", own.draft)
    read = reading("target-fingerprint")
    assert await verifier.judge([draft], [read]) == await verifier.judge([draft], [read])
    with pytest.raises(Mismatch, match=f"projected by {own.draft}"):
        await verifier.judge([draft], [read], "last-hidden")
    target = replace(read, states=States(bytes(1024), (1, 256), "target-fingerprint", own.target))
    with pytest.raises(Mismatch, match="the probe is none"):
        await verifier.judge([draft], [target], "surprisal")
