"""Does everything that a manifest names exist, and mean what the other side means?"""

from collections.abc import Iterator

from tests.manifests.environment import SECRETS, certificates
from tests.manifests.kustomize import Manifest, Objects
from tests.manifests.objects import (
    Pod,
    bytes_of,
    mounts,
    name_of,
    named,
    of_kind,
    pods,
    references,
    selected,
    volumes,
)

SELECTING = ("Service", "PodDisruptionBudget", "PodMonitor")


def check_selectors(objects: Objects) -> None:
    """Selectors take the pods they are named after."""
    for one in pods(objects):
        selector = one.owner["spec"].get("selector", {"matchLabels": one.labels})
        assert selected([one.owner], selector) == [one], f"{one}: its selector misses its own pods"
        for spread in one.spec.get("topologySpreadConstraints", ()):
            assert selected(objects, spread["labelSelector"]) == [one], f"{one}: spreads others"
    for manifest in of_kind(objects, *SELECTING):
        selector = manifest["spec"]["selector"]
        taken = selected(
            objects, {"matchLabels": selector} if manifest["kind"] == "Service" else selector
        )
        assert [one.name for one in taken] == [manifest["metadata"]["name"]], name_of(manifest)


def check_ports(objects: Objects) -> None:
    """Ports of Services and monitors are those of containers."""
    for service in of_kind(objects, "Service"):
        for one in selected(objects, {"matchLabels": service["spec"]["selector"]}):
            for port in service["spec"]["ports"]:
                assert one.ports.get(port["targetPort"]) == port["port"], name_of(service)
    for monitor in of_kind(objects, "PodMonitor"):
        known = {
            name for one in selected(objects, monitor["spec"]["selector"]) for name in one.ports
        }
        asked = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
        assert asked <= known, f"{name_of(monitor)}: {asked}"


def check_mounts(objects: Objects) -> None:
    """Each mount has a volume and each volume a mount, no two in one place."""
    for one in pods(objects):
        mounted = {name for container in one.containers for name in mounts(container).values()}
        assert mounted == volumes(one).keys(), f"{one}: mounts are not its volumes"
        for container in one.containers:
            assert len(mounts(container)) == len(container.get("volumeMounts", ())), one


def check_memory(objects: Objects) -> None:
    """Volumes in memory fit into half of the limit of their pod."""
    for pod in pods(objects):
        limits = [container["resources"]["limits"] for container in pod.spec["containers"]]
        limit_bytes = sum(bytes_of(limit["memory"]) for limit in limits)
        for volume in volumes(pod).values():
            medium = volume.get("emptyDir", {})
            if medium.get("medium") == "Memory":
                assert 2 * bytes_of(medium["sizeLimit"]) <= limit_bytes, f"{pod}: {volume}"


def check_sources(objects: Objects) -> None:
    """ConfigMaps, claims, accounts and keys of Secrets that pods use are there, and no ConfigMap is there in vain."""
    used_configs = set[str]()
    for one in pods(objects):
        for kind, names in _used(one).items():
            assert names <= named(objects, kind).keys(), f"{one}: a {kind} is missing"
        used_configs |= _used(one)["ConfigMap"]
    for name, config in named(objects, "ConfigMap").items():
        assert name in used_configs or "grafana_dashboard" in config["metadata"]["labels"], name
    issued = {
        one["spec"]["secretName"]: set(certificates()) for one in of_kind(objects, "Certificate")
    }
    secrets = {name: set(keys) for name, keys in SECRETS.items()} | issued
    for manifest in objects:
        for secret, key in _used_secrets(manifest):
            assert key in secrets[secret], f"{name_of(manifest)}: no {key} in {secret}"


def _used(one: Pod) -> dict[str, set[str]]:
    """What a pod refers to: names by kind."""
    configs = references(one.spec, "configMapRef", "configMapKeyRef", "configMap")
    return {
        "ConfigMap": {found["name"] for found in configs},
        "PersistentVolumeClaim": {
            found["claimName"] for found in references(one.spec, "persistentVolumeClaim")
        },
        "ServiceAccount": {one.spec.get("serviceAccountName", "default")},
    }


def _used_secrets(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Name and key; of a volume, which has all keys, the one that every Secret of its kind has."""
    for found in references(manifest, "secretKeyRef", "credentials", "secret"):
        name = found.get("name") or found["secretName"]
        yield name, found.get("key") or ("api-keys" if name == "api-keys" else "tls.crt")
