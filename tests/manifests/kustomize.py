"""The manifests of deploy/kubernetes as kustomize builds them, alone and with components."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
COMMANDS = {"kubectl": ("kubectl", "kustomize"), "kustomize": ("kustomize", "build")}
INCLUDED = {"cpu": (), "two-gpu": (), "scaled": ("monitoring",)}
"""Each overlay and the components that it has already."""
OPTIONAL = ("tensor-parallel", "monitoring", "ingress", "tls", "redis-external")
"""Components in the order in which the guide has them listed; the first one is for GPUs."""

Manifest = dict[str, Any]
Objects = list[Manifest]


@dataclass(frozen=True, slots=True)
class Build:
    """An overlay and what is added to it."""

    overlay: str
    components: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "+".join((self.overlay, *self.components))

    def objects(self) -> Objects:
        """Its manifests; the caller may change them."""
        return deepcopy(_built(self))


def builds() -> Iterator[Build]:
    """Yield every overlay alone, with each component that it has not, with each pair of them, and with all."""
    for overlay, included in INCLUDED.items():
        left_out = {*included, *(["tensor-parallel"] if overlay == "cpu" else [])}
        free = [component for component in OPTIONAL if component not in left_out]
        for size in (0, 1, 2, len(free)):
            yield from (Build(overlay, components) for components in combinations(free, size))


def has_tool() -> bool:
    """Whether anything here builds manifests."""
    return any(map(shutil.which, COMMANDS))


@cache
def _built(build: Build) -> Objects:
    with tempfile.TemporaryDirectory() as name:
        components = [KUBERNETES / "components" / component for component in build.components]
        resources = [KUBERNETES / "overlays" / build.overlay]
        return built_in(Path(name), {"resources": resources, "components": components})


def built_in(folder: Path, kustomization: Mapping[str, Any]) -> Objects:
    """The manifests of a kustomization in `folder`, from where its resources and components are looked for."""
    own = dict(kustomization)
    for kind in ("resources", "components"):
        own[kind] = [
            os.path.relpath(path, folder.resolve()) for path in kustomization.get(kind, ())
        ]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(own))
    command = next(command for tool, command in COMMANDS.items() if shutil.which(tool))
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))
