"""Does a pod begin, answer for its health and end as the process in it does?"""

from typing import Any

from semspec.cli import parser
from semspec.engine.settings import ModelSettings
from semspec.observability import FLUSH_TIMEOUT_S
from semspec.rpc.connection import ClientOptions
from semspec.settings import ServiceSettings
from semspec_gateway.app import STORED_WITHIN_S
from semspec_gateway.generation.target_faults import LEAST_PATIENCE_S
from semspec_gateway.settings import GatewaySettings
from tests.compose.support import SETTINGS
from tests.manifests.environment import environment, settings_of
from tests.manifests.kustomize import Manifest, Objects
from tests.manifests.objects import GPU, Pod, bytes_of, mounts, pod, pods, volumes

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
LOOKUP_S = 30.0
"""How long a cluster's DNS, or a cache of it on the node, may repeat what it said."""
STORED_BYTES_A_SECOND = 2_776 * 223_000 / 8_192
"""The most tokens a second that two H100 are simulated to write (studies/simulate/results/layouts.md), and what Redis
holds of an answer."""
BESIDE_CACHE_BYTES = 512 << 20
"""A process with torch and a tiny model, at rest: 460 MB."""

Settings = GatewaySettings | ServiceSettings


def check_lifecycle(objects: Objects) -> None:
    """Ports, probes, ends and sizes fit the settings of the process."""
    for one in pods(objects):
        assert not one.is_served or one.main.keys() >= set(PROBES), f"{one}: lacks a probe"
        if one.name in SETTINGS:
            settings = settings_of(objects, one)
            open_ports = filter(None, [settings.port, getattr(settings, "metrics_port", None)])
            assert settings.host == "0.0.0.0"
            assert [*one.ports.values()] == [*open_ports], f"{one}: {one.ports}"
            for name in PROBES:
                _check_probe(one, name, settings)
            _check_end(one, settings)
            if isinstance(settings, ModelSettings):
                _check_size(objects, one, settings)


def check_redis(objects: Objects) -> None:
    """Redis holds all that two H100 write until it expires in half of its memory, and fills half of its container."""
    ttl_s = settings_of(objects, pod(objects, "gateway")).ttl_s  # type: ignore[union-attr]
    has_gpus = any(found.has_gpu for found in pods(objects))
    for redis in [found for found in pods(objects) if found.name == "redis"]:
        limit_bytes = int(environment(objects, redis.main)["MAXMEMORY"].removesuffix("gb")) << 30
        assert 2 * limit_bytes <= bytes_of(redis.main["resources"]["limits"]["memory"])
        assert not has_gpus or STORED_BYTES_A_SECOND * ttl_s < limit_bytes / 2


def _check_probe(one: Pod, name: str, settings: Settings) -> None:
    probe: Manifest = one.main[name]
    if isinstance(settings, GatewaySettings):
        path = "/ready" if name == "readinessProbe" else "/health"
        asked = {"path": path, "port": "http"} | (
            {"scheme": "HTTPS"} if settings.tls_certificate else {}
        )
        assert probe["httpGet"] == asked, f"{one}: {name}"
        patience_s = probe.get("failureThreshold", 3) * probe.get("periodSeconds", 10)
        is_patient = name != "readinessProbe" or patience_s > (
            settings.target_patience_s or LEAST_PATIENCE_S
        )
        assert is_patient, f"{one}: loses its endpoints while it waits for a lost target"
        return
    service = "" if name == "livenessProbe" else f"semspec.v2.{one.name.title()}"
    if settings.tls_certificate is None:
        assert probe["grpc"] == {"port": settings.port} | (
            {"service": service} if service else {}
        ), f"{one}: {name}"
        return
    assert "grpc" not in probe and probe["timeoutSeconds"] >= 5, f"{one}: {name}"
    program, command, *words = probe["exec"]["command"]
    health: Any = parser([]).parse_args([command, *words])
    assert (program, command) == ("semspec", "health")
    assert health.address == f"grpcs://localhost:{settings.port}"
    assert health.service == service, f"{one}: {name}"
    files = (health.ca, health.certificate, health.key)
    assert all(str(file.parent) in mounts(one.main) for file in files), f"{one}: {name}"


def _check_end(one: Pod, settings: Settings) -> None:
    pause_s = one.main.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    is_gateway = isinstance(settings, GatewaySettings)
    known_s = 1 if is_gateway else LOOKUP_S + ClientOptions().resolve_s
    assert pause_s >= known_s, f"{one}: begins to end while others still send to it"
    end_s = (
        pause_s
        + settings.settle_s
        + settings.grace_s
        + (STORED_WITHIN_S if is_gateway else 0)
        + FLUSH_TIMEOUT_S
    )
    assert one.spec.get("terminationGracePeriodSeconds", 30) > end_s, f"{one}: ends in {end_s:g} s"


def _check_size(objects: Objects, one: Pod, settings: ModelSettings) -> None:
    num_gpus = settings.vllm_options.tensor_parallel_size
    assert num_gpus == 1 or "/dev/shm" in mounts(one.main), f"{one}: has no shared memory"
    assert (settings.engine == "vllm") == one.main["image"].endswith("-vllm"), f"{one}: image"
    hub = environment(objects, one.main).get("HF_HOME", "")
    assert hub in mounts(one.main), f"{one}: {hub!r} is no volume"
    limits = one.main["resources"]["limits"]
    if one.has_gpu:
        assert int(limits[GPU]) == num_gpus, f"{one}: uses {num_gpus} GPUs"
        assert settings.device == "cuda", f"{one}: has GPUs, and may run without"
        found, start = environment(objects, one.main), one.main["startupProbe"]
        assert found["HF_HUB_OFFLINE"] == "1", one
        assert start["failureThreshold"] * start["periodSeconds"] <= 1200, f"{one}: starts too long"
        [cache] = [
            volumes(one)[name]
            for path, name in mounts(one.main).items()
            if found["VLLM_CACHE_ROOT"].startswith(path)
        ]
        assert "persistentVolumeClaim" in cache, f"{one}: compiles again at each start"
        affinity = one.spec["affinity"]["nodeAffinity"]
        [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        keys = {expression["key"] for expression in term["matchExpressions"]}
        assert "nvidia.com/gpu.memory" in keys, f"{one}: takes any GPU"
        assert settings.max_context_tokens, f"{one}: takes contexts as long as its model does"
    else:
        assert bytes_of(limits["memory"]) >= settings.kv_bytes + BESIDE_CACHE_BYTES, (
            f"{one}: memory"
        )
