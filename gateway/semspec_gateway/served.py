"""The served pair: its models and probes, whether they match, and which strategies they support."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, runtime_checkable

from semspec.decoding import PREFERRED, STRATEGIES, Backends, Strategies, Strategy
from semspec.decoding.likelihood.calibration import Calibration
from semspec.errors import Mismatch
from semspec.types import (
    MIN_CONTEXT_TOKENS,
    STATE_CONVENTION,
    ModelInfo,
    Segmentation,
    VerifierInfo,
    Writer,
    shares_ordinary_tokens,
)
from semspec_gateway.options import Defaults
from semspec_gateway.releases import ServedRelease
from semspec_gateway.settings import AuditOptions


@runtime_checkable
class Replicated(Protocol):
    """A backend with several replicas, which may serve different models during an upgrade."""

    def of(self, info: ModelInfo) -> Self:
        """A backend that calls only replicas of this model."""
        ...


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that a strategy needs and a pair does not have."""

    name: str
    """Description in a few words, such as "no probes"."""
    reason: str
    """Why the strategy needs it; a sentence that begins after the strategy's name."""
    remedy: str
    setting: str = ""
    """The setting that adds it."""


@dataclass(frozen=True, slots=True)
class Served:
    """Models and probes that the three services reported."""

    draft: ModelInfo
    target: ModelInfo
    verifier: VerifierInfo
    backends: Backends = field(compare=False, repr=False)
    """The services, and the calibration of the strategy `likelihood`."""
    strategies: Strategies = field(default_factory=lambda: STRATEGIES)
    """The gateway's table."""
    release: ServedRelease | None = None
    """The release; None: the pair has none."""
    defaults: Defaults = field(default_factory=Defaults)
    """Defaults of requests: the operator's, with the release's rule if there is a release."""

    @property
    def likelihood(self) -> Calibration | None:
        """The calibration of the strategy `likelihood`."""
        return self.backends.likelihood

    @property
    def label(self) -> str:
        """NAME@VERSION of the release; empty without one."""
        return self.release.pair.label if self.release else ""

    @property
    def identity(self) -> dict[str, str]:
        """Fingerprints of the models, the probes and the calibration, and the release's label."""
        return {
            "draft": self.draft.fingerprint,
            "target": self.target.fingerprint,
            "draft_probe": self.verifier.draft_probe,
            "target_probe": self.verifier.target_probe,
            **({"likelihood": self.likelihood.digest} if self.likelihood else {}),
            **({"release": self.label} if self.release else {}),
        }

    def default(self, strategy: str | None = None) -> Strategy:
        """Return a strategy with the default options; None: that of a request that names none."""
        name = strategy or self.default_name
        return self.strategies[name](self.defaults.options(name))

    @property
    def default_name(self) -> str:
        """The strategy of a request that names none."""
        if self.defaults.strategy:
            return self.defaults.strategy
        known = (name for name in PREFERRED if name in self.strategies)
        return next(name for name in known if self.unsupported_reason(self.default(name)) is None)

    @property
    def supported(self) -> tuple[str, ...]:
        """Names of the strategies that this pair supports with the default options."""
        unsupported = self.unsupported
        return tuple(name for name in self.strategies if name not in unsupported)

    @property
    def pinned(self) -> Backends:
        """The services restricted to these models and probes, so that a generation never continues with others."""
        drafter, target = self.backends.drafter, self.backends.target
        return replace(
            self.backends,
            drafter=drafter.of(self.draft) if isinstance(drafter, Replicated) else drafter,
            target=target.of(self.target) if isinstance(target, Replicated) else target,
            projections=self.verifier.projections,
        )

    @property
    def sends_whole_states(self) -> tuple[str, ...]:
        """Services that do not hold all projections of the verifier's probes, and so send whole states for some."""
        of_draft = (
            {projection.draft for projection in self.verifier.projections}
            if self.draft.has_model
            else set()
        )
        missing = {
            "draft": of_draft - {*self.draft.projections},
            "target": {
                projection.target for projection in self.verifier.projections if projection.target
            }
            - {*self.target.projections},
        }
        return tuple(role for role, digests in missing.items() if digests)

    @property
    def unsupported(self) -> dict[str, str]:
        """What this pair lacks for each strategy that it does not support with the default options."""
        lacks = {name: [*self._lacks(self.default(name))] for name in self.strategies}
        return {
            name: " and ".join(lack.name for lack in missing)
            for name, missing in lacks.items()
            if missing
        }

    @property
    def support(self) -> str:
        """A sentence with the strategies that this pair supports, and what it lacks for the others."""
        supported = ", ".join(map(repr, self.supported))
        unsupported = ", ".join(f"{name!r} ({lacks})" for name, lacks in self.unsupported.items())
        return f"this pair supports {supported}{unsupported and f', but not {unsupported}'}"

    def unsupported_reason(self, strategy: Strategy) -> Mismatch | None:
        """Why this pair does not support the strategy; None if it does."""
        lack = next(self._lacks(strategy), None)
        if lack is None:
            return None
        rewrite = strategy.options.rewrite
        by_rewrite = (
            f" with the rewrite {rewrite!r}" if strategy.uses_probes and rewrite != "target" else ""
        )
        message = f"the strategy {strategy.name!r}{by_rewrite} {lack.reason}"
        return Mismatch(message, remedy=lack.remedy, operator_hint=lack.setting)

    def _lacks(self, strategy: Strategy) -> Iterator[Lack]:
        draft, target, probes = self.draft.tokenizer, self.target.tokenizer, strategy.options.probes
        or_target = ", or choose the rewrite 'target'" if strategy.uses_probes else ""
        if Writer.DRAFT in strategy.writers and not self.draft.has_model:
            yield Lack(
                "no draft model",
                "needs a draft model, which the draft service does not have",
                "serve one",
                "SEMSPEC_DRAFT_MODEL",
            )
        elif strategy.needs_one_vocabulary and not shares_ordinary_tokens(draft, target):
            yield Lack(
                "no common vocabulary",
                "proposes tokens to the target, so both models need the same ordinary tokens (special tokens may "
                f"differ), but the draft has {draft} and the target {target}",
                f"serve a pair with one vocabulary{or_target}",
            )
        if strategy.needs_datastore and not self.draft.datastore:
            yield Lack(
                "no datastore",
                "needs a datastore of the target's answers, which the draft service does not have",
                f"build one with `semspec train datastore` and serve it{or_target}",
                "SEMSPEC_DRAFT_DATASTORE",
            )
        if strategy.uses_probes and not self.verifier.has_probes:
            yield Lack(
                "no probes",
                "needs probes, but the pair is served without",
                "train some with `semspec train run` and start the verifier",
            )
        if strategy.needs_calibration and self.likelihood is None:
            yield Lack(
                "no calibration",
                "needs a calibration for this pair",
                "make one with `semspec train calibrate` and serve its release",
                "SEMSPEC_GATEWAY_PAIR",
            )
        if (
            strategy.uses_probes
            and self.verifier.has_probes
            and probes
            and probes not in self.verifier.alternatives
        ):
            known = ", ".join(self.verifier.alternatives) or "none"
            yield Lack(
                f"no probes {probes!r}",
                f"judges by the probes {probes!r}, which the verifier does not serve next to the main ones, only: "
                f"{known}",
                "leave probes out, or add them to the verifier's alternatives",
                "SEMSPEC_VERIFIER_PAIR",
            )

    def supports_logprobs(self, strategy: Strategy) -> bool:
        """Whether all kept tokens have their writer's logprobs."""
        return strategy.supports_logprobs and all(
            info.supports_logprobs for info in self._models(strategy.writers)
        )

    def writers(self, strategy: Strategy) -> list[ModelInfo]:
        """The models that may write; the target goes on where the draft fails."""
        return self._models({*strategy.writers, Writer.TARGET})

    def segmentations(self, strategy: Strategy) -> frozenset[Segmentation]:
        """The segmentations that all services of a strategy support."""
        common = frozenset(Segmentation).intersection(
            *(info.segmentations for info in self.writers(strategy))
        )
        if strategy.needs_calibration and self.likelihood is not None:
            common &= {self.likelihood.segmentation}
        return common & frozenset(self.verifier.segmentations) if strategy.uses_probes else common

    def _models(self, writers: Iterable[Writer]) -> list[ModelInfo]:
        models = {Writer.DRAFT: self.draft, Writer.TARGET: self.target}
        return [models[writer] for writer in writers]


def mismatch(served: Served, audit: AuditOptions) -> Mismatch | None:
    """Return the first mismatch between the services and the settings; None if everything matches."""
    draft, target, verifier = served.draft, served.target, served.verifier
    services: dict[str, ModelInfo | VerifierInfo] = {
        "draft": draft,
        "target": target,
        "verifier": verifier,
    }
    for role, service in services.items():
        if (used := service.state_convention) != STATE_CONVENTION:
            return Mismatch(
                f"the {role} service uses {used!r}, this gateway {STATE_CONVENTION!r}",
                remedy="upgrade the older one",
            )
    if served.release and (reason := served.release.pair.mismatch_reason(draft, target, verifier)):
        return reason
    for role, info, expected, tokenizer in (
        ("draft", draft, verifier.draft_model, verifier.draft_tokenizer),
        ("target", target, verifier.target_model, verifier.target_tokenizer),
    ):
        if not info.has_model:
            continue
        if info.max_context_tokens < MIN_CONTEXT_TOKENS:
            return Mismatch(
                f"the {role} service reports a context window of {info.max_context_tokens} tokens",
                remedy=f"serve {info.model} with at least {MIN_CONTEXT_TOKENS}",
            )
        if verifier.has_probes and info.fingerprint != expected:
            return Mismatch(
                f"the verifier's {role} probe was trained on model {expected}, but the {role} service "
                f"serves {info.fingerprint} ({info.model})",
                remedy="start the verifier with that model's probe",
            )
        if tokenizer and info.tokenizer != tokenizer:
            return Mismatch(
                f"the verifier's {role} probe was trained with the tokenizer {tokenizer}, but the {role} service "
                f"has {info.tokenizer}",
                remedy="put the model's own tokenizer files back",
            )
    if reason := _unaudited_reason(verifier, audit):
        return reason
    if draft.datastore and draft.datastore_model != target.fingerprint:
        return Mismatch(
            f"the draft service's datastore holds answers of model {draft.datastore_model}, but the target service "
            f"serves {target.fingerprint} ({target.model})",
            remedy="build a datastore of this target, or serve none",
            operator_hint="SEMSPEC_DRAFT_DATASTORE",
        )
    common = {*draft.segmentations} & {*target.segmentations} & {*verifier.segmentations}
    if not common:
        return Mismatch(
            "draft, target and verifier have no segmentation in common",
            remedy="use probes trained for one the engines have",
        )
    strategy, segmentation = served.default(), served.defaults.segmentation
    if lack := served.unsupported_reason(strategy):
        return Mismatch(
            f"the default strategy is unsupported, {served.support}: {lack.message}",
            remedy=lack.remedy,
            operator_hint=", ".join(filter(None, ("SEMSPEC_GATEWAY_DEFAULTS", lack.operator_hint))),
        )
    if segmentation not in (supported := served.segmentations(strategy)):
        return Mismatch(
            f"the default segmentation is {segmentation.value}, but the "
            f"services support only {', '.join(sorted(supported))} for {strategy.name}",
            remedy=f"set it, or use probes trained for {segmentation.value}",
            operator_hint="SEMSPEC_GATEWAY_DEFAULTS",
        )
    return None


def _unaudited_reason(verifier: VerifierInfo, audit: AuditOptions) -> Mismatch | None:
    """Why the audit that the settings ask for is impossible; None if it is possible or off."""
    if audit.share and not verifier.equivalence:
        return Mismatch(
            "an audit is asked for, but the verifier has no equivalence of meaning",
            remedy="give it the card's, or ask for none",
            operator_hint="SEMSPEC_VERIFIER_EQUIVALENCE, SEMSPEC_GATEWAY_AUDIT",
        )
    has_curve = any(point.threshold is not None for point in verifier.operating_points)
    if audit.share and audit.strictness is not None and not has_curve:
        return Mismatch(
            "the audit's strictness needs a curve of thresholds, but the probes' report has none",
            remedy="unset it, or train probes with a report",
            operator_hint="SEMSPEC_GATEWAY_AUDIT",
        )
    return None
