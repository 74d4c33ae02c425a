"""Finding one's way in manifests."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.manifests.kustomize import Manifest, Objects

WORKLOADS = ("Deployment", "StatefulSet")
GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as some workload makes it."""

    owner: Manifest
    labels: Mapping[str, str]
    spec: Manifest

    def __str__(self) -> str:
        return name_of(self.owner)

    @property
    def name(self) -> str:
        return str(self.owner["metadata"]["name"])

    @property
    def is_served(self) -> bool:
        """Whether it runs until told to stop."""
        return self.owner["kind"] in WORKLOADS

    @property
    def main(self) -> Manifest:
        """Its one container that serves."""
        [container] = self.spec["containers"]
        return dict(container)

    @property
    def containers(self) -> list[Manifest]:
        """Those that prepare, then those that serve."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        return {
            port["name"]: port["containerPort"]
            for one in self.containers
            for port in one.get("ports", ())
        }

    @property
    def has_gpu(self) -> bool:
        return any(GPU in one.get("resources", {}).get("limits", {}) for one in self.containers)


def name_of(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def of_kind(objects: Objects, *kinds: str) -> list[Manifest]:
    return [manifest for manifest in objects if manifest["kind"] in kinds]


def named(objects: Objects, kind: str) -> dict[str, Manifest]:
    return {manifest["metadata"]["name"]: manifest for manifest in of_kind(objects, kind)}


def pods(objects: Objects) -> list[Pod]:
    owners = of_kind(objects, *WORKLOADS, "Job")
    templates = [(owner, owner["spec"]["template"]) for owner in owners]
    return [
        Pod(owner, template["metadata"]["labels"], template["spec"])
        for owner, template in templates
    ]


def pod(objects: Objects, name: str) -> Pod:
    [found] = [one for one in pods(objects) if one.name == name]
    return found


def selected(objects: Objects, selector: Manifest) -> list[Pod]:
    """The pods of a label selector; an empty one takes all."""
    return [one for one in pods(objects) if _matches(selector, one.labels)]


def _matches(selector: Manifest, labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items()
    expressions = selector.get("matchExpressions", ())
    assert all(expression["operator"] == "In" for expression in expressions)
    return wanted <= labels.items() and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )


def mounts(container: Manifest) -> dict[str, str]:
    """Volume by path."""
    return {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", ())}


def volumes(one: Pod) -> dict[str, Manifest]:
    claims = one.owner["spec"].get("volumeClaimTemplates", ())
    own = {volume["name"]: volume for volume in one.spec.get("volumes", ())}
    return own | {claim["metadata"]["name"]: {"claimTemplate": claim} for claim in claims}


def bytes_of(quantity: str) -> int:
    """Of a quantity of memory, in binary units."""
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti)?", quantity)
    assert found, quantity
    return int(found[1]) << (10 * ("", "Ki", "Mi", "Gi", "Ti").index(found[2] or ""))


def references(value: Any, *keys: str) -> Iterator[Manifest]:
    """Every object under one of the keys, however deep: `secretKeyRef`, `configMapRef`."""
    children: Iterable[Any] = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    if isinstance(value, dict):
        yield from (value[key] for key in keys if isinstance(value.get(key), dict))
    for child in children:
        yield from references(child, *keys)
