"""What a reviewer asks of manifests, whatever they run."""

import re
from typing import Any

from tests.manifests.kustomize import Objects
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
        assert one.spec.get("automountServiceAccountToken") is False, f"{one}: has an API token"
        assert one.spec.get("enableServiceLinks") is False, f"{one}: has service variables"
        shared = [
            *filter(one.spec.get, HOST),
            *(name for name, volume in volumes(one).items() if "hostPath" in volume),
        ]
        assert not shared, f"{one}: shares {shared} with its node"
        for container in one.containers:
            assert container.get("securityContext") == CONFINED, f"{one}: is not confined"
            assert not any("hostPort" in port for port in container.get("ports", ())), one


def check_accounts(objects: Objects) -> None:
    """Each pod has an account of its own, which mounts no token."""
    accounts = [pod.spec.get("serviceAccountName", "default") for pod in pods(objects)]
    assert len(set(accounts)) == len(accounts), f"pods share accounts: {accounts}"
    for account in of_kind(objects, "ServiceAccount"):
        assert account.get("automountServiceAccountToken") is False, name_of(account)


def check_containers(objects: Objects) -> None:
    """Containers and volumes have limits, images are pinned, and our pods can write temporary files."""
    for pod in pods(objects):
        for container in pod.containers:
            name, resources = f"{pod}: {container['name']}", container.get("resources", {})
            requests, limits = resources.get("requests", {}), resources.get("limits", {})
            assert {"cpu", "memory"} <= requests.keys() & limits.keys(), f"{name} has no limits"
            assert requests.get(GPU) == limits.get(GPU), f"{name} requests other GPUs"
            image = container["image"].rpartition("/")[2]
            tag = image.partition("@")[2] or image.partition(":")[2]
            assert tag not in ("", "latest"), f"{name}: {container['image']} is not pinned"
        for container in pod.spec["containers"]:
            is_ours, found = "semspec-" in container["image"], container["volumeMounts"]
            writable = {mount["mountPath"] for mount in found if not mount.get("readOnly")}
            assert not is_ours or "/tmp" in writable, f"{pod}: cannot write to /tmp"
        for name, volume in volumes(pod).items():
            is_bounded = "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"]
            assert is_bounded, f"{pod}: {name} has no limit"


def check_updates(objects: Objects) -> None:
    """A drained node evicts one pod of a workload at a time; an update leaves no gap, and needs no second GPU."""
    budgets, priorities = (
        named(objects, kind) for kind in ("PodDisruptionBudget", "PriorityClass")
    )
    for pod in pods(objects):
        if pod.is_served:
            budget = budgets[pod.name]["spec"]
            assert budget["maxUnavailable"] == 1, pod
            assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow", pod
            assert pod.spec["priorityClassName"] in priorities, pod
        if pod.owner["kind"] == "Deployment":
            rolling = pod.owner["spec"].get("strategy", {}).get("rollingUpdate", {})
            surge = 0 if pod.has_gpu else 1
            assert rolling == {"maxSurge": surge, "maxUnavailable": 1 - surge}, f"{pod}: {rolling}"
            spreads = {spread["topologyKey"] for spread in pod.spec["topologySpreadConstraints"]}
            assert spreads == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}, pod


def check_autoscaling(objects: Objects) -> None:
    """Autoscalers remove pods slowly, keep two, and are the only ones to set the number of a Deployment."""
    targets = []
    for scaler in of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler"):
        spec, name = scaler["spec"], name_of(scaler)
        if scaler["kind"] == "ScaledObject":
            least, most = spec["minReplicaCount"], spec["maxReplicaCount"]
            behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        else:
            least, most, behavior = spec["minReplicas"], spec["maxReplicas"], spec["behavior"]
        assert 2 <= least < most, f"{name}: scales from {least} to {most}"
        pause_s = behavior["scaleDown"]["stabilizationWindowSeconds"]
        assert pause_s >= SLOW_SCALE_DOWN_S, f"{name}: removes pods at once"
        targets.append(spec["scaleTargetRef"]["name"])
    assert len(set(targets)) == len(targets), f"two autoscalers of one Deployment: {targets}"
    for target in targets:
        assert "replicas" not in named(objects, "Deployment")[target]["spec"], target


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
            assert not SECRET_NAME.search(key) or str(value).startswith("/"), f"{name}: {key}"


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
