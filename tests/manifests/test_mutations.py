"""Each check refuses manifests that are broken in the way it looks for."""

from copy import deepcopy
from typing import Any

import pytest

from tests.manifests.checks import CHECKS, Check
from tests.manifests.custom import check_certificates, check_monitors, check_scalers
from tests.manifests.environment import check_environment
from tests.manifests.kustomize import Build, Objects, has_tool
from tests.manifests.lifecycle import check_lifecycle
from tests.manifests.network import check_policies, check_ways
from tests.manifests.objects import name_of
from tests.manifests.policy import (
    check_accounts,
    check_autoscaling,
    check_confinement,
    check_discovery,
    check_disruptions,
    check_images,
    check_namespace,
    check_resources,
    check_rollout,
    check_secrets,
    check_writable,
)
from tests.manifests.references import (
    check_memory,
    check_mounts,
    check_ports,
    check_scale_targets,
    check_selectors,
    check_sources,
)

pytestmark = pytest.mark.skipif(not has_tool(), reason="neither kubectl nor kustomize is installed")

CPU, ALL = Build("cpu", ("monitoring",)), Build("scaled", ("tls",))
REMOVE = object()
POD = "spec/template/spec"
MAIN = f"{POD}/containers/0"
NAME = "app.kubernetes.io~1name"
DRAFT = {NAME.replace("~1", "/"): "draft"}
ANYONE: list[Any] = [{"podSelector": {}}]
REDIS = [{"protocol": "TCP", "port": 6379}]
OPEN = {"podSelector": {}, "ingress": [{"ports": REDIS}], "egress": [{"to": ANYONE, "ports": REDIS}]}

Mutation = tuple[Check, Build, str, str, Any, str]
"""Who notices; what is changed: build, object, place (a JSON pointer) and new value; and what is said of it."""

MUTATIONS: tuple[Mutation, ...] = (
    # Settings
    (check_environment, CPU, "ConfigMap/draft", "data/SEMSPEC_DRAFT_MODLE", "x", "no such setting"),
    (check_environment, CPU, "ConfigMap/draft", "data/SEMSPEC_DRAFT_THREADS", "none", "SEMSPEC_DRAFT_THREADS"),
    (check_environment, CPU, "ConfigMap/draft", "data/SEMSPEC_DRAFT_MODEL", REMOVE, "SEMSPEC_DRAFT_MODEL"),
    (check_environment, CPU, "ConfigMap/draft", "data/SEMSPEC_DRAFT_MODEL", "/model/draft", "lies on no mount"),
    (check_environment, CPU, "ConfigMap/gateway", "data/SEMSPEC_GATEWAY_API_KEYS_FILE", REMOVE, "API key"),
    (
        check_environment,
        CPU,
        "Deployment/gateway",
        f"{MAIN}/env/1/valueFrom/secretKeyRef/key",
        "word",
        "nothing provides",
    ),
    (check_environment, CPU, "Deployment/gateway", f"{MAIN}/env/2/value", "http://redis", "redis://"),
    (check_environment, ALL, "ConfigMap/target", "data/SEMSPEC_TARGET_TLS_KEY", REMOVE, "key is missing"),
    # Ports, probes, ends, sizes
    (check_lifecycle, CPU, "ConfigMap/target", "data/SEMSPEC_TARGET_PORT", "50051", "listens on"),
    (check_lifecycle, CPU, "ConfigMap/target", "data/SEMSPEC_TARGET_HOST", "127.0.0.1", "listens on"),
    (check_lifecycle, CPU, "Deployment/target", f"{MAIN}/startupProbe", REMOVE, "has no startupProbe"),
    (check_lifecycle, CPU, "StatefulSet/redis", f"{MAIN}/livenessProbe", REMOVE, "has no livenessProbe"),
    (check_lifecycle, CPU, "Deployment/target", f"{MAIN}/readinessProbe/grpc/port", 50053, "readinessProbe asks"),
    (check_lifecycle, CPU, "Deployment/target", f"{MAIN}/readinessProbe/grpc/service", REMOVE, "readinessProbe asks"),
    (
        check_lifecycle,
        CPU,
        "Deployment/target",
        f"{MAIN}/livenessProbe/grpc/service",
        "semspec.v1.Target",
        "livenessProbe",
    ),
    (
        check_lifecycle,
        ALL,
        "Deployment/target",
        f"{MAIN}/livenessProbe/exec/command/2",
        "grpc://localhost:50052",
        "over TLS",
    ),
    (
        check_lifecycle,
        ALL,
        "Deployment/target",
        f"{MAIN}/readinessProbe/exec/command/3",
        "--service=Target",
        "over TLS",
    ),
    (check_lifecycle, ALL, "Deployment/target", f"{MAIN}/startupProbe/exec/command/4", "--ca=/etc/ca.crt", "over TLS"),
    (check_lifecycle, CPU, "Deployment/gateway", f"{MAIN}/readinessProbe/httpGet/path", "/health", "readinessProbe"),
    (check_lifecycle, CPU, "Deployment/gateway", f"{MAIN}/readinessProbe/failureThreshold", 3, "loses its endpoints"),
    (check_lifecycle, ALL, "Deployment/gateway", f"{MAIN}/livenessProbe/httpGet/scheme", "HTTP", "livenessProbe asks"),
    (check_lifecycle, CPU, "Deployment/gateway", f"{MAIN}/lifecycle", REMOVE, "others still send"),
    (check_lifecycle, CPU, "Deployment/draft", f"{MAIN}/lifecycle/preStop/sleep/seconds", 34, "others still send"),
    (check_lifecycle, CPU, "Deployment/draft", f"{POD}/terminationGracePeriodSeconds", 64, "is killed before"),
    (check_lifecycle, CPU, "Deployment/gateway", f"{POD}/terminationGracePeriodSeconds", REMOVE, "is killed before"),
    (check_lifecycle, ALL, "Deployment/target", f"{POD}/terminationGracePeriodSeconds", 74, "is killed before"),
    (check_lifecycle, CPU, "ConfigMap/draft", "data/SEMSPEC_DRAFT_GRACE_S", "60", "is killed before"),
    (check_lifecycle, CPU, "ConfigMap/draft", "data/SEMSPEC_DRAFT_CACHE_BYTES", str(2 << 30), "hold no cache"),
    (check_lifecycle, ALL, "ConfigMap/target", "data/SEMSPEC_TARGET_TENSOR_PARALLEL", "4", "not a GPU for each"),
    (check_lifecycle, ALL, "ConfigMap/draft", "data/SEMSPEC_DRAFT_DEVICE", "auto", "may run without"),
    (check_lifecycle, ALL, "ConfigMap/target", "data/SEMSPEC_TARGET_MAX_CONTEXT_TOKENS", REMOVE, "takes contexts as"),
    (check_lifecycle, ALL, "Deployment/draft", f"{MAIN}/volumeMounts/1/mountPath", "/hub", "is no volume"),
    # References
    (check_selectors, CPU, "Service/draft", f"spec/selector/{NAME}", "darft", "selects []"),
    (check_selectors, CPU, "PodDisruptionBudget/draft", f"spec/selector/matchLabels/{NAME}", "target", "selects"),
    (check_selectors, CPU, "PodMonitor/gateway", f"spec/selector/matchLabels/{NAME}", "api", "selects []"),
    (check_selectors, CPU, "Deployment/draft", f"spec/template/metadata/labels/{NAME}", "drafts", "misses its own"),
    (
        check_selectors,
        CPU,
        "Deployment/draft",
        f"{POD}/topologySpreadConstraints/0/labelSelector/matchLabels/{NAME}",
        "target",
        "spreads other pods",
    ),
    (check_ports, CPU, "Service/target", "spec/ports/0/port", 50051, "is not the grpc of"),
    (check_ports, CPU, "Service/target", "spec/ports/0/targetPort", "http", "is not the http of"),
    (check_ports, CPU, "PodMonitor/gateway", "spec/podMetricsEndpoints/0/port", "metrics", "no port 'metrics'"),
    (check_mounts, CPU, "Deployment/draft", f"{MAIN}/volumeMounts/0/name", "temp", "not both a volume and a mount"),
    (check_mounts, CPU, "Deployment/gateway", f"{POD}/volumes/0", REMOVE, "not both a volume and a mount"),
    (check_mounts, ALL, "Deployment/gateway", f"{MAIN}/volumeMounts/1/mountPath", "/etc/semspec/tls", "in one place"),
    (check_sources, CPU, "Deployment/draft", f"{MAIN}/envFrom/0/configMapRef/name", "drafts", "no ConfigMap drafts"),
    (check_sources, CPU, "Deployment/draft", f"{POD}/serviceAccountName", "drafts", "no ServiceAccount drafts"),
    (check_sources, CPU, "StatefulSet/redis", f"{POD}/volumes/0/configMap/name", "r", "nobody uses it"),
    (check_sources, ALL, "PersistentVolumeClaim/models", "metadata/name", "weights", "no PersistentVolumeClaim models"),
    (check_sources, ALL, "Certificate/draft", "spec/secretName", "tls-draft", "nobody makes the Secret draft-tls"),
    (check_sources, ALL, "PodMonitor/gateway", "spec/podMetricsEndpoints/0/tlsConfig/ca/secret/name", "x", "Secret x"),
    (
        check_sources,
        ALL,
        "PodMonitor/gateway",
        "spec/podMetricsEndpoints/0/authorization/credentials/key",
        "token",
        "with token",
    ),
    (check_scale_targets, ALL, "ScaledObject/draft", "spec/scaleTargetRef/name", "drafts", "no Deployment drafts"),
    (check_scale_targets, ALL, "ScaledObject/draft", "spec/scaleTargetRef/name", "target", "two autoscalers"),
    (check_scale_targets, ALL, "Deployment/draft", "spec/replicas", 2, "says its own replicas"),
    (check_memory, ALL, "Deployment/target", f"{MAIN}/resources/limits/memory", "6Gi", "volume in memory"),
    # The network
    (check_policies, CPU, "NetworkPolicy/default-deny", "spec/policyTypes", ["Ingress"], "denies"),
    (check_policies, CPU, "NetworkPolicy/default-deny", "spec/podSelector", {"matchLabels": DRAFT}, "denies"),
    (check_policies, CPU, "NetworkPolicy/redis", f"spec/podSelector/matchLabels/{NAME}", "store", "of no pod"),
    (check_policies, CPU, "NetworkPolicy/target", "spec/ingress/0/ports/0/port", 50051, "listens on 50051"),
    (check_policies, CPU, "NetworkPolicy/gateway", "spec/egress/0/ports/0/port", 50052, "listens on 50052"),
    (check_policies, ALL, "NetworkPolicy/hub", "spec/egress/0/to/1", REMOVE, "leads to {'0.0.0.0/0'} alone"),
    (check_ways, CPU, "NetworkPolicy/gateway", "spec/egress/2", REMOVE, "cannot reach Deployment/verifier"),
    (check_ways, CPU, "NetworkPolicy/draft", "spec/ingress", [], "cannot reach Deployment/draft"),
    (check_ways, CPU, "NetworkPolicy/gateway-to-redis", "spec/egress", [], "cannot reach StatefulSet/redis"),
    (check_ways, CPU, "NetworkPolicy/default-deny", "spec", OPEN, "Deployment/draft can reach StatefulSet/redis"),
    (check_ways, CPU, "NetworkPolicy/names", "spec/egress", [], "cannot look up names"),
    (check_ways, CPU, "ConfigMap/gateway", "data/SEMSPEC_GATEWAY_DRAFT_ADDRESS", "darft:50051", "no Service"),
    (check_ways, CPU, "ConfigMap/gateway", "data/SEMSPEC_GATEWAY_DRAFT_ADDRESS", "draft:50052", "no Service"),
    # Rights
    (check_confinement, CPU, "Deployment/draft", f"{POD}/securityContext/runAsNonRoot", False, "does not run as"),
    (check_confinement, CPU, "Deployment/draft", f"{POD}/securityContext/runAsUser", 0, "does not run as"),
    (check_confinement, CPU, "StatefulSet/redis", f"{POD}/securityContext/seccompProfile", REMOVE, "no seccomp"),
    (check_confinement, ALL, "Job/models", f"{POD}/automountServiceAccountToken", REMOVE, "cluster's API"),
    (check_confinement, CPU, "Deployment/draft", f"{POD}/enableServiceLinks", True, "variables of every Service"),
    (check_confinement, CPU, "Deployment/draft", f"{POD}/hostNetwork", True, "shares something with its node"),
    (check_confinement, CPU, "Deployment/draft", f"{POD}/volumes/0", {"name": "models", "hostPath": {}}, "its node"),
    (check_confinement, CPU, "Deployment/draft", f"{MAIN}/ports/0/hostPort", 50051, "a port of its node"),
    (check_confinement, CPU, "Deployment/draft", f"{MAIN}/securityContext", REMOVE, "semspec is not confined"),
    (
        check_confinement,
        CPU,
        "Deployment/draft",
        f"{POD}/initContainers/0/securityContext/readOnlyRootFilesystem",
        False,
        "pair is not confined",
    ),
    (check_confinement, CPU, "Deployment/draft", f"{MAIN}/securityContext/capabilities/add", ["ALL"], "not confined"),
    (check_accounts, CPU, "Deployment/draft", f"{POD}/serviceAccountName", "target", "of more than one pod"),
    (check_accounts, CPU, "ServiceAccount/draft", "automountServiceAccountToken", REMOVE, "mounts its token"),
    (check_resources, CPU, "Deployment/draft", f"{MAIN}/resources/limits/memory", REMOVE, "no requests and limits"),
    (check_resources, CPU, "Deployment/draft", f"{POD}/initContainers/0/resources", REMOVE, "no requests and limits"),
    (check_resources, ALL, "Deployment/target", f"{MAIN}/resources/limits/nvidia.com~1gpu", "4", "differ"),
    (check_resources, CPU, "Deployment/gateway", f"{POD}/volumes/1", {"name": "tmp", "emptyDir": {}}, "has no limit"),
    (check_images, CPU, "Deployment/draft", f"{MAIN}/image", "ghcr.io/semspec/semspec-draft", "is not pinned"),
    (check_images, CPU, "StatefulSet/redis", f"{MAIN}/image", "redis:latest", "is not pinned"),
    (check_secrets, CPU, "ServiceAccount/draft", "kind", "Secret", "stands in the manifests"),
    (
        check_secrets,
        CPU,
        "Deployment/draft",
        f"{MAIN}/env/2",
        {"name": "SEMSPEC_DRAFT_TOKEN", "value": "x"},
        "stands in",
    ),
    (check_secrets, CPU, "ConfigMap/gateway", "data/SEMSPEC_GATEWAY_API_KEYS", "alice:0", "is a secret"),
    (
        check_namespace,
        CPU,
        "Namespace/semspec",
        "metadata/labels/pod-security.kubernetes.io~1enforce",
        "baseline",
        "admits",
    ),
    (check_namespace, CPU, "Service/draft", "metadata/namespace", "default", "in the namespaces"),
    (check_writable, CPU, "Deployment/gateway", f"{MAIN}/volumeMounts/0/readOnly", True, "cannot write to /tmp"),
    # Comings and goings
    (check_disruptions, CPU, "PodDisruptionBudget/draft", "metadata/name", "drafts", "one pod go"),
    (check_disruptions, CPU, "PodDisruptionBudget/target", "spec/maxUnavailable", 0, "one pod go"),
    (check_rollout, CPU, "Deployment/draft", "spec/strategy/rollingUpdate/maxUnavailable", 1, "is updated by"),
    (check_rollout, ALL, "Deployment/draft", "spec/strategy/rollingUpdate/maxSurge", 1, "is updated by"),
    (check_rollout, CPU, "Deployment/draft", f"{POD}/topologySpreadConstraints", REMOVE, "all its pods on one node"),
    (check_discovery, CPU, "Service/draft", "spec/clusterIP", REMOVE, "each ready pod's address"),
    (check_discovery, CPU, "Service/target", "spec/publishNotReadyAddresses", True, "each ready pod's address"),
    (check_autoscaling, ALL, "ScaledObject/target", "spec/minReplicaCount", 0, "scales from 0"),
    (check_autoscaling, ALL, "ScaledObject/target", "spec/advanced", REMOVE, "lets go of pods at once"),
    (check_autoscaling, ALL, "HorizontalPodAutoscaler/verifier", "spec/behavior", REMOVE, "lets go of pods at once"),
    # Other controllers
    (check_scalers, ALL, "ScaledObject/draft", "spec/fallback", REMOVE, "when Prometheus is away"),
    (check_scalers, ALL, "ScaledObject/draft", "spec/fallback/replicas", 4, "when Prometheus is away"),
    (
        check_scalers,
        ALL,
        "ScaledObject/draft",
        "spec/triggers/0/metadata/query",
        "sum(semspec_gateway_queue)",
        "asks for",
    ),
    (check_scalers, ALL, "ScaledObject/draft", "spec/triggers/0/metadata/ignoreNullValues", REMOVE, "silence"),
    (check_scalers, ALL, "ScaledObject/draft", "metadata/name", "target", "by the load of {'draft'}"),
    (check_scalers, ALL, "ScaledObject/draft", "metadata/namespace", "other", "counts in {'semspec'}"),
    (check_scalers, ALL, "ScaledObject/gateway", "spec/triggers/0/metadata/threshold", "8", "is full before"),
    (check_certificates, ALL, "Certificate/draft", "spec/issuerRef/name", "acme", "nobody issues it"),
    (check_certificates, ALL, "Certificate/draft", "spec/dnsNames", ["draft"], "is not for draft and localhost"),
    (check_certificates, ALL, "Certificate/draft", "spec/usages", ["server auth"], "cannot serve, and ask"),
    (check_certificates, ALL, "Certificate/gateway-client", "spec/usages", ["server auth"], "cannot ask the services"),
    (
        check_monitors,
        CPU,
        "PodMonitor/gateway",
        "spec/podMetricsEndpoints/0/authorization",
        REMOVE,
        "brings no API key",
    ),
    (check_monitors, ALL, "PodMonitor/gateway", "spec/podMetricsEndpoints/0/scheme", REMOVE, "speaks http"),
    (
        check_monitors,
        CPU,
        "PodMonitor/gateway",
        "spec/podMetricsEndpoints/0/relabelings/0/replacement",
        "gateway",
        "is not the alerts'",
    ),
    (check_monitors, CPU, "PrometheusRule/semspec", "spec/groups/0/rules/0/for", "9m", "is not alerts.yml"),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: f"{one[0].__name__}-{one[2]}-{one[3]}")
def test_check_refuses_a_broken_manifest(mutation: Mutation) -> None:
    check, build, name, pointer, value, complaint = mutation
    objects = build.objects()
    assert not list(check(objects)), "sound as it is"
    _set(_object(objects, name), pointer, value)
    assert any(complaint in problem for problem in check(objects)), list(check(objects))


def test_every_check_is_seen_to_refuse_something() -> None:
    assert {mutation[0] for mutation in MUTATIONS} == set(CHECKS)


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
