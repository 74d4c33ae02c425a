"""What a reviewer asks of manifests, whatever they run."""

import re
from collections.abc import Iterator
from typing import Any

from tests.manifests.kustomize import Manifest, Objects
from tests.manifests.objects import GPU, Pod, name_of, named, of_kind, pods, volumes

UID = 10001
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
HOST = ("hostNetwork", "hostPID", "hostIPC", "hostUsers")
SECRET_NAME = re.compile(r"(TOKEN|PASSWORD|KEYS?|AUTH|REDIS_URL)$")
HEADLESS = ("draft", "target", "verifier", "redis")
SLOW_SCALE_DOWN_S = 300


def check_confinement(objects: Objects) -> Iterator[str]:
    """Pods with more rights than a process that computes and answers needs."""
    for one in pods(objects):
        context = one.spec.get("securityContext", {})
        if not context.get("runAsNonRoot") or {context.get("runAsUser"), context.get("runAsGroup")} != {UID}:
            yield f"{one}: does not run as {UID}"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{one}: has no seccomp profile"
        if one.spec.get("automountServiceAccountToken") is not False:
            yield f"{one}: is given a token of the cluster's API"
        if one.spec.get("enableServiceLinks") is not False:
            yield f"{one}: is given variables of every Service"
        if any(one.spec.get(name) for name in HOST) or any("hostPath" in volume for volume in volumes(one).values()):
            yield f"{one}: shares something with its node"
        for container in one.containers:
            if container.get("securityContext") != CONFINED:
                yield f"{one}: {container['name']} is not confined"
            if any("hostPort" in port for port in container.get("ports", ())):
                yield f"{one}: takes a port of its node"


def check_accounts(objects: Objects) -> Iterator[str]:
    """Accounts that are shared or mount a token."""
    used = [one.spec.get("serviceAccountName", "default") for one in pods(objects)]
    yield from (f"ServiceAccount/{name}: of more than one pod" for name in sorted(set(used)) if used.count(name) > 1)
    for account in of_kind(objects, "ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"{name_of(account)}: mounts its token"


def check_resources(objects: Objects) -> Iterator[str]:
    """Containers that may take what they like."""
    for one in pods(objects):
        for container in one.containers:
            resources = container.get("resources", {})
            requests, limits = resources.get("requests", {}), resources.get("limits", {})
            if not {"cpu", "memory"} <= requests.keys() & limits.keys():
                yield f"{one}: {container['name']} has no requests and limits"
            if requests.get(GPU) != limits.get(GPU):
                yield f"{one}: GPUs requested and limited differ"
        for name, volume in volumes(one).items():
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{one}: the volume {name} has no limit"


def check_images(objects: Objects) -> Iterator[str]:
    """Images that may change under the same name."""
    for one in pods(objects):
        for container in one.containers:
            image = container["image"].rpartition("/")[2]
            tag = image.partition("@")[2] or image.partition(":")[2]
            if tag in ("", "latest"):
                yield f"{one}: {container['image']} is not pinned"


def check_secrets(objects: Objects) -> Iterator[str]:
    """Secrets in the manifests, be it as objects or as values."""
    yield from (f"{name_of(secret)} stands in the manifests" for secret in of_kind(objects, "Secret"))
    for one in pods(objects):
        for container in one.containers:
            for entry in container.get("env", ()):
                if SECRET_NAME.search(entry["name"]) and "$(" not in entry.get("value", "$("):
                    yield f"{one}: {entry['name']} stands in the manifests"
    for name, config in named(objects, "ConfigMap").items():
        for key in config["data"]:
            if SECRET_NAME.search(key) and not str(config["data"][key]).startswith("/"):
                yield f"ConfigMap/{name}: {key} is a secret"


def check_disruptions(objects: Objects) -> Iterator[str]:
    """Workloads that a drained node may empty, or may never be drained of."""
    budgets = named(objects, "PodDisruptionBudget")
    for one in pods(objects):
        if not one.is_served:
            continue
        budget = budgets.get(one.name, {}).get("spec", {})
        if budget.get("maxUnavailable") != 1 or budget.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{one}: has no budget that lets one pod go at a time"


def check_rollout(objects: Objects) -> Iterator[str]:
    """Updates that leave a gap where there is room for a further pod, or wait for room that is not there."""
    for one in pods(objects):
        if one.owner["kind"] != "Deployment":
            continue
        rolling = one.owner["spec"].get("strategy", {}).get("rollingUpdate", {})
        wanted = {"maxSurge": 0, "maxUnavailable": 1} if one.has_gpu else {"maxSurge": 1, "maxUnavailable": 0}
        if rolling != wanted:
            yield f"{one}: is updated by {rolling}, not {wanted}"
        if not one.spec.get("topologySpreadConstraints"):
            yield f"{one}: may have all its pods on one node"


def check_namespace(objects: Objects) -> Iterator[str]:
    """A namespace that admits pods with rights, and objects outside it."""
    for name, namespace in named(objects, "Namespace").items():
        labels = namespace["metadata"].get("labels", {})
        if any(
            labels.get(f"pod-security.kubernetes.io/{mode}") != "restricted" for mode in ("enforce", "audit", "warn")
        ):
            yield f"Namespace/{name}: admits more than restricted pods"
    inside = {manifest["metadata"].get("namespace") for manifest in objects if manifest["kind"] != "Namespace"}
    if inside != set(named(objects, "Namespace")):
        yield f"objects in the namespaces {inside}"


def check_discovery(objects: Objects) -> Iterator[str]:
    """Services behind one virtual address, where the caller chooses among pods."""
    for name in HEADLESS:
        spec: dict[str, Any] = named(objects, "Service").get(name, {"spec": {"clusterIP": "None"}})["spec"]
        if spec.get("clusterIP") != "None" or spec.get("publishNotReadyAddresses"):
            yield f"Service/{name}: does not give each ready pod's address"


def check_autoscaling(objects: Objects) -> Iterator[str]:
    """Autoscalers that let go of pods quickly, or of the last one."""
    for scaler in of_kind(objects, "ScaledObject"):
        spec = scaler["spec"]
        behavior = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("behavior", {})
        yield from _hasty(scaler, spec["minReplicaCount"], spec["maxReplicaCount"], behavior)
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        spec = scaler["spec"]
        yield from _hasty(scaler, spec["minReplicas"], spec["maxReplicas"], spec.get("behavior", {}))


def _hasty(scaler: Manifest, least: int, most: int, behavior: Manifest) -> Iterator[str]:
    if not 2 <= least < most:
        yield f"{name_of(scaler)}: scales from {least} to {most}"
    if behavior.get("scaleDown", {}).get("stabilizationWindowSeconds", 0) < SLOW_SCALE_DOWN_S:
        yield f"{name_of(scaler)}: lets go of pods at once"


def check_writable(objects: Objects) -> Iterator[str]:
    """Pods that have nowhere to write a temporary file."""
    for one in pods(objects):
        for container in one.spec["containers"]:
            image = container["image"]
            writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
            if "semspec-" in image and "/tmp" not in writable:
                yield f"{one}: cannot write to /tmp"


def has_gpus(one: Pod, count: int) -> bool:
    """Whether its container asks for just as many."""
    return int(one.main["resources"]["limits"].get(GPU, 0)) == count
