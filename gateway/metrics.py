"""What the gateway counts, for Prometheus. One registry an application: no globals, so tests may run many."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.trace import verdict
from semspec.core import SegmentRecord

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Names start with `semspec_gateway_`; durations are seconds."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "semspec_gateway_requests", "HTTP requests answered.", ("method", "route", "status"), registry=registry
        )
        self._request_seconds = Histogram(
            "semspec_gateway_request_duration_seconds",
            "Time from a request's first to its answer's last byte.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._refusals = Counter(
            "semspec_gateway_refusals", "Requests answered with an error, by its code.", ("code",), registry=registry
        )
        self._generations = Counter(
            "semspec_gateway_generations", "Generations ended.", ("strategy", "status"), registry=registry
        )
        self._generation_seconds = Histogram(
            "semspec_gateway_generation_duration_seconds",
            "Time a finished generation took.",
            ("strategy",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge("semspec_gateway_generations_in_flight", "Generations running.", registry=registry)
        self._segments = Counter(
            "semspec_gateway_segments", "Segments kept, by how they came to be.", ("verdict",), registry=registry
        )
        self._rejections = Counter(
            "semspec_gateway_segment_rejections", "Drafted segments the target replaced.", registry=registry
        )
        self._tokens = Counter("semspec_gateway_tokens", "Output tokens, by writer.", ("writer",), registry=registry)
        self._prompt_tokens = Counter("semspec_gateway_prompt_tokens", "Prompt tokens.", registry=registry)
        self._stage_seconds = Histogram(
            "semspec_gateway_stage_duration_seconds",
            "Time a kept segment cost each stage.",
            ("stage",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._fallbacks = Counter(
            "semspec_gateway_fallbacks", "Generations the target had to finish alone.", registry=registry
        )
        self._redis_failures = Counter(
            "semspec_gateway_redis_failures", "Operations Redis did not answer.", ("operation",), registry=registry
        )
        self._degraded = Counter(
            "semspec_gateway_degraded_generations", "Generations not stored in full.", registry=registry
        )

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def request(self, method: str, route: str, status: int, duration_s: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(route).observe(duration_s)

    def refusal(self, code: str) -> None:
        self._refusals.labels(code).inc()

    def redis_failure(self, operation: str) -> None:
        self._redis_failures.labels(operation).inc()

    def prompt(self, num_tokens: int) -> None:
        self._prompt_tokens.inc(num_tokens)

    def segment(self, record: SegmentRecord) -> None:
        self._segments.labels(verdict(record)).inc()
        self._tokens.labels(record.segment.writer.value).inc(len(record.segment.token_ids))
        if record.rejected is not None:
            self._rejections.inc()
        times = record.times
        stages = {"draft": times.draft_ms, "read": times.read_ms, "judge": times.judge_ms, "write": times.write_ms}
        for stage, duration_ms in stages.items():
            if duration_ms > 0:
                self._stage_seconds.labels(stage).observe(duration_ms / 1e3)

    def fallback(self) -> None:
        self._fallbacks.inc()

    def degraded(self) -> None:
        self._degraded.inc()

    def generation(self, strategy: str, status: str, duration_s: float) -> None:
        self._generations.labels(strategy, status).inc()
        if status == "finished":
            self._generation_seconds.labels(strategy).observe(duration_s)
