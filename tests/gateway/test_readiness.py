"""The handshake, before readiness and after a loss; what a pair supports, and what the gateway says of the rest."""

import json
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from semspec.decoding import Strategy
from semspec.decoding.backends import WithoutProbes
from semspec.decoding.likelihood.calibration import as_json
from semspec.errors import Mismatch, Unavailable
from semspec.release import Release, ReleasedModel
from semspec.types import ModelInfo, ProbeProjections, Segmentation, Writer
from semspec_gateway.options import Defaults
from semspec_gateway.readiness import describe
from semspec_gateway.served import Served, mismatch
from semspec_gateway.settings import AuditOptions
from tests.helpers.calibrations import calibration
from tests.helpers.gateway import (
    Gateway,
    GatewayFactory,
    assert_error,
    eventually,
    make_readiness,
    make_settings,
    text,
)
from tests.helpers.gateway_fakes import Fakes, FakeVerifier
from tests.helpers.variants import VARIANTS


def served(fakes: Fakes) -> Served:
    return Served(
        fakes.drafter.model_info,
        fakes.target.model_info,
        fakes.verifier.verifier_info,
        fakes.backends,
    )


def mismatch_with(served: Served, **defaults: Any) -> Mismatch | None:
    """Return the mismatch of a pair whose operator has set these defaults."""
    return mismatch(replace(served, defaults=Defaults(**defaults)), AuditOptions())


def uncalibrated(served: Served) -> Served:
    return replace(served, backends=replace(served.backends, likelihood=None))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda s: replace(s, draft=replace(s.draft, fingerprint="x")),
            ["draft probe", "the draft service serves x"],
        ),
        (
            lambda s: replace(s, target=replace(s.target, fingerprint="x")),
            ["target probe", "start the verifier"],
        ),
        (
            lambda s: replace(s, draft=replace(s.draft, state_convention="states-v0")),
            ["draft", "states-v0", "upgrade"],
        ),
        (
            lambda s: replace(s, verifier=replace(s.verifier, target_tokenizer="another")),
            ["target", "tokenizer", "another", "bytes", "tokenizer files back"],
        ),
        (
            lambda s: replace(s, target=replace(s.target, max_context_tokens=9)),
            ["target service", "context window of 9", "at least 128"],
        ),
        (
            lambda s: replace(s, verifier=replace(s.verifier, segmentations=())),
            ["segmentation", "probes"],
        ),
        (
            lambda s: replace(s, draft=replace(s.draft, datastore_model="of-another")),
            ["of-another", "fake-target", "SEMSPEC_DRAFT_DATASTORE"],
        ),
    ],
)
def test_mismatch_is_one_line_that_says_what_to_do(
    change: Callable[[Served], Served], words: list[str]
) -> None:
    reason = mismatch_with(change(served(Fakes.make())))
    assert reason is not None and reason.remedy and "\n" not in str(reason)
    assert all(word in str(reason) for word in words), reason


async def test_mismatched_gateway_serves_nothing_until_it_is_mended(
    start_gateway: GatewayFactory,
) -> None:
    fakes = Fakes.make()
    fitting = fakes.drafter.model_info
    gateway = await start_gateway(fakes.told(drafter={"fingerprint": "another"}), ready=False)
    status = gateway.app.state.readiness
    await eventually(lambda: isinstance(status.status.error, Mismatch))
    for response in (await gateway.http.get("/ready"), await gateway.chat()):
        message = assert_error(response, 503, code="configuration_mismatch")["message"]
        assert "serves another" in message
        assert not any(word in message for word in ("SEMSPEC", "127.0.0.1"))
    fakes.drafter.model_info = fitting
    await eventually(lambda: describe(status.status) == "ready")
    await gateway.answer()


@pytest.mark.parametrize("role", ["drafter", "target", "verifier"])
async def test_all_services_are_needed_to_begin_with(
    role: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fakes = Fakes.make()
    getattr(fakes, role).lost = Unavailable("connection refused")
    readiness = make_readiness(fakes)
    await readiness.check()
    with pytest.raises(Unavailable, match=r"no handshake with the \w+ service: connection refused"):
        readiness.require()
    assert "fix one of SEMSPEC_GATEWAY_DRAFT_ADDRESS=127.0.0.1:" in caplog.text
    getattr(fakes, role).lost = None
    await readiness.check()
    assert readiness.require() == served(fakes)


@pytest.mark.parametrize("role", ["drafter", "verifier"])
async def test_new_gateway_serves_without_a_helper_that_an_older_one_has_met(
    start_gateway: GatewayFactory, role: str
) -> None:
    fakes = Fakes.make().with_other_target(f"target-{role}")
    await start_gateway(fakes)
    getattr(fakes, role).lost = Unavailable("gone")
    young = await start_gateway(fakes)
    assert "target alone" in (await young.http.get("/ready")).json()["detail"]
    answer = await young.chat()
    assert answer.status_code == 200 and answer.json()["semspec"]["fallback"] is not None


async def test_what_was_told_of_another_target_is_not_taken_for_this_one(
    start_gateway: GatewayFactory,
) -> None:
    await start_gateway()
    fakes = Fakes.make().told(target={"fingerprint": "never-met"})
    fakes.drafter.lost = Unavailable("gone")
    young = await start_gateway(fakes, ready=False)
    status = young.app.state.readiness
    await eventually(lambda: status.status.error is not None)
    assert (await young.http.get("/ready")).status_code == 503


async def test_loss_of_the_target_ends_readiness_and_its_return_restores_it(
    start_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semspec_gateway.readiness.HANDSHAKE_INTERVAL_S", 1000)
    gateway = await start_gateway()
    gateway.fakes.target.lost = Unavailable("gone")
    assert (await gateway.chat()).status_code == 503
    status = gateway.app.state.readiness
    await eventually(lambda: status.status.error is not None)
    assert (await gateway.http.get("/ready")).status_code == 503
    gateway.fakes.target.lost = None
    await eventually(lambda: status.status.error is None)
    assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize("role", ["drafter", "verifier"])
async def test_who_has_seen_a_fallback_is_not_told_that_all_is_well(
    start_gateway: GatewayFactory, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semspec_gateway.readiness.HANDSHAKE_INTERVAL_S", 1000)
    monkeypatch.setattr("semspec_gateway.readiness.RECHECK_S", 1000)
    gateway = await start_gateway()
    getattr(gateway.fakes, role).lost = Unavailable("gone")
    fallback = (await gateway.chat()).json()["semspec"]["fallback"]
    ready = await gateway.http.get("/ready")
    assert (ready.status_code, ready.json()["detail"]) == (
        200,
        f"ready, with the target alone: {fallback}",
    )


async def test_handshake_from_before_a_fallback_does_not_end_the_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes = Fakes.make()
    readiness = make_readiness(fakes)
    await readiness.check()
    answer = fakes.target.info

    async def late() -> ModelInfo:
        readiness.suspect("the draft does not answer")  # after its own answer
        return await answer()

    monkeypatch.setattr(fakes.target, "info", late)
    await readiness.check()
    assert str(readiness.status.missing) == "the draft does not answer"
    monkeypatch.setattr(fakes.target, "info", answer)
    await readiness.check()
    assert readiness.status.missing is None


async def test_helper_that_comes_back_with_another_model_is_refused() -> None:
    fakes = Fakes.make()
    readiness = make_readiness(fakes)
    await readiness.check()
    fakes.drafter.lost = Unavailable("gone")
    await readiness.check()
    fakes.drafter.lost = None
    fakes.told(drafter={"fingerprint": "another"})
    await readiness.check()
    with pytest.raises(Mismatch):
        readiness.require()


OBSTACLES: dict[str, tuple[Callable[[Served], Served], list[str]]] = {
    "token-level": (lambda s: replace(s, draft=replace(s.draft, tokenizer="x")), ["draft has x", "one vocabulary"]),
    "semantic+token-level": (lambda s: replace(s, target=replace(s.target, tokenizer="x")), ["target x", "'semantic'"]),
    "retrieval": (lambda s: replace(s, draft=replace(s.draft, datastore="")), ["semspec train datastore"]),
    "semantic+retrieval": (lambda s: replace(s, draft=replace(s.draft, datastore="")), ["train datastore"]),
    "last-hidden": (
        lambda s: replace(s, verifier=replace(s.verifier, alternatives=("surprisal",))), ["the verifier's alternatives"]
    ),
    "surprisal": (
        lambda s: replace(s, verifier=replace(s.verifier, alternatives=())), ["the verifier's alternatives"]
    ),
    "likelihood": (uncalibrated, ["semspec train calibrate"]),
}  # fmt: skip
"""Per strategy: a pair that cannot do it, and words of the reason."""


async def test_special_tokens_may_differ_for_strategies_that_propose_tokens() -> None:
    fakes = Fakes.make()
    draft, target = (
        replace(one.model_info, tokenizer=f"ordinary.{one.writer}")
        for one in (fakes.drafter, fakes.target)
    )
    served = Served(draft, target, fakes.verifier.verifier_info, fakes.backends)
    for name in ("token-level", "semantic+token-level"):
        assert served.unsupported_reason(strategy(served, name)) is None
    other = replace(served, draft=replace(draft, tokenizer=f"other.{Writer.TARGET}"))
    assert "special tokens may differ" in str(
        other.unsupported_reason(strategy(other, "token-level"))
    )


def strategy(served: Served, name: str) -> Strategy:
    variant = dict(VARIANTS[name])
    own = variant.pop("strategy")
    return served.strategies[own](replace(make_settings().defaults.options(own), **variant))


def change(fakes: Fakes, changed: Served) -> Fakes:
    fakes.drafter.model_info, fakes.target.model_info = changed.draft, changed.target
    fakes.verifier.verifier_info = changed.verifier
    return replace(fakes, is_calibrated=changed.likelihood is not None)


@pytest.mark.parametrize("strategy", OBSTACLES)
async def test_strategy_the_pair_cannot_do_is_refused_with_the_reason(
    start_gateway: GatewayFactory, strategy: str
) -> None:
    spoil, words = OBSTACLES[strategy]
    fakes, variant = Fakes.make(), VARIANTS[strategy]
    gateway = await start_gateway(change(fakes, spoil(served(fakes))))
    option = next((name for name in ("rewrite", "probes") if name in variant), "strategy")
    for stream in (False, True):
        own = f"semspec.{option}"
        await gateway.refuse(own, variant[option], *words, semspec=variant, stream=stream)
        if option == "strategy":
            await gateway.refuse("model", model=f"semspec-demo:{strategy}", stream=stream)
    names = {model["id"] for model in (await gateway.http.get("/v1/models")).json()["data"]}
    assert f"semspec-demo:{strategy}" not in names
    assert names >= {"semspec-demo", "semspec-demo:semantic"}
    assert (await gateway.http.get(f"/v1/models/semspec-demo:{strategy}")).status_code == 404
    await gateway.answer()


@pytest.mark.parametrize("strategy", OBSTACLES)
def test_default_strategy_the_pair_cannot_do_is_a_mismatch(strategy: str) -> None:
    spoiled = uncalibrated(OBSTACLES[strategy][0](served(Fakes.make())))
    assert mismatch_with(spoiled) is None
    reason = mismatch_with(spoiled, **VARIANTS[strategy])
    assert reason is not None and "SEMSPEC_GATEWAY_DEFAULTS" in reason.operator_hint
    assert all(name in str(reason) for name in list(VARIANTS[strategy].values())[-1:])


def test_default_segmentation_that_the_probes_do_not_know_is_a_mismatch() -> None:
    """No client asked for it, so no client is told."""
    whole = served(Fakes.make())
    sentences = replace(whole.verifier, segmentations=(Segmentation.SENTENCE,))
    of_sentences = replace(whole, verifier=sentences)
    reason = mismatch_with(of_sentences)
    assert reason is not None and reason.operator_hint == "SEMSPEC_GATEWAY_DEFAULTS"
    assert "is paragraph" in reason.message and "sentence" in reason.message
    assert mismatch_with(of_sentences, segmentation="sentence") is None
    assert mismatch_with(of_sentences, strategy="target") is None


@pytest.mark.parametrize(
    "strategy", ["semantic", "semantic+token-level", "last-hidden", "surprisal"]
)
async def test_segmentation_the_probes_do_not_know_is_refused(
    start_gateway: GatewayFactory, strategy: str
) -> None:
    paragraphs = {"segmentations": (Segmentation.PARAGRAPH,)}
    gateway = await start_gateway(Fakes.make().told(verifier=paragraphs))
    sentences = {"segmentation": "sentence"}
    await gateway.refuse("semspec.segmentation", semspec={**sentences, **VARIANTS[strategy]})
    await gateway.answer(model="semspec-demo:target", semspec=sentences)


async def test_services_that_send_whole_states_are_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    named = (ProbeProjections("", "a", "b"), ProbeProjections("surprisal", "a", ""))
    told = Fakes.make().told(
        verifier={"projections": named}, drafter={"projections": ("a", "another")}
    )
    readiness = make_readiness(told)
    for _ in range(2):
        await readiness.check()
    assert readiness.require().sends_whole_states == ("target",), "it costs bytes, and nothing else"
    assert caplog.text.count("SEMSPEC_TARGET_PAIR") == 1 and "SEMSPEC_DRAFT_PAIR" not in caplog.text


@pytest.fixture
async def bare(start_gateway: GatewayFactory) -> Gateway:
    """A gateway of a pair without probes."""
    backends = replace(Fakes.make().backends, verifier=WithoutProbes())
    return await start_gateway(backends, verifier_address="none")


async def test_pair_without_probes_is_ready_and_answers_by_likelihood(bare: Gateway) -> None:
    assert (await bare.http.get("/ready")).json() == {"status": "ready", "detail": "ready"}
    services = (await bare.http.get("/v1/services")).json()["services"]
    [verifier] = [service for service in services if service["name"] == "verifier"]
    assert verifier["status"] == "ok" and "without probes" in verifier["detail"]
    answer = await bare.answer(semspec={"trace": True})
    own, trace = answer["semspec"], answer["semspec"]["trace"]
    assert (own["strategy"], own["fallback"]) == ("likelihood", None)
    assert {record["verdict"] for record in trace} == {"accepted", "rewritten"}
    assert {record["draft_probability"] for record in trace} == {1.0}
    models = (await bare.stored(answer["id"]))["models"]
    assert models["draft_probe"] == "" != models["likelihood"]


async def test_segmentation_of_another_pilot_is_refused(bare: Gateway) -> None:
    refused = await bare.chat(semspec={"segmentation": "sentence"})
    assert_error(refused, 400, param="semspec.segmentation")


async def test_every_refusal_names_what_each_other_strategy_lacks(
    start_gateway: GatewayFactory,
) -> None:
    """Two models that share no vocabulary, and nothing else: the user asks for one strategy after another."""
    fakes = Fakes.make().told(drafter={"tokenizer": "another", "datastore": ""})
    backends = replace(fakes.backends, verifier=WithoutProbes(), likelihood=None)
    gateway = await start_gateway(backends, verifier_address="none")
    lacks = {
        "semantic": "no probes",
        "likelihood": "no calibration",
        "token-level": "no common vocabulary",
        "retrieval": "no datastore",
    }
    listed = (await gateway.http.get("/v1/models")).json()
    assert listed["unsupported"] == lacks
    names = {model["id"] for model in listed["data"]}
    assert names == {"semspec-demo", "semspec-demo:target", "semspec-demo:draft"}
    told = ", ".join(f"{name!r} ({lack})" for name, lack in lacks.items())
    supported = f"this pair supports 'target', 'draft', but not {told}"
    for strategy, lack in lacks.items():
        await gateway.refuse("semspec.strategy", supported, semspec={"strategy": strategy})
        missing = await gateway.http.get(f"/v1/models/semspec-demo:{strategy}")
        assert missing.status_code == 404 and f"({lack})" in missing.json()["error"]["message"]


async def test_request_that_names_no_strategy_gets_the_first_that_the_pair_supports() -> None:
    fakes = Fakes.make()
    draft, target = fakes.drafter.model_info, fakes.target.model_info
    whole = Served(draft, target, fakes.verifier.verifier_info, fakes.backends)
    no_probes = replace(whole, verifier=await WithoutProbes().info())
    alone = replace(no_probes, backends=replace(fakes.backends, likelihood=None))
    found = {
        "semantic": whole,
        "likelihood": no_probes,
        "token-level": alone,
        "target": replace(alone, draft=replace(draft, tokenizer="another", datastore="")),
        "retrieval": replace(alone, draft=replace(draft, fingerprint="", datastore="answers")),
    }
    assert {name: served.default_name for name, served in found.items()} == {
        name: name for name in found
    }
    assert replace(alone, defaults=Defaults(strategy="draft")).default_name == "draft"


def test_calibration_that_cannot_be_read_is_refused_before_the_start(tmp_path: Path) -> None:
    fakes, path = Fakes.make(), tmp_path / "likelihood.json"
    own = calibration(fakes.drafter.model_info, fakes.target.model_info)
    path.write_text(json.dumps(as_json(own)))
    draft, target = (
        ReleasedModel("model", one.fingerprint, one.tokenizer) for one in (own.draft, own.target)
    )
    Release("pair", "1", draft, target, {}, likelihood=own.digest).save(tmp_path)
    for place in (tmp_path, Path(os.path.relpath(tmp_path))):
        assert make_settings(pair=place).name == "pair"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(ValidationError, match=r"cannot read likelihood calibration .*\.json"):
        make_settings(pair=tmp_path)


def test_only_the_verifier_may_be_missing() -> None:
    assert make_settings(verifier_address="none").verifier_address == "none"
    with pytest.raises(ValidationError, match="draft_address"):
        make_settings(draft_address="none")


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
    fingerprints = set()
    for version, threshold in THRESHOLDS.items():
        gateway, name = await start(version), f"semspec-demo@{version}"
        models = (await gateway.http.get("/v1/models")).json()["data"]
        assert [one["id"] for one in models if "@" in one["id"]] == [name]
        for model in ("semspec-demo", name, f"{name}:semantic"):
            answer = await gateway.answer(model=model)
            fingerprints.add(answer["system_fingerprint"])
            stored = await gateway.stored(answer["id"])
            assert stored["models"]["release"] == name
            assert stored["parameters"]["acceptance"]["threshold"] == threshold
        for unknown in ("semspec-demo@3", "semspec-demo@"):
            assert_error(await gateway.chat(model=unknown), 404, param="model")
    assert len(fingerprints) == len(THRESHOLDS)


async def test_answer_is_resumed_by_gateways_of_its_release_only(start: Start) -> None:
    first, second, other = await start("1"), await start("1"), await start("2")
    undisturbed = await first.chat(stream=True)
    seen = await first.hang_up_after(2)
    id = seen[0]["id"]
    refused = await other.http.get(f"/v1/generations/{id}/events")
    assert "models or probes have changed" in assert_error(refused, 409, param="id")["message"]
    assert text(await second.events(id)) == text(undisturbed)
