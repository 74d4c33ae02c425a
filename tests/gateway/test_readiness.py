"""The handshake, before readiness and after a loss."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from semspec.decoding import Strategy
from semspec.errors import Mismatch, Unavailable
from semspec.rpc.pool import Pool
from semspec.types import ModelInfo, ProbeProjections, Segmentation, Writer
from semspec_gateway.metrics import Metrics
from semspec_gateway.options import Defaults
from semspec_gateway.readiness import describe
from semspec_gateway.served import Served, mismatch
from semspec_gateway.settings import AuditOptions
from tests.helpers.gateway import (
    GatewayFactory,
    assert_error,
    eventually,
    make_readiness,
    make_settings,
)
from tests.helpers.gateway_fakes import Fakes
from tests.helpers.variants import OF_PRODUCT, VARIANTS


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
            lambda s: replace(s, verifier=replace(s.verifier, state_convention="?")),
            ["verifier", "upgrade"],
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
    fakes.drafter.model_info = replace(fitting, fingerprint="another")
    gateway = await start_gateway(fakes, ready=False)
    status = gateway.app.state.readiness
    await eventually(lambda: isinstance(status.status.error, Mismatch))
    for response in (await gateway.http.get("/ready"), await gateway.chat()):
        message = assert_error(response, 503, code="configuration_mismatch")["message"]
        assert (
            "serves another" in message and "SEMSPEC" not in message and "127.0.0.1" not in message
        )
    fakes.drafter.model_info = fitting
    await eventually(lambda: describe(status.status) == "ready")
    assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize("role", ["drafter", "target", "verifier"])
async def test_all_services_are_needed_to_begin_with(
    role: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fakes = Fakes.make()
    getattr(fakes, role).lost = Unavailable("connection refused")
    readiness = make_readiness(fakes)
    with pytest.raises(Unavailable):
        readiness.require()
    await readiness.check()
    with pytest.raises(
        Unavailable, match=r"no handshake with the \w+ service: connection refused$"
    ):
        readiness.require()
    assert (
        "start what does not answer, or fix one of SEMSPEC_GATEWAY_DRAFT_ADDRESS=127.0.0.1:"
        in caplog.text
    )
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
    fakes = Fakes.make()
    gateway = await start_gateway(change(fakes, spoil(served(fakes))))
    for stream in (False, True):
        by_field = await gateway.chat(semspec=VARIANTS[strategy], stream=stream)
        option = next(
            (name for name in ("rewrite", "probes") if name in VARIANTS[strategy]), "strategy"
        )
        error = assert_error(by_field, 400, param=f"semspec.{option}")
        assert all(word in error["message"] for word in (VARIANTS[strategy][option], *words)), (
            error["message"]
        )
        if option == "strategy":
            by_name = await gateway.chat(model=f"semspec-demo:{strategy}", stream=stream)
            assert_error(by_name, 400, param="model")
    names = [model["id"] for model in (await gateway.http.get("/v1/models")).json()["data"]]
    assert f"semspec-demo:{strategy}" not in names and {
        "semspec-demo",
        "semspec-demo:semantic",
    } <= set(names)
    assert (await gateway.http.get(f"/v1/models/semspec-demo:{strategy}")).status_code == 404
    assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize("name", OF_PRODUCT)
def test_whole_pair_can_do_every_strategy(name: str) -> None:
    whole = served(Fakes.make())
    assert whole.unsupported_reason(strategy(whole, name)) is None
    assert mismatch_with(whole, **VARIANTS[name]) is None


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
    of_sentences = replace(
        whole, verifier=replace(whole.verifier, segmentations=(Segmentation.SENTENCE,))
    )
    reason = mismatch_with(of_sentences)
    assert (
        reason is not None
        and reason.operator_hint == "SEMSPEC_GATEWAY_DEFAULTS"
        and "is paragraph" in reason.message
        and "sentence" in reason.message
    )
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
    refused = await gateway.chat(semspec={"segmentation": "sentence", **VARIANTS[strategy]})
    assert_error(refused, 400, param="semspec.segmentation")
    assert (
        await gateway.chat(model="semspec-demo:target", semspec={"segmentation": "sentence"})
    ).status_code == 200


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


@dataclass
class Counts:
    """A pool."""

    num_replicas: int
    num_in_flight: int
    num_hung: int
    num_unprojected_states: int = 0


def test_gauges_follow_the_pools() -> None:
    metrics, counts = Metrics(), Counts(2, 5, 1)
    metrics.of_services.replicas("target", cast(Pool, counts))
    assert 'semspec_gateway_service_replicas{service="target"} 2.0' in metrics.exposition().decode()
    counts.num_replicas = 1
    exposed = metrics.exposition().decode()
    assert 'semspec_gateway_service_replicas{service="target"} 1.0' in exposed
    assert 'semspec_gateway_service_hung_replicas{service="target"} 1.0' in exposed
    assert 'semspec_gateway_service_calls_in_flight{service="target"} 5.0' in exposed
