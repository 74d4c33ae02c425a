"""Two releases of a pair, of the same models or of others: who gets which, and that an answer stays with its own."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from semspec.errors import Unavailable
from semspec.release import Release, ReleasedModel
from tests.gateway.fakes import Fakes, FakeVerifier
from tests.gateway.support import (
    Gateway,
    assert_error,
    chunks,
    eventually,
    make_settings,
    running_gateway,
    text,
    until,
)
from tests.gateway.test_audit import Clustering

OTHER = "127.0.0.1:1"
"""Address of the second release's own services."""
Start = Callable[..., Awaitable[Gateway]]


def release(fakes: Fakes, version: str, **rule: Any) -> Release:
    infos = fakes.drafter.model_info, fakes.target.model_info
    draft, target = (ReleasedModel(info.model, info.fingerprint, info.tokenizer) for info in infos)
    return Release(
        "semspec-demo", version, draft, target, rule, f"draft-{version}", f"target-{version}"
    )


def listed(path: Path, *entries: dict[str, Any]) -> Path:
    """Write a list of releases."""
    path.write_text(json.dumps(entries))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of two releases and their list. The second judges by another rule."""
    for version, threshold in (("1", 0.5), ("2", 2.0)):
        (tmp_path / version).mkdir()
        acceptance = {"rule": "threshold", "threshold": threshold}
        release(Fakes.make(), version, strategy="semantic", gamma=1, acceptance=acceptance).save(
            tmp_path / version
        )
    listed(tmp_path / "list.json", {"pair": "1", "weight": 3}, {"pair": "2", "verifier": OTHER})
    return tmp_path


def verifier(version: str) -> FakeVerifier:
    own = FakeVerifier()
    own.verifier_info = replace(
        own.verifier_info, draft_probe=f"draft-{version}", target_probe=f"target-{version}"
    )
    return own


@pytest.fixture
async def start(
    folder: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Start]:
    """Start gateways over the list; the second release's verifier has probes of version `other`, or are its services
    `other`."""
    monkeypatch.setattr("semspec.gateway.readiness.HANDSHAKE_INTERVAL_S", 0.01)
    async with AsyncExitStack() as stack:

        async def start(
            other: str | Fakes = "2", own: Fakes | None = None, **options: Any
        ) -> Gateway:
            own = own or Fakes.make(verifier=verifier("1"))
            theirs = other if isinstance(other, Fakes) else Fakes.make(verifier=verifier(other))
            settings = make_settings(redis_url=redis_url, pair=folder / "list.json", **options)
            clients = {
                (name, OTHER): getattr(theirs, name) for name in ("drafter", "target", "verifier")
            }
            return await stack.enter_async_context(
                running_gateway(settings, own, True, lambda name, address: clients[name, address])
            )

        yield start


async def versions(gateway: Gateway) -> list[str]:
    names = [model["id"] for model in (await gateway.http.get("/v1/models")).json()["data"]]
    return [name.partition("@")[2] for name in names if "@" in name]


async def release_of(gateway: Gateway, **fields: Any) -> str:
    answer = (await gateway.chat(max_tokens=8, **fields)).json()
    return str((await gateway.stored(answer["id"]))["models"]["release"])


async def test_new_answers_go_by_weight_and_a_version_picks_one(start: Start, folder: Path) -> None:
    gateway = await start()
    assert await versions(gateway) == ["1", "2"]
    found = Counter([await release_of(gateway) for _ in range(64)])
    assert 32 < found["semspec-demo@1"] < 62 and found.total() == 64, found
    for version, threshold in (("1", 0.5), ("2", 2.0)):
        answer = await gateway.chat(model=f"semspec-demo@{version}:semantic")
        stored = await gateway.stored(answer.json()["id"])
        assert stored["models"]["release"] == f"semspec-demo@{version}"
        assert stored["parameters"]["acceptance"]["threshold"] == threshold
    told = {
        (await gateway.chat(model=f"semspec-demo@{one}")).json()["system_fingerprint"]
        for one in ("1", "2")
    }
    assert len(told) == 2
    assert_error(await gateway.chat(model="semspec-demo@3"), 404, param="model")

    async def eight() -> set[str]:  # one alone may be by chance
        return {await release_of(gateway) for _ in range(8)}

    listed(folder / "list.json", {"pair": "1", "weight": 0}, {"pair": "2", "verifier": OTHER})
    await until(eight, lambda found: found == {"semspec-demo@2"})
    listed(
        folder / "list.json",
        {"pair": "1", "weight": 1},
        {"pair": "2", "verifier": OTHER, "weight": 0},
    )
    await until(eight, lambda found: found == {"semspec-demo@1"})
    (folder / "list.json").write_text("[]")
    assert await release_of(gateway) == "semspec-demo@1", "what cannot be used changes nothing"


async def test_each_release_is_audited_by_itself(start: Start, folder: Path) -> None:
    release(
        Fakes.make(), "2", strategy="semantic", acceptance={"rule": "threshold", "threshold": 0.5}
    ).save(folder / "2")
    judges = [Clustering(), Clustering()]
    judges[1].disagrees, both = True, [Fakes.make(verifier=judge) for judge in judges]
    for number, fakes in enumerate(both, 1):
        fakes.told(verifier={"draft_probe": f"draft-{number}", "target_probe": f"target-{number}"})
    gateway = await start(both[1], both[0], audit={"share": 1.0, "samples": 3, "strictness": 1.0})
    for version in ("1", "2"):
        for seed in range(8):
            await gateway.chat(model=f"semspec-demo@{version}", seed=seed)
    metric = 'semspec_gateway_audit_{}{{release="semspec-demo@{}"}}'.format
    await gateway.metric_becomes(metric("alarm", 2), 1)
    assert [await gateway.metric(metric(name, 1)) for name in ("alarm", "support")] == [0, 1]
    assert await gateway.metric(metric("support", 2)) == 0
    stored = [
        await gateway.stored((await gateway.chat(model=f"semspec-demo@{v}")).json()["id"])
        for v in ("1", "2")
    ]
    assert [one["parameters"]["strictness"] for one in stored] == [None, 1.0]
    listed(folder / "list.json", {"pair": "1"})
    await until(
        lambda: gateway.http.get("/metrics"), lambda told: metric("alarm", 2) not in told.text
    )


async def test_resumed_answer_stays_on_its_release(start: Start) -> None:
    first, second = await start(), await start()
    fields: dict[str, Any] = {"model": "semspec-demo@2"}
    undisturbed, other = (
        await first.chat(stream=True, **fields),
        await first.chat(stream=True, model="semspec-demo@1"),
    )
    seen = await first.hang_up_after(2, **fields)
    rest = chunks(await second.events(seen[0]["id"], after="0", trace=True))
    assert text(await second.events(seen[0]["id"])) == text(undisturbed) != text(other)
    assert rest[-1]["semspec"]["fallback"] is None
    assert (await second.stored(seen[0]["id"]))["models"]["release"] == "semspec-demo@2"


async def test_release_of_other_models_has_services_of_its_own(start: Start, folder: Path) -> None:
    theirs = Fakes.make(verifier=verifier("2"))
    for model in (theirs.drafter, theirs.target):
        model.model_info = replace(
            model.model_info, fingerprint=f"another-{model.model_info.fingerprint}", datastore=""
        )
    draft, target = (model.model_info.fingerprint for model in (theirs.drafter, theirs.target))
    theirs.verifier.verifier_info = replace(
        theirs.verifier.verifier_info, draft_model=draft, target_model=target
    )
    release(theirs, "2", strategy="draft").save(folder / "2")
    services = dict.fromkeys(("draft", "target", "verifier"), OTHER)
    listed(folder / "list.json", {"pair": "1", "weight": 1}, {"pair": "2", "weight": 1, **services})
    gateway = await start(theirs, ours := Fakes.make(verifier=verifier("1")))
    strategies = [
        (await gateway.http.get(f"/v1/models/semspec-demo@{one}")).json()["strategy"]
        for one in "12"
    ]
    assert strategies == ["semantic", "draft"]
    assert {await release_of(gateway) for _ in range(16)} == {"semspec-demo@1", "semspec-demo@2"}
    num_asked = len(theirs.drafter.asked), len(theirs.target.prompts)
    await release_of(gateway, model="semspec-demo@1")
    assert num_asked == (len(theirs.drafter.asked), len(theirs.target.prompts))
    await release_of(gateway, model="semspec-demo@2")
    await gateway.http.post("/tokenize", json={"model": "semspec-demo@2", "prompt": "Only theirs."})
    assert len(theirs.drafter.asked) > num_asked[0] and theirs.target.prompts[-1] == "Only theirs."
    theirs.target.lost = Unavailable("gone")
    await until(lambda: versions(gateway), lambda found: found == ["1"])
    assert {await release_of(gateway) for _ in range(8)} == {"semspec-demo@1"}
    theirs.target.lost = None
    await until(lambda: versions(gateway), lambda found: found == ["1", "2"])
    ours.target.lost = Unavailable("gone")
    await eventually(lambda: gateway.app.state.readiness.status.error is not None)
    assert (await gateway.http.get("/ready")).status_code == 200
    assert {await release_of(gateway) for _ in range(8)} == {"semspec-demo@2"}
    assert_error(await gateway.chat(model="semspec-demo@1"), 503)


async def test_release_whose_verifier_has_other_probes_gets_no_answer(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(other="1")
    assert await versions(gateway) == ["1"]
    assert {await release_of(gateway) for _ in range(16)} == {"semspec-demo@1"}
    [line] = {
        record.message
        for record in caplog.records
        if record.message.startswith("the release semspec-demo@2")
    }
    assert "SEMSPEC_VERIFIER_PAIR" in line


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"pair": "1"}, {"pair": "2"}], "two releases have one verifier"),
        ([{"pair": "1"}, {"pair": "1", "verifier": OTHER}], "each version once"),
        ([{"pair": "1", "weight": 0}], "all weights are 0"),
        ([{"pair": "1", "weights": 1}], "weights"),
        ([{"pair": "3"}], "cannot read release .*semspec train export"),
    ],
)
def test_list_that_cannot_be_served_is_refused(
    folder: Path, entries: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        make_settings(pair=listed(folder / "other.json", *entries))
