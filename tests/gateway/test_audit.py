"""The audit beside a running gateway: what it judges again, when, and what its alarm does."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from semspec.clustering.equivalence import Alternatives
from semspec.errors import Unavailable
from semspec.types import OperatingPoint, SegmentEnd
from tests.helpers.gateway import Gateway, GatewayFactory, eventually, holding
from tests.helpers.gateway_fakes import NUM_SEGMENTS, Fakes, FakeVerifier

NUM_ACCEPTED = NUM_SEGMENTS - 2
"""Of each request: every third segment is rejected."""
SUPPORTED = 'semspec_gateway_audit_segments_total{result="supported"}'
ALARM = 'semspec_gateway_audit_alarm{release=""}'
UNSUPPORTED = 'semspec_gateway_audit_segments_total{result="unsupported"}'


class Clustering(FakeVerifier):
    """Finds that all segments mean the same, or, while `disagrees`, that the first means something else."""

    def __init__(self) -> None:
        super().__init__()
        curve = tuple(OperatingPoint(threshold, 0.8, None, None, None) for threshold in (0.5, 1.5))
        self.verifier_info = replace(
            self.verifier_info,
            equivalence="words",
            draft_probe="a",
            target_probe="b",
            operating_points=curve,
        )
        self.disagrees = False
        self.is_broken = False
        self.groups: list[Alternatives] = []

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        if self.is_broken:
            raise Unavailable("no clusters now")
        self.groups.append(group)
        return [int(self.disagrees), *[0] * (len(ends) - 1)]


async def audited(start_gateway: GatewayFactory, **options: Any) -> tuple[Gateway, Clustering]:
    """A gateway that audits every accepted segment, and its verifier."""
    verifier = Clustering()
    audit = {"share": 1.0, "samples": 3, **options}
    return await start_gateway(Fakes.make(verifier=verifier), audit=audit), verifier


async def strictness_of(gateway: Gateway, **semspec: Any) -> float | None:
    """What a request is decoded with."""
    stored = await gateway.stored((await gateway.chat(semspec=semspec)).json()["id"])
    strictness: float | None = stored["parameters"]["strictness"]
    return strictness


async def test_audit_that_lacks_what_it_needs_is_refused_with_the_remedy(
    start_gateway: GatewayFactory,
) -> None:
    no_curve = Clustering()
    no_curve.verifier_info = replace(no_curve.verifier_info, operating_points=())
    for verifier, audit, words in (
        (
            FakeVerifier(),
            {"share": 0.1},
            "the verifier has no equivalence of meaning; give it the card's",
        ),
        (no_curve, {"share": 0.1, "strictness": 0.5}, "the audit's strictness needs a curve"),
    ):
        gateway = await start_gateway(Fakes.make(verifier=verifier), audit=audit)
        refusal = (await gateway.http.get("/ready")).json()["error"]["message"]
        assert words in refusal and "SEMSPEC" not in refusal


async def test_accepted_segments_are_judged_from_samples_in_their_context(
    start_gateway: GatewayFactory,
) -> None:
    gateway, verifier = await audited(start_gateway)
    body = (await gateway.chat()).json()
    await gateway.metric_becomes(SUPPORTED, NUM_ACCEPTED)
    trace = (await gateway.stored(body["id"], "/trace"))["segments"]
    before = ["".join(one["text"] for one in trace[: segment["index"]]) for segment in trace]
    accepted = [segment for segment in trace if segment["verdict"] == "accepted"]
    assert [group.segments[0] for group in verifier.groups] == [
        segment["text"] for segment in accepted
    ]
    assert [group.reasoning for group in verifier.groups] == [
        before[one["index"]] for one in accepted
    ]
    assert {group.question for group in verifier.groups} == {"How many?"}
    assert all(len(group.segments) == 4 for group in verifier.groups)
    samples = [params for params in gateway.fakes.target.asked if params.is_ahead]
    assert len(samples) == 3 * NUM_ACCEPTED
    assert len({params.sampling.seed for params in samples}) == len(samples)
    assert all(params.max_segments == 1 for params in samples)
    assert await gateway.metric('semspec_gateway_audit_reference{release=""}') == 1
    assert await gateway.metric(ALARM) == 0


async def test_acceptance_that_a_client_chose_is_not_audited(start_gateway: GatewayFactory) -> None:
    gateway, verifier = await audited(start_gateway)
    await gateway.chat(semspec={"acceptance": {"threshold": 0.1}})
    await gateway.chat(semspec={"strictness": 0.0})
    await gateway.chat(semspec={"probes": "last-hidden"})
    await gateway.chat()
    await gateway.metric_becomes(SUPPORTED, NUM_ACCEPTED)
    assert len(verifier.groups) == NUM_ACCEPTED


async def test_request_interrupts_the_audit_and_nothing_is_lost(
    start_gateway: GatewayFactory,
) -> None:
    gateway, _ = await audited(start_gateway)
    target = gateway.fakes.target
    target.pause_at = (
        1  # the request has this segment from the draft; the audit's samples stop there
    )
    await gateway.chat()
    await eventually(lambda: target.num_writing == 3)
    target.pause_at = None
    async with holding(gateway.fakes.drafter, 1, gateway.chat(seed=8)) as second:
        await eventually(
            lambda: target.num_writing == 0
        )  # while the request runs, no sample is written
    assert second.result().status_code == 200
    await gateway.metric_becomes(SUPPORTED, 2 * NUM_ACCEPTED)
    assert (
        await gateway.metric(
            'semspec_gateway_audit_skipped_segments_total{reason="no spare capacity"}'
        )
        == 0
    )


@pytest.mark.parametrize(
    ("limit", "value", "num_waiting"), [("MAX_WAITING", 2, 2), ("MAX_WAITING_BYTES", 1, 0)]
)
async def test_audit_without_spare_capacity_says_so_and_skips(
    start_gateway: GatewayFactory,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    num_waiting: int,
) -> None:
    monkeypatch.setattr(f"semspec_gateway.generation.audit.{limit}", value)
    gateway, verifier = await audited(start_gateway)
    gateway.fakes.drafter.pause_at = NUM_SEGMENTS - 1
    with caplog.at_level(logging.WARNING):
        requests = [asyncio.create_task(gateway.chat(seed=seed)) for seed in range(2)]
        skipped = 'semspec_gateway_audit_skipped_segments_total{reason="no spare capacity"}'
        await gateway.metric_becomes(skipped, 2 * NUM_ACCEPTED - num_waiting)
        assert await gateway.metric("semspec_gateway_audit_waiting_segments") == num_waiting
        assert verifier.groups == []
        gateway.fakes.drafter.resume.set()
        assert [response.status_code for response in await asyncio.gather(*requests)] == [200, 200]
    assert (
        sum("audit: skips segments: no spare capacity" in message for message in caplog.messages)
        == 1
    )


async def test_audit_may_work_beside_as_many_generations_as_set(
    start_gateway: GatewayFactory,
) -> None:
    gateway, _ = await audited(start_gateway, max_running=1)
    async with holding(gateway.fakes.drafter, NUM_SEGMENTS - 1, gateway.chat()) as request:
        await gateway.metric_becomes(SUPPORTED, NUM_ACCEPTED)
    assert request.result().status_code == 200


async def test_alarm_is_logged_and_tightens_what_no_client_chose(
    start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, verifier = await audited(start_gateway, strictness=1.0)
    verifier.disagrees = True
    assert await strictness_of(gateway) is None
    with caplog.at_level(logging.ERROR):
        for number in range(2, 9):
            await gateway.chat(seed=number)
            await gateway.metric_becomes(UNSUPPORTED, number * NUM_ACCEPTED)
    assert await gateway.metric(ALARM) == 1
    assert await gateway.metric('semspec_gateway_audit_evidence{release=""}') >= 100
    assert await gateway.metric('semspec_gateway_audit_support{release=""}') == 0
    assert len([message for message in caplog.messages if "audit" in message]) == 1
    assert await strictness_of(gateway) == 1.0
    assert await strictness_of(gateway, strictness=0.2) == 0.2
    assert await strictness_of(gateway, acceptance={"threshold": 0.1}) is None
    assert await strictness_of(gateway, strategy="target") is None
    verifier.verifier_info = replace(verifier.verifier_info, target_probe="c")
    await gateway.app.state.readiness.check()
    await gateway.chat()  # the first one under new probes begins a new test
    assert await gateway.metric(ALARM) == 0


async def test_failing_audit_is_counted_and_disturbs_no_request(
    start_gateway: GatewayFactory,
) -> None:
    gateway, verifier = await audited(start_gateway)
    verifier.is_broken = True
    assert (await gateway.chat()).status_code == 200
    await gateway.metric_becomes('semspec_gateway_audit_skipped_segments_total{reason="failed"}', 1)
    verifier.is_broken = False
    await gateway.metric_becomes(SUPPORTED, NUM_ACCEPTED - 1)
