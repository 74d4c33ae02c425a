"""Does a pod begin, answer for its health and end as the process in it does?"""

from collections.abc import Iterator
from typing import Any

from semspec.cli import parser
from semspec.engine.settings import ModelSettings
from semspec.gateway.app import STORED_WITHIN_S
from semspec.gateway.settings import GatewaySettings
from semspec.observability import FLUSH_TIMEOUT_S
from semspec.rpc.connection import ClientOptions
from semspec.settings import ServiceSettings
from tests.compose.support import SETTINGS
from tests.manifests.environment import environment, settings_of
from tests.manifests.kustomize import Manifest, Objects
from tests.manifests.objects import Pod, bytes_of, mounts, pods
from tests.manifests.policy import has_gpus

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
LOOKUP_S = 30.0
"""How long a cluster's DNS, or a cache of it on the node, may repeat what it said."""
BESIDE_CACHE_BYTES = 512 << 20
"""A process with torch and a tiny model, at rest: 460 MB."""

Settings = GatewaySettings | ServiceSettings


def check_lifecycle(objects: Objects) -> Iterator[str]:
    """Ports, probes, ends and sizes that do not fit the settings of the process."""
    for one in pods(objects):
        if one.is_served:
            yield from _without_probes(one)
        if one.name not in SETTINGS:
            continue
        try:
            settings = settings_of(objects, one)
        except (KeyError, ValueError):
            continue  # check_environment says so
        if list(one.ports.values()) != [settings.port] or settings.host != "0.0.0.0":
            yield f"{one}: listens on {settings.host}:{settings.port}, and says {one.ports}"
        yield from _unfit_probes(one, settings)
        yield from _cut_off(one, settings)
        if isinstance(settings, ModelSettings):
            yield from _too_small(objects, one, settings)


def _without_probes(one: Pod) -> Iterator[str]:
    for name in PROBES:
        if name not in one.main:
            yield f"{one}: has no {name}"


def _unfit_probes(one: Pod, settings: Settings) -> Iterator[str]:
    for name in PROBES:
        probe = one.main.get(name, {})
        if isinstance(settings, GatewaySettings):
            yield from _unfit_http(one, name, probe, settings)
        else:
            yield from _unfit_grpc(one, name, probe, settings)


def _unfit_http(one: Pod, name: str, probe: Manifest, settings: GatewaySettings) -> Iterator[str]:
    path = "/ready" if name == "readinessProbe" else "/health"
    wanted = {"path": path, "port": "http"} | ({"scheme": "HTTPS"} if settings.tls_certificate else {})
    if probe.get("httpGet") != wanted:
        yield f"{one}: its {name} asks {probe.get('httpGet')}, not {wanted}"
    patience_s = probe.get("failureThreshold", 3) * probe.get("periodSeconds", 10)
    if name == "readinessProbe" and patience_s <= settings.target_patience_s:
        yield f"{one}: loses its endpoints while it waits for a lost target"


def _unfit_grpc(one: Pod, name: str, probe: Manifest, settings: ServiceSettings) -> Iterator[str]:
    service = "" if name == "livenessProbe" else f"semspec.v1.{one.name.title()}"
    if settings.tls_certificate is None:
        wanted = {"port": settings.port} | ({"service": service} if service else {})
        if probe.get("grpc") != wanted:
            yield f"{one}: its {name} asks {probe.get('grpc')}, not {wanted}"
    elif not _asks_over_tls(one, probe, f"grpcs://localhost:{settings.port}", service):
        yield f"{one}: its {name} does not ask over TLS for {service!r}"


def _asks_over_tls(one: Pod, probe: Manifest, address: str, service: str) -> bool:
    command: list[str] = probe.get("exec", {}).get("command", ())
    if list(command[:2]) != ["semspec", "health"] or "grpc" in probe:
        return False
    asked: Any = parser([]).parse_args(command[1:])
    files = (asked.ca, asked.certificate, asked.key)
    mounted = all(file and str(file.parent) in mounts(one.main) for file in files)
    return bool((asked.address, asked.service) == (address, service) and mounted and probe["timeoutSeconds"] >= 5)


def _cut_off(one: Pod, settings: Settings) -> Iterator[str]:
    pause_s = one.main.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    if pause_s < (1 if isinstance(settings, GatewaySettings) else LOOKUP_S + ClientOptions().resolve_s):
        yield f"{one}: begins to end while others still send to it"
    own_s = settings.settle_s + _ending_s(settings)
    if one.spec.get("terminationGracePeriodSeconds", 30) <= pause_s + own_s + FLUSH_TIMEOUT_S:
        yield f"{one}: is killed before its {pause_s + own_s + FLUSH_TIMEOUT_S:g} s are over"


def _ending_s(settings: Settings) -> float:
    if isinstance(settings, GatewaySettings):
        return settings.grace_s + STORED_WITHIN_S
    return settings.grace_s


def _too_small(objects: Objects, one: Pod, settings: ModelSettings) -> Iterator[str]:
    limit = bytes_of(one.main["resources"]["limits"]["memory"])
    if not one.has_gpu and limit < settings.kv_bytes + BESIDE_CACHE_BYTES:
        yield f"{one}: {limit} bytes hold no keys and values of {settings.kv_bytes}"
    num_gpus = settings.vllm_options.tensor_parallel_size * settings.vllm_options.pipeline_parallel_size
    if one.has_gpu and not has_gpus(one, num_gpus):
        yield f"{one}: has other than the {num_gpus} GPUs that it uses"
    if num_gpus > 1 and "/dev/shm" not in mounts(one.main):
        yield f"{one}: its processes share no more than 64 MiB"
    if (settings.engine == "vllm") != one.main["image"].endswith("-vllm"):
        yield f"{one}: runs the engine {settings.engine} in {one.main['image']}"
    if one.has_gpu and settings.device != "cuda":
        yield f"{one}: has GPUs, and may run without"
    if one.has_gpu and settings.max_context_tokens is None:
        yield f"{one}: takes contexts as long as its model does, whatever the GPU holds"
    cache = environment(objects, one.main).get("HF_HOME", "")
    if cache not in mounts(one.main):
        yield f"{one}: keeps the hub's files in {cache!r}, which is no volume"
