"""A pair without probes and without a verifier, served with `likelihood`."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from semspec.decoding.backends import WithoutProbes
from semspec.decoding.likelihood.calibration import as_json
from semspec.release import Release, ReleasedModel
from semspec.types import Segmentation
from semspec_gateway.options import Defaults
from semspec_gateway.served import Served, mismatch
from semspec_gateway.settings import AuditOptions
from tests.helpers.calibrations import CURVE, calibration
from tests.helpers.gateway import Gateway, GatewayFactory, assert_error, make_settings
from tests.helpers.gateway_fakes import Fakes

WITHOUT_PROBES = {"likelihood", "token-level", "retrieval", "target", "draft"}


@pytest.fixture
async def bare(start_gateway: GatewayFactory) -> Gateway:
    """A gateway of a pair without probes."""
    backends = replace(Fakes.make().backends, verifier=WithoutProbes())
    return await start_gateway(backends, verifier_address="none")


async def test_pair_without_probes_is_ready_and_answers_by_likelihood(bare: Gateway) -> None:
    assert (await bare.http.get("/ready")).json() == {"status": "ready", "detail": "ready"}
    services = {
        one["name"]: one for one in (await bare.http.get("/v1/services")).json()["services"]
    }
    assert (
        services["verifier"]["status"] == "ok"
        and "without probes" in services["verifier"]["detail"]
    )
    answer = (await bare.chat(semspec={"trace": True})).json()
    assert answer["semspec"]["strategy"] == "likelihood" and answer["semspec"]["fallback"] is None
    trace = answer["semspec"]["trace"]
    assert {record["verdict"] for record in trace} == {"accepted", "rewritten"}
    assert {record["draft_probability"] for record in trace} == {1.0}
    again = (await bare.chat(semspec={"trace": True})).json()
    assert [record["text"] for record in again["semspec"]["trace"]] == [
        record["text"] for record in trace
    ]


async def test_only_strategies_without_probes_are_offered(bare: Gateway) -> None:
    names = {model["id"] for model in (await bare.http.get("/v1/models")).json()["data"]}
    assert names == {"semspec-demo", *(f"semspec-demo:{strategy}" for strategy in WITHOUT_PROBES)}
    error = assert_error(
        await bare.chat(semspec={"strategy": "semantic"}), 400, param="semspec.strategy"
    )
    assert "needs probes, but the pair is served without; train some" in error["message"]
    assert "; this pair supports 'likelihood', 'token-level', " in error["message"]
    assert error["message"].endswith(", but not 'semantic' (no probes)")


async def test_every_refusal_names_what_each_other_strategy_lacks(
    start_gateway: GatewayFactory,
) -> None:
    """Two models that share no vocabulary, and nothing else: the user asks for one strategy after another."""
    fakes = replace(
        Fakes.make().told(drafter={"tokenizer": "another", "datastore": ""}), is_calibrated=False
    )
    gateway = await start_gateway(
        replace(fakes.backends, verifier=WithoutProbes()), verifier_address="none"
    )
    lacks = {
        "semantic": "no probes",
        "likelihood": "no calibration",
        "token-level": "no common vocabulary",
        "retrieval": "no datastore",
    }
    listed = (await gateway.http.get("/v1/models")).json()
    assert listed["unsupported"] == lacks
    for strategy, lack in lacks.items():
        refused = assert_error(
            await gateway.chat(semspec={"strategy": strategy}), 400, param="semspec.strategy"
        )
        supported, _, unsupported = (
            refused["message"].partition("this pair supports ")[2].partition(", but not ")
        )
        assert supported == "'target', 'draft'"
        assert unsupported == ", ".join(f"{name!r} ({lack})" for name, lack in lacks.items())
        missing = await gateway.http.get(f"/v1/models/semspec-demo:{strategy}")
        assert missing.status_code == 404 and f"({lack})" in missing.json()["error"]["message"]


async def test_strategy_that_lacks_two_things_names_both(start_gateway: GatewayFactory) -> None:
    fakes = Fakes.make().told(drafter={"model": "", "fingerprint": "", "max_context_tokens": 0})
    gateway = await start_gateway(
        replace(fakes.backends, verifier=WithoutProbes(), likelihood=None), verifier_address="none"
    )
    unsupported = (await gateway.http.get("/v1/models")).json()["unsupported"]
    assert unsupported["semantic"] == "no draft model and no probes"
    assert unsupported["likelihood"] == "no draft model and no calibration"


async def test_gateway_logs_the_strategies_of_its_pair(
    start_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await start_gateway(
        replace(Fakes.make().backends, verifier=WithoutProbes()), verifier_address="none"
    )
    [line] = [
        record.getMessage()
        for record in caplog.records
        if "this pair supports" in record.getMessage()
    ]
    assert line.endswith(", but not 'semantic' (no probes)")


async def test_generation_names_its_calibration(bare: Gateway) -> None:
    answer = (await bare.chat()).json()
    stored = await bare.stored(answer["id"])
    fakes = Fakes.make()
    own = calibration(fakes.drafter.model_info, fakes.target.model_info, middle=2.5)
    assert stored["models"]["likelihood"] == own.digest and stored["models"]["draft_probe"] == ""


async def test_strictness_moves_the_threshold_on_the_calibrations_curve(bare: Gateway) -> None:
    for strictness, point in zip((0.0, 1.0), CURVE, strict=True):
        body = (await bare.chat(semspec={"strictness": strictness})).json()["semspec"]
        assert body["parameters"]["acceptance"]["threshold"] == point.threshold
        assert body["expected"]["acceptance"] == point.acceptance


async def test_segmentation_of_another_pilot_is_refused(bare: Gateway) -> None:
    assert_error(
        await bare.chat(semspec={"segmentation": "sentence"}), 400, param="semspec.segmentation"
    )


async def test_without_a_draft_model_only_strategies_of_the_target_are_offered(
    start_gateway: GatewayFactory,
) -> None:
    """The draft service has a datastore alone."""
    fakes = Fakes.make().told(drafter={"model": "", "fingerprint": "", "max_context_tokens": 0})
    gateway = await start_gateway(fakes, defaults={"strategy": "retrieval"})
    names = {model["id"] for model in (await gateway.http.get("/v1/models")).json()["data"]}
    assert names == {"semspec-demo", "semspec-demo:retrieval", "semspec-demo:target"}
    answer = (await gateway.chat()).json()["semspec"]
    assert (answer["strategy"], answer["fallback"]) == ("retrieval", None)
    for strategy in ("semantic", "likelihood", "token-level", "draft"):
        error = assert_error(
            await gateway.chat(semspec={"strategy": strategy}), 400, param="semspec.strategy"
        )
        assert (
            f"{strategy!r} needs a draft model" in error["message"]
            and "serve one" in error["message"]
        )


async def test_default_strategy_that_needs_what_is_missing_is_a_mismatch() -> None:
    fakes = Fakes.make()
    draft, target, verifier = (
        fakes.drafter.model_info,
        fakes.target.model_info,
        fakes.verifier.verifier_info,
    )
    uncalibrated = replace(fakes.backends, likelihood=None)
    no_draft = Served(replace(draft, fingerprint=""), target, verifier, uncalibrated)
    no_probes = Served(draft, target, await WithoutProbes().info(), fakes.backends)
    for served, strategy, remedy in (
        (no_draft, "target", "serve one"),
        (no_probes, "likelihood", "'likelihood'"),
    ):
        for defaults in ({}, {"strategy": strategy}):
            chosen = replace(served, defaults=Defaults(**defaults))
            assert mismatch(chosen, AuditOptions()) is None
        unsupported = replace(served, defaults=Defaults(strategy="semantic"))
        reason = mismatch(unsupported, AuditOptions())
        assert (
            reason is not None
            and "SEMSPEC_GATEWAY_DEFAULTS" in str(reason)
            and remedy in str(reason)
        )
    assert no_probes.segmentations(no_probes.default("likelihood")) == {Segmentation.PARAGRAPH}


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
    fakes = Fakes.make()
    path, own = (
        tmp_path / "likelihood.json",
        calibration(fakes.drafter.model_info, fakes.target.model_info),
    )
    path.write_text(json.dumps(as_json(own)))
    draft, target = (
        ReleasedModel("model", one.fingerprint, one.tokenizer) for one in (own.draft, own.target)
    )
    Release("pair", "1", draft, target, {}, likelihood=own.digest).save(tmp_path)
    assert (
        make_settings(pair=tmp_path).name
        == make_settings(pair=Path(os.path.relpath(tmp_path))).name
        == "pair"
    )
    path.write_text(path.read_text()[:-9])
    with pytest.raises(
        ValidationError, match=r"cannot read likelihood calibration .*likelihood\.json"
    ):
        make_settings(pair=tmp_path)


def test_only_the_verifier_may_be_missing() -> None:
    assert make_settings(verifier_address="none").verifier_address == "none"
    with pytest.raises(ValidationError, match="draft_address"):
        make_settings(draft_address="none")
