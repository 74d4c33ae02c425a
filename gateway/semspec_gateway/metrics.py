"""The gateway's Prometheus metrics. Each application has its own registry, so tests may create several."""

from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from semspec import __version__
from semspec.records import statistics, verdict
from semspec.rpc.pool import Pool
from semspec.types import ModelInfo, SegmentRecord

_NAMESPACE = "semspec_gateway"
SERVICES = ("draft", "target", "verifier", "redis")
POOLED = SERVICES[:-1]
"""Services that may have several replicas."""
MODELS = ("draft", "target")
"""Services with a language model."""
_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 3600),
)
_TOKENS = [4**power for power in range(9)]


class Metrics:
    """Names start with `semspec_gateway_`, except those that tools expect from vLLM; durations are in seconds."""

    def __init__(self) -> None:
        self._registry, self._by_owner = CollectorRegistry(), CollectorRegistry()
        counter = partial(Counter, namespace=_NAMESPACE, registry=self._registry)
        gauge = partial(Gauge, namespace=_NAMESPACE, registry=self._registry)
        seconds = partial(
            Histogram, namespace=_NAMESPACE, registry=self._registry, buckets=_SECONDS
        )

        build = Info("build", "The running build.", namespace=_NAMESPACE, registry=self._registry)
        build.info({"version": __version__})
        self.of_services = _Services(self._registry)

        self._requests = counter(
            "requests", "HTTP requests answered.", ("method", "route", "status")
        )
        self._request_seconds = seconds(
            "request_duration_seconds",
            "From a request's head to the last byte of its answer.",
            ("route",),
        )
        self.refusals = counter(
            "refusals", "Requests answered with an error, by its code.", ("code",)
        )

        self.in_flight = gauge("generations_in_flight", "Generations running.")
        self.capacity = gauge("generations_capacity", "Generations that may run at once.")
        self.queue_depth = gauge("queue_depth", "Requests waiting for a slot.")
        self.queue_wait_seconds = seconds(
            "queue_wait_seconds", "An admitted request's wait for a slot."
        )
        self._generations = counter("generations", "Generations ended.", ("strategy", "status"))
        self._generation_seconds = seconds(
            "generation_duration_seconds", "Of a finished generation.", ("strategy",)
        )
        self._first_segment_seconds = seconds(
            "time_to_first_segment_seconds",
            "From a generation's start to its first kept segment.",
            ("strategy",),
        )
        self.fallbacks = counter("fallbacks", "Generations the target had to finish alone.")
        self.resumptions = counter(
            "resumptions", "Times that a generation went on after it had lost the target."
        )
        self.degraded_generations = counter(
            "degraded_generations", "Generations not stored in full."
        )
        self.redis_failures = counter(
            "redis_failures", "Operations Redis did not answer.", ("operation",)
        )

        self._segments = counter("segments", "Segments kept, by how they came to be.", ("verdict",))
        self._rejections = counter("segment_rejections", "Drafted segments the target replaced.")
        self._repeats = counter(
            "segment_repeats", "Drafted segments that the target replaced since they repeat text."
        )
        self._stage_seconds = seconds(
            "stage_duration_seconds", "Waited for each stage, by kept segment.", ("stage",)
        )
        self._tokens = counter("tokens", "Output tokens, by writer.", ("writer",))
        self._proposed_tokens = counter(
            "proposed_tokens", "Tokens the draft proposed to the target one by one."
        )
        self._accepted_tokens = counter(
            "accepted_tokens", "Proposed tokens the target kept, in segments of its own."
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens.")
        by_owner = partial(Counter, namespace=_NAMESPACE, registry=self._by_owner)
        self._owner_generations = by_owner(
            "owner_generations",
            "Generations ended, by the name of the API key.",
            ("owner", "status"),
        )
        self._owner_tokens = by_owner(
            "owner_tokens", "Output tokens, by the name of the API key.", ("owner",)
        )
        # By OpenTelemetry's names for generative AI.
        gen_ai = partial(Histogram, namespace="gen_ai", registry=self._registry)
        model = "gen_ai_request_model"
        self._model_seconds = gen_ai(
            "server_request_duration_seconds", "Of a generation.", [model], buckets=_SECONDS
        )
        self._first_token_seconds = gen_ai(
            "server_time_to_first_token_seconds",
            "To the first kept segment.",
            [model],
            buckets=_SECONDS,
        )
        self._usage = gen_ai(
            "client_token_usage", "Tokens.", [model, "gen_ai_token_type"], buckets=_TOKENS
        )
        # vLLM's counters, which AIPerf and others read; `semspec.records.Step` defines what counts as a draft.
        of_vllm = partial(Counter, registry=self._registry)
        self._drafts = of_vllm("vllm:spec_decode_num_drafts", "Decisions on drafted tokens.")
        self._drafted = of_vllm(
            "vllm:spec_decode_num_draft_tokens", "Drafted tokens that were decided on."
        )
        self._kept = of_vllm("vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted.")
        self.audit = _Audit(self._registry)
        self.load = LoadMetrics(self._registry)

    def exposition(self, with_owners: bool = True) -> bytes:
        """All metrics in Prometheus' text format, those by owner only `with_owners`."""
        registries = (self._registry, self._by_owner) if with_owners else (self._registry,)
        return b"".join(map(generate_latest, registries))

    def request(self, method: str, route: str, status: int, duration_s: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(route).observe(duration_s)

    def segment(self, record: SegmentRecord, owner: str = "") -> None:
        """Count a kept segment of a generation of `owner`, the name of an API key; empty without authentication."""
        numbers = statistics([record])
        self._owner_tokens.labels(owner).inc(numbers.num_tokens)
        self._segments.labels(verdict(record)).inc()
        self._tokens.labels(record.segment.writer.value).inc(numbers.num_tokens)
        self._proposed_tokens.inc(numbers.num_proposed_tokens)
        self._accepted_tokens.inc(numbers.num_accepted_tokens)
        self._rejections.inc(numbers.num_rejected)
        self.load.undrafted.inc(numbers.num_undrafted)
        self._repeats.inc(record.repeats is not None)
        for step in numbers.steps:
            self._drafts.inc()
            self._drafted.inc(step.num_draft_tokens)
            self._kept.inc(step.num_accepted_tokens)
        times = record.times
        stages = {
            "draft": times.draft_ms,
            "read": times.read_ms,
            "judge": times.judge_ms,
            "write": times.write_ms,
        }
        for stage, duration_ms in stages.items():
            if duration_ms > 0:
                self._stage_seconds.labels(stage).observe(duration_ms / 1e3)

    def first_segment(self, strategy: str, duration_s: float) -> None:
        self._first_segment_seconds.labels(strategy).observe(duration_s)

    def first_token(self, model: str, duration_s: float) -> None:
        self._first_token_seconds.labels(model).observe(duration_s)

    def used(self, model: str, duration_s: float, num_prompt_tokens: int, num_tokens: int) -> None:
        """Count a finished generation as OpenTelemetry does."""
        self._model_seconds.labels(model).observe(duration_s)
        self._usage.labels(model, "input").observe(num_prompt_tokens)
        self._usage.labels(model, "output").observe(num_tokens)

    def generation(self, strategy: str, status: str, duration_s: float, owner: str = "") -> None:
        self._generations.labels(strategy, status).inc()
        self._owner_generations.labels(owner, status).inc()
        if status == "finished":
            self._generation_seconds.labels(strategy).observe(duration_s)


class LoadMetrics:
    """What the load control measured and decided."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, namespace=_NAMESPACE, registry=registry)
        counter = partial(Counter, namespace=_NAMESPACE, registry=registry)
        self.drafts = gauge(
            "load_drafts", "1 while new segments are drafted, 0 while the target writes alone."
        )
        self.drafts.set(1)
        self._tokens_per_s = gauge(
            "load_tokens_per_second",
            "Tokens/s of one generation, by about how many run and by mode.",
            ("running", "mode"),
        )
        self.changes = counter(
            "load_changes", "Times that the other mode became the preferred one at a load."
        )
        self.undrafted = counter(
            "undrafted_segments", "Segments that the target wrote alone because of load."
        )

    def measured(self, num_running: int, drafting: float, target: float) -> None:
        """Record the tokens/s of both modes at a level of load; 0 is not known."""
        for mode, tokens_per_s in (("drafting", drafting), ("target", target)):
            if tokens_per_s:
                self._tokens_per_s.labels(str(num_running), mode).set(tokens_per_s)


class _Audit:
    """Of accepted segments that were judged again; means are over the latest 500."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace=_NAMESPACE, registry=registry)
        gauge = partial(Gauge, namespace=_NAMESPACE, registry=registry, labelnames=("release",))
        self._segments = counter("audit_segments", "Accepted segments judged again.", ("result",))
        self.skipped = counter(
            "audit_skipped_segments", "Segments chosen for the audit and not judged.", ("reason",)
        )
        self.waiting = gauge(
            "audit_waiting_segments", "Segments waiting for the audit.", labelnames=()
        )
        self._support = gauge(
            "audit_support", "Share of accepted segments that a sample of the target means."
        )
        self._reference = gauge(
            "audit_reference", "Share of the target's samples that another one means."
        )
        self._probability_gap = gauge(
            "audit_probability_gap", "The probe's p less the share of samples, on average."
        )
        self._evidence = gauge(
            "audit_evidence", "Evidence of a loss above the tolerance; the alarm is at 100."
        )
        self._alarm = gauge(
            "audit_alarm", "1 once there was enough evidence of a loss with these probes."
        )
        self.ratio_drift = gauge(
            "audit_ratio_drift", "Largest distance of p/q's distribution from the report's."
        )
        # Both series exist from the start, so that an alert sees that neither grows.
        for result in ("supported", "unsupported"):
            self._segments.labels(result)

    def judged(
        self,
        release: str,
        is_supported: bool,
        support: float,
        reference: float,
        probability_gap: float,
    ) -> None:
        """Count a segment; the other three are means."""
        self._segments.labels("supported" if is_supported else "unsupported").inc()
        self._support.labels(release).set(support)
        self._reference.labels(release).set(reference)
        self._probability_gap.labels(release).set(probability_gap)

    def tested(self, release: str, evidence: float, has_alarm: bool) -> None:
        self._evidence.labels(release).set(evidence)
        self._alarm.labels(release).set(has_alarm)


class _Services:
    """Gauges of draft, target, verifier and Redis."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, namespace=_NAMESPACE, registry=registry, labelnames=("service",))
        self._up = gauge("service_up", "1 while a service answers as it should, else 0.")
        self._replicas = gauge("service_replicas", "Replicas of a service that can be called.")
        self._hung = gauge(
            "service_hung_replicas", "Replicas with work whose engine makes no step."
        )
        self._calls = gauge("service_calls_in_flight", "Calls under way at a service.")
        self._whole_states = gauge(
            "service_whole_states",
            "Segments whose states came whole, since the probe's first layer was not held.",
        )
        self._cache_bytes = gauge("service_cache_bytes", "Keys and values a service holds.")
        self._max_cache_bytes = gauge(
            "service_max_cache_bytes", "Keys and values a service may hold."
        )
        of_redis = partial(Gauge, namespace=_NAMESPACE, registry=registry)
        self._memory = of_redis("redis_memory_bytes", "Memory that Redis takes.")
        self._max_memory = of_redis(
            "redis_max_memory_bytes", "Memory that Redis may take; 0: no limit, or not told."
        )
        known = {SERVICES: [self._up], POOLED: [self._replicas, self._hung, self._calls]}
        known[MODELS] = [self._cache_bytes, self._max_cache_bytes, self._whole_states]
        for services, metrics in known.items():
            for service in services:
                for metric in metrics:
                    metric.labels(service)

    def up(self, answers: Mapping[str, bool]) -> None:
        """Record which of `SERVICES` respond."""
        for service, is_up in answers.items():
            self._up.labels(service).set(is_up)

    def replicas(self, service: str, pool: Pool) -> None:
        """Read the gauges of one of `POOLED` from its pool at each scrape."""
        self._replicas.labels(service).set_function(lambda: pool.num_replicas)
        self._hung.labels(service).set_function(lambda: pool.num_hung)
        self._calls.labels(service).set_function(lambda: pool.num_in_flight)
        if service in MODELS:
            self._whole_states.labels(service).set_function(lambda: pool.num_unprojected_states)

    def memory(self, used_bytes: int, max_bytes: int) -> None:
        """Record what Redis takes and may take."""
        self._memory.set(used_bytes)
        self._max_memory.set(max_bytes)

    def cache(self, service: str, info: ModelInfo) -> None:
        """Record the cache sizes that one replica's engine reported at the last handshake."""
        self._cache_bytes.labels(service).set(info.cache_bytes)
        self._max_cache_bytes.labels(service).set(info.max_cache_bytes)
