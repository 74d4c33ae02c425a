"""Each background task of a gateway that fails is logged and started again."""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from semspec.clustering.equivalence import Alternatives
from semspec.errors import Unavailable
from semspec.keys import entry
from semspec.types import SegmentEnd, VerifierInfo
from tests.gateway.test_audit import SUPPORTED, Clustering
from tests.helpers.gateway import OURS, THEIRS, GatewayFactory, bearer, eventually, until
from tests.helpers.gateway_fakes import Fakes, FakeVerifier

DEFECT = RuntimeError("a defect")


@pytest.fixture(autouse=True)
def _quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semspec.background.FIRST_DELAY_S", 0.01)


class Defective(FakeVerifier):
    """Fails by a defect as long as `error` is set."""

    error: Exception | None = None

    async def info(self) -> VerifierInfo:
        if self.error:
            raise self.error
        return await super().info()


async def test_watch_of_the_services_goes_on_after_a_defect(
    start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    verifier = Defective()
    gateway = await start_gateway(Fakes.make(verifier=verifier))
    verifier.error = DEFECT
    gateway.app.state.readiness.suspect()
    await eventually(
        lambda: "the watch of the services failed; it starts again in 0.01 s" in caplog.text
    )
    verifier.error = None
    gateway.fakes.target.lost = Unavailable("gone")
    await until(lambda: gateway.http.get("/ready"), lambda response: response.status_code == 503)
    gateway.fakes.target.lost = None
    await until(lambda: gateway.http.get("/ready"), lambda response: response.status_code == 200)


class NoThreads(Executor):
    """An executor of a process that has too many threads."""

    def submit(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")


async def test_watch_of_the_keys_goes_on_after_a_lack_of_threads(
    start_gateway: GatewayFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semspec.keys._CHECK_S", 0.01)
    (file := tmp_path / "keys").write_text(entry("us", OURS))
    gateway = await start_gateway(api_keys="", api_keys_file=file)
    loop: Any = asyncio.get_running_loop()
    with ThreadPoolExecutor() as threads:
        loop._default_executor = NoThreads()  # `set_default_executor` takes thread pools only
        await eventually(lambda: "the watch of the keys failed; it starts again in" in caplog.text)
        loop.set_default_executor(threads)
        file.write_text(entry("them", THEIRS))
        await until(
            lambda: gateway.http.get("/v1/models", headers=bearer(THEIRS)),
            lambda response: response.status_code == 200,
        )


class DefectiveClustering(Clustering):
    """Fails once by a defect."""

    has_failed = False

    async def cluster(self, group: Alternatives, ends: Sequence[SegmentEnd]) -> list[int | None]:
        if not self.has_failed:
            self.has_failed = True
            raise DEFECT
        return await super().cluster(group, ends)


async def test_audit_goes_on_after_a_defect(
    start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    verifier = DefectiveClustering()
    gateway = await start_gateway(Fakes.make(verifier=verifier), audit={"share": 1.0, "samples": 3})
    await gateway.chat()
    await eventually(lambda: "the audit failed; it starts again in 0.01 s" in caplog.text)
    await until(lambda: gateway.metric(SUPPORTED), lambda number: number > 0)


@pytest.mark.parametrize(
    ("operation", "name"), [("hold", "of generation "), ("renew", "of session ")]
)
async def test_heartbeat_goes_on_after_a_defect(
    start_gateway: GatewayFactory,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    session: str,
    operation: str,
    name: str,
) -> None:
    monkeypatch.setattr("semspec_gateway.store.leases.SESSION_LEASE_S", 0.1)
    gateway = await start_gateway(writer_lease_s=1)
    store, renewed = gateway.app.state.store, list[str]()
    original = getattr(store, operation)

    async def defective(key: str, *arguments: Any) -> None:
        renewed.append(key)
        if len(renewed) == 1:
            raise DEFECT
        await original(key, *arguments)

    monkeypatch.setattr(store, operation, defective)
    async with gateway.held(2, stream=True, semspec={"session": session}) as running:
        await eventually(lambda: len(renewed) > 2)
    assert f"the heartbeat {name}" in caplog.text
    assert "failed; it starts again in 0.01 s" in caplog.text
    stored = await gateway.stored(
        json.loads(running.response.text.partition("data: ")[2].partition("\n")[0])["id"]
    )
    assert stored["status"] == "finished" and not stored["degraded"]
