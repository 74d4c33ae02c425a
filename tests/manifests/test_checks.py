"""Each check refuses manifests that are broken in the way it looks for."""

from copy import deepcopy
from typing import Any

import pytest

from tests.manifests.checks import CHECKS, Check, problems
from tests.manifests.kustomize import ENGINES, Build, Objects, has_tool
from tests.manifests.objects import name_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_tool(), reason="neither kubectl nor kustomize is installed")]

CPU, ALL = Build("cpu", ("monitoring",)), Build("scaled", ("tls",))
REMOVE = object()
POD = "spec/template/spec"
MAIN = f"{POD}/containers/0"
NAME = "app.kubernetes.io~1name"
IN_MEMORY = {"medium": "Memory", "sizeLimit": "64Gi"}

BROKEN: dict[str, tuple[Build, str, str, Any, str]] = {
    "environment": (CPU, "ConfigMap/draft", "data/SEMSPEC_DRAFT_MODLE", "x", "no such setting"),
    "lifecycle": (CPU, "Deployment/draft", f"{POD}/terminationGracePeriodSeconds", 64, "is killed before"),
    "selectors": (CPU, "Service/draft", f"spec/selector/{NAME}", "darft", "selects []"),
    "ports": (CPU, "Service/target", "spec/ports/0/port", 50051, "is not the grpc of"),
    "mounts": (CPU, "Deployment/draft", f"{MAIN}/volumeMounts/0/name", "temp", "not both a volume and a mount"),
    "sources": (CPU, "Deployment/draft", f"{MAIN}/envFrom/0/configMapRef/name", "drafts", "no ConfigMap drafts"),
    "scale_targets": (ALL, "ScaledObject/draft", "spec/scaleTargetRef/name", "drafts", "no Deployment drafts"),
    "memory": (CPU, "Deployment/draft", f"{POD}/volumes/0/emptyDir", IN_MEMORY, "volume in memory"),
    "policies": (CPU, "NetworkPolicy/default-deny", "spec/policyTypes", ["Ingress"], "denies"),
    "ways": (CPU, "NetworkPolicy/gateway", "spec/egress/2", REMOVE, "cannot reach Deployment/verifier"),
    "confinement": (CPU, "Deployment/draft", f"{POD}/securityContext/runAsNonRoot", False, "does not run as"),
    "accounts": (CPU, "ServiceAccount/draft", "automountServiceAccountToken", REMOVE, "mounts its token"),
    "resources": (CPU, "Deployment/draft", f"{MAIN}/resources/limits/memory", REMOVE, "no requests and limits"),
    "images": (CPU, "StatefulSet/redis", f"{MAIN}/image", "redis:latest", "is not pinned"),
    "secrets": (CPU, "ConfigMap/gateway", "data/SEMSPEC_GATEWAY_API_KEYS", "alice:0", "is a secret"),
    "namespace": (CPU, "Service/draft", "metadata/namespace", "default", "in the namespaces"),
    "writable": (CPU, "Deployment/gateway", f"{MAIN}/volumeMounts/0/readOnly", True, "cannot write to /tmp"),
    "disruptions": (CPU, "PodDisruptionBudget/target", "spec/maxUnavailable", 0, "one pod go"),
    "rollout": (CPU, "Deployment/draft", "spec/strategy/rollingUpdate/maxUnavailable", 1, "is updated by"),
    "discovery": (CPU, "Service/draft", "spec/clusterIP", REMOVE, "each ready pod's address"),
    "autoscaling": (ALL, "ScaledObject/target", "spec/minReplicaCount", 0, "scales from 0"),
    "scalers": (ALL, "ScaledObject/draft", "spec/fallback", REMOVE, "when Prometheus is away"),
    "certificates": (ALL, "Certificate/draft", "spec/issuerRef/name", "acme", "nobody issues it"),
    "monitors": (CPU, "PodMonitor/gateway", "spec/podMetricsEndpoints/0/authorization", REMOVE, "brings no API key"),
}
"""By check: the build, the object, the place in it (a JSON pointer), the new value, and what is said of it."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check_refuses_a_broken_manifest(check: Check) -> None:
    build, name, pointer, value, complaint = BROKEN[check.__name__.removeprefix("check_")]
    objects = build.objects()
    assert not list(check(objects)), "sound as it is"
    _set(_object(objects, name), pointer, value)
    assert any(complaint in problem for problem in check(objects)), list(check(objects))


@pytest.mark.parametrize(
    ("name", "pointer", "value", "complaint"),
    [
        ("Deployment/target", f"{MAIN}/resources/limits/nvidia.com~1gpu", "4", "has other than the 2 GPUs"),
        ("Deployment/target", f"{MAIN}/volumeMounts/0/mountPath", "/shared", "share no more than 64 MiB"),
        ("Deployment/draft", f"{MAIN}/image", "semspec-draft:0.2.0-cuda", "runs the engine vllm in"),
        ("ConfigMap/target", "data/SEMSPEC_TARGET_ENGINE", REMOVE, "only for the engine vllm"),
    ],
)
def test_settings_of_vllm_that_its_pod_does_not_fit_are_refused(
    name: str, pointer: str, value: Any, complaint: str
) -> None:
    objects = Build("scaled", ENGINES).objects()
    assert not problems(objects), "sound as it is"
    _set(_object(objects, name), pointer, value)
    assert any(complaint in problem for problem in problems(objects)), problems(objects)


def _object(objects: Objects, name: str) -> Any:
    """By kind and name; that of a generated ConfigMap without its hash."""
    [found] = [one for one in objects if name in (name_of(one), name_of(one).rpartition("-")[0])]
    return found


def _set(value: Any, pointer: str, new: Any) -> None:
    *parents, last = [part.replace("~1", "/") for part in pointer.split("/")]
    for part in parents:
        value = value[int(part)] if isinstance(value, list) else value[part]
    key = int(last) if isinstance(value, list) else last
    if new is REMOVE:
        del value[key]
    else:
        value[key] = deepcopy(new)
