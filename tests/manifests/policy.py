"""What a reviewer asks of manifests, whatever they run."""

import re
from typing import Any

from tests.manifests.kustomize import Objects
from tests.manifests.objects import named, of_kind, pods, volumes

UID = 10001
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
HOST = ("hostNetwork", "hostPID", "hostIPC", "hostUsers")
SECRET_NAME = re.compile(r"(TOKEN|PASSWORD|KEYS?|AUTH|REDIS_URL)$")
HEADLESS = ("draft", "target", "verifier", "redis")


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
