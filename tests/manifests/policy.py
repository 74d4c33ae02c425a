"""What a reviewer asks of manifests, whatever they run."""

import re
from typing import Any

from tests.manifests.kustomize import Manifest, Objects
from tests.manifests.objects import GPU, name_of, named, of_kind, pods, volumes

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


def check_confinement(objects: Objects) -> None:
    """Pods have no more rights than a process that computes and answers needs."""
    for one in pods(objects):
        context = one.spec.get("securityContext", {})
        assert context.get("runAsNonRoot"), one
        assert {context.get("runAsUser"), context.get("runAsGroup")} == {UID}, one
        assert context.get("seccompProfile") == {"type": "RuntimeDefault"}, one
        assert one.spec.get("automountServiceAccountToken") is False, (
            f"{one}: is given a token of the cluster's API"
        )
        assert one.spec.get("enableServiceLinks") is False, (
            f"{one}: is given variables of every Service"
        )
        shared = [
            *filter(one.spec.get, HOST),
            *(name for name, volume in volumes(one).items() if "hostPath" in volume),
        ]
        assert not shared, f"{one}: shares {shared} with its node"
        for container in one.containers:
            assert container.get("securityContext") == CONFINED, (
                f"{one}: {container['name']} is not confined"
            )
            assert not any("hostPort" in port for port in container.get("ports", ())), (
                f"{one}: takes a node's port"
            )


def check_accounts(objects: Objects) -> None:
    """Each pod has an account of its own, which mounts no token."""
    used = [one.spec.get("serviceAccountName", "default") for one in pods(objects)]
    assert len(set(used)) == len(used), f"pods share accounts: {used}"
    for account in of_kind(objects, "ServiceAccount"):
        assert account.get("automountServiceAccountToken") is False, (
            f"{name_of(account)}: mounts its token"
        )


def check_resources(objects: Objects) -> None:
    """Containers and volumes have limits."""
    for one in pods(objects):
        for container in one.containers:
            resources = container.get("resources", {})
            requests, limits = resources.get("requests", {}), resources.get("limits", {})
            assert {"cpu", "memory"} <= requests.keys() & limits.keys(), (
                f"{one}: {container['name']} has no limits"
            )
            assert requests.get(GPU) == limits.get(GPU), f"{one}: GPUs requested and limited differ"
        for name, volume in volumes(one).items():
            assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], (
                f"{one}: {name} has no limit"
            )


def check_images(objects: Objects) -> None:
    """No image may change under the same name."""
    for one in pods(objects):
        for container in one.containers:
            image = container["image"].rpartition("/")[2]
            tag = image.partition("@")[2] or image.partition(":")[2]
            assert tag not in ("", "latest"), f"{one}: {container['image']} is not pinned"


def check_secrets(objects: Objects) -> None:
    """No secret stands in the manifests, be it as an object or as a value."""
    assert of_kind(objects, "Secret") == []
    for one in pods(objects):
        for container in one.containers:
            for entry in container.get("env", ()):
                is_secret = SECRET_NAME.search(entry["name"]) and "$(" not in entry.get(
                    "value", "$("
                )
                assert not is_secret, f"{one}: {entry['name']} stands in the manifests"
    for name, config in named(objects, "ConfigMap").items():
        for key, value in config["data"].items():
            assert not SECRET_NAME.search(key) or str(value).startswith("/"), (
                f"ConfigMap/{name}: {key} is a secret"
            )


def check_disruptions(objects: Objects) -> None:
    """A node that is drained evicts one pod of a workload at a time, also an unhealthy one."""
    budgets = named(objects, "PodDisruptionBudget")
    for one in pods(objects):
        if one.is_served:
            budget = budgets[one.name]["spec"]
            assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (
                1,
                "AlwaysAllow",
            ), one


def check_rollout(objects: Objects) -> None:
    """Updates leave no gap where there is room for a further pod, and wait for no room that is not there."""
    for one in pods(objects):
        if one.owner["kind"] == "Deployment":
            rolling = one.owner["spec"].get("strategy", {}).get("rollingUpdate", {})
            wanted = (
                {"maxSurge": 0, "maxUnavailable": 1}
                if one.has_gpu
                else {"maxSurge": 1, "maxUnavailable": 0}
            )
            assert rolling == wanted, f"{one}: is updated by {rolling}, not {wanted}"
            apart = {spread["topologyKey"] for spread in one.spec["topologySpreadConstraints"]}
            assert apart == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}, (
                f"{one}: spreads over {apart}"
            )
        assert not one.is_served or one.spec["priorityClassName"] in named(
            objects, "PriorityClass"
        ), one


def check_namespace(objects: Objects) -> None:
    """The namespace admits only restricted pods, and no object is outside it."""
    for name, namespace in named(objects, "Namespace").items():
        labels = namespace["metadata"].get("labels", {})
        modes = {
            labels.get(f"pod-security.kubernetes.io/{mode}")
            for mode in ("enforce", "audit", "warn")
        }
        assert modes == {"restricted"}, f"Namespace/{name}: admits more than restricted pods"
    outside = ("Namespace", "PriorityClass")
    inside = {
        manifest["metadata"].get("namespace")
        for manifest in objects
        if manifest["kind"] not in outside
    }
    assert inside == set(named(objects, "Namespace"))


def check_discovery(objects: Objects) -> None:
    """Services have no virtual address where the caller chooses among pods."""
    for name in HEADLESS:
        spec: dict[str, Any] = named(objects, "Service").get(name, {"spec": {"clusterIP": "None"}})[
            "spec"
        ]
        is_headless = spec.get("clusterIP") == "None" and not spec.get("publishNotReadyAddresses")
        assert is_headless, f"Service/{name}: does not give each ready pod's address"


def check_autoscaling(objects: Objects) -> None:
    """Autoscalers let go of pods slowly, and not of the last two."""
    for scaler in of_kind(objects, "ScaledObject"):
        spec = scaler["spec"]
        behavior = (
            spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("behavior", {})
        )
        _check_pace(scaler, spec["minReplicaCount"], spec["maxReplicaCount"], behavior)
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        spec = scaler["spec"]
        _check_pace(scaler, spec["minReplicas"], spec["maxReplicas"], spec.get("behavior", {}))


def _check_pace(scaler: Manifest, least: int, most: int, behavior: Manifest) -> None:
    assert 2 <= least < most, f"{name_of(scaler)}: scales from {least} to {most}"
    pause_s = behavior.get("scaleDown", {}).get("stabilizationWindowSeconds", 0)
    assert pause_s >= SLOW_SCALE_DOWN_S, f"{name_of(scaler)}: lets go of pods at once"


def check_writable(objects: Objects) -> None:
    """Pods of ours have where to write a temporary file."""
    for one in pods(objects):
        for container in one.spec["containers"]:
            writable = {
                mount["mountPath"]
                for mount in container["volumeMounts"]
                if not mount.get("readOnly")
            }
            assert "semspec-" not in container["image"] or "/tmp" in writable, (
                f"{one}: cannot write to /tmp"
            )
