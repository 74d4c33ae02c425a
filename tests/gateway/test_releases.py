"""A gateway serves one release of a pair: requests may name its version, and answers of another are not continued."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from semspec.release import Release, ReleasedModel
from tests.helpers.gateway import (
    Gateway,
    GatewayFactory,
    assert_error,
    make_settings,
    text,
)
from tests.helpers.gateway_fakes import Fakes, FakeVerifier

THRESHOLDS = {"1": 0.5, "2": 2.0}
"""The rule of each release."""
Start = Callable[[str], Awaitable[Gateway]]


@pytest.fixture
def start(start_gateway: GatewayFactory, tmp_path: Path) -> Start:
    """Start gateways of releases, by their versions; the probes of two releases differ."""

    async def start(version: str) -> Gateway:
        verifier = FakeVerifier()
        probes: Any = {"draft_probe": f"draft-{version}", "target_probe": f"target-{version}"}
        verifier.verifier_info = replace(verifier.verifier_info, **probes)
        fakes = Fakes.make(verifier=verifier)
        infos = fakes.drafter.model_info, fakes.target.model_info
        draft, target = (
            ReleasedModel(info.model, info.fingerprint, info.tokenizer) for info in infos
        )
        acceptance = {"rule": "threshold", "threshold": THRESHOLDS[version]}
        rule = {"strategy": "semantic", "gamma": 1, "acceptance": acceptance}
        folder = tmp_path / version
        folder.mkdir(exist_ok=True)
        Release("semspec-demo", version, draft, target, rule, **probes).save(folder)
        return await start_gateway(fakes, pair=folder)

    return start


async def test_request_names_the_version_that_is_served(start: Start) -> None:
    for version, threshold in THRESHOLDS.items():
        gateway, name = await start(version), f"semspec-demo@{version}"
        models = (await gateway.http.get("/v1/models")).json()["data"]
        assert [one["id"] for one in models if "@" in one["id"]] == [name]
        for model in ("semspec-demo", name, f"{name}:semantic"):
            stored = await gateway.stored((await gateway.chat(model=model)).json()["id"])
            assert stored["models"]["release"] == name
            assert stored["parameters"]["acceptance"]["threshold"] == threshold
        for unknown in ("semspec-demo@3", "semspec-demo@"):
            assert_error(await gateway.chat(model=unknown), 404, param="model")


async def test_version_is_unknown_to_a_gateway_without_a_release(gateway: Gateway) -> None:
    for unknown in ("semspec-demo@1", "semspec-demo@"):
        assert_error(await gateway.chat(model=unknown), 404, param="model")


async def test_fingerprint_of_an_answer_depends_on_the_release(start: Start) -> None:
    answers = [await (await start(version)).chat() for version in THRESHOLDS]
    assert len({answer.json()["system_fingerprint"] for answer in answers}) == 2


async def test_answer_is_resumed_by_gateways_of_its_release_only(start: Start) -> None:
    first, second, other = await start("1"), await start("1"), await start("2")
    undisturbed = await first.chat(stream=True)
    seen = await first.hang_up_after(2)
    id = seen[0]["id"]
    refused = await other.http.get(f"/v1/generations/{id}/events")
    assert "models or probes have changed" in assert_error(refused, 409, param="id")["message"]
    assert text(await second.events(id)) == text(undisturbed)


def test_list_of_releases_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "releases.json").write_text('[{"pair": "1"}]')
    with pytest.raises(ValidationError, match="cannot read release"):
        make_settings(pair=path)
