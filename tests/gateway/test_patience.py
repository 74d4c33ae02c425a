"""A target that is lost while a generation runs: the gateway waits for it, and goes on from the last segment."""

import asyncio
from typing import Any

import pytest

from semspec.errors import InternalError, Overloaded, SemspecError, Unavailable
from semspec.types import Writer
from tests.helpers.gateway import GENEROUS_S, GatewayFactory, chunks, text, until
from tests.helpers.gateway_fakes import FakeModel, Fakes
from tests.helpers.variants import OF_PRODUCT, VARIANTS

pytestmark = pytest.mark.slow
BY_TARGET = [s for s in OF_PRODUCT if s not in ("token-level", "retrieval", "draft")]
"""The others go on with other words (ADR 3), or hardly need the target."""
OUTAGE = 5
"""Calls in a row that nobody answers."""


class Forgetful(FakeModel):
    """Answers so many calls once a generation has begun, then none for a while, then all."""

    def __init__(self, num_answers: int, error: type[SemspecError] = Unavailable) -> None:
        super().__init__(Writer.TARGET)
        self._error = error
        self._num_answers = num_answers
        self._num_calls = 0

    async def _work(self) -> None:
        await super()._work()
        if self.prompts:
            self._num_calls += 1
            if 0 <= self._num_calls - self._num_answers < OUTAGE:
                raise self._error("not now")


@pytest.mark.parametrize("strategy", BY_TARGET)
@pytest.mark.parametrize("num_answers", [1, 2, 3])
async def test_generation_goes_on_as_if_nothing_had_happened(
    start_gateway: GatewayFactory, strategy: str, num_answers: int
) -> None:
    fields = {"semspec": VARIANTS[strategy], "max_tokens": 120, "stream": True}
    undisturbed = await (await start_gateway()).chat(**fields)
    fakes = Fakes.make(Forgetful(num_answers))
    gateway = await start_gateway(fakes, target_patience_s=60)
    disturbed = await gateway.chat(**fields)
    assert text(disturbed) == text(undisturbed)
    assert disturbed.text.endswith("data: [DONE]\n\n")
    stored = await gateway.stored(chunks(disturbed)[0]["id"], "/trace")
    assert stored["status"] == "finished" and not stored["degraded"]
    assert [record["index"] for record in stored["segments"]] == list(
        range(len(stored["segments"]))
    )
    assert "".join(record["text"] for record in stored["segments"]) == text(undisturbed)
    assert await gateway.metric("semspec_gateway_resumptions_total") >= 1


class Confused(Forgetful):
    """The call that fails, and every handshake before it is back, are told by unlike errors."""

    async def _work(self) -> None:
        try:
            await super()._work()
        except Unavailable:
            first = self._num_calls == self._num_answers
            raise Unavailable("not now") if first else InternalError("malformed answer") from None


@pytest.mark.parametrize(
    "target",
    [Forgetful(2, Overloaded), Confused(2)],
    ids=["overloaded", "a handshake that makes no sense"],
)
async def test_target_lost_in_another_way_is_waited_for_as_well(
    start_gateway: GatewayFactory, target: FakeModel
) -> None:
    disturbed = await (await start_gateway(Fakes.make(target), target_patience_s=60)).chat(
        stream=True
    )
    undisturbed = await (await start_gateway()).chat(
        stream=True
    )  # a handshake of the first may have failed
    assert text(disturbed) == text(undisturbed) != ""


async def test_whole_answer_does_not_wait_for_the_next_handshake(
    start_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semspec_gateway.readiness.RECHECK_S", 1000)
    gateway = await start_gateway(Fakes.make(Forgetful(2)), target_patience_s=60)
    readiness = gateway.app.state.readiness
    answer = await asyncio.wait_for(gateway.chat(), GENEROUS_S)
    assert answer.status_code == 200
    gateway.fakes.target.lost = Unavailable("gone")
    await readiness.check()
    assert readiness.status.error is not None
    assert (await gateway.events(answer.json()["id"])).status_code == 200, "all of it is stored"


async def test_patience_follows_the_time_that_the_target_took_to_load(
    start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    for load_s, patience_s in ((10.0, 300), (400.0, 800)):
        fakes = Fakes.make(Forgetful(2)).told(target={"load_s": load_s})
        gateway = await start_gateway(fakes, target_patience_s=None)
        assert (await gateway.chat()).status_code == 200
        assert f"waiting up to {patience_s} s for the target" in caplog.text


async def test_another_model_does_not_go_on(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(target_patience_s=60)
    target = gateway.fakes.target
    async with gateway.held(2, stream=True) as running:
        target.lost_at = 3
        gateway.fakes.told(target={"fingerprint": "another"})
    error = chunks(running.response)[-1]["error"]
    assert error["code"] == "configuration_mismatch" and "another model" in error["message"]


async def test_target_that_fails_without_progress_ends_the_stream_which_can_be_resumed(
    start_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semspec_gateway.generation.target_faults.LONGEST_PAUSE_S", 0.05)
    fields: dict[str, Any] = {"semspec": {"strategy": "target"}, "stream": True}
    undisturbed = await (await start_gateway()).chat(**fields)
    gateway = await start_gateway(target_patience_s=60)
    gateway.fakes.target.lost_at = 3
    events = chunks(await gateway.chat(**fields))
    assert events[-1]["error"]["code"] == "service_unavailable"
    gateway.fakes.target.lost_at = None
    await gateway.app.state.readiness.check()
    assert text(await gateway.events(events[0]["id"])) == text(undisturbed)


async def test_waiting_generation_can_be_cancelled(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(target_patience_s=60, writer_lease_s=1)
    target = gateway.fakes.target
    target.lost_at = 3
    async with gateway.held(2, stream=True) as running:
        target.pause_at = None
        target.resume.set()
        await until(
            lambda: gateway.stored(running.id, "/trace"),
            lambda stored: len(stored["segments"]) >= 3,
        )
        assert (await gateway.http.post(f"/v1/generations/{running.id}/cancel")).status_code == 200
        assert chunks(await running.task)[-1]["error"]["code"] == "cancelled"
