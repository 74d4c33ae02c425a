"""The cluster runs the images that docker-compose.yml runs."""

import re
from pathlib import Path

import pytest
import yaml

from tests.manifests.kustomize import ROOT, Build, has_tool
from tests.manifests.objects import pods

pytestmark = pytest.mark.skipif(not has_tool(), reason="neither kubectl nor kustomize is installed")

BASE, TWO_GPU = ROOT / "docker-compose.yml", ROOT / "deploy" / "compose" / "two-gpu.yml"


def compose_images(*files: Path) -> dict[str, str]:
    """By service; of `${NAME:-default}` the default."""
    services = [yaml.safe_load(file.read_text())["services"] for file in files]
    found = {name: one["image"] for file in services for name, one in file.items() if "image" in one}
    return {name: re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", image) for name, image in found.items()}


def cluster_images(overlay: str) -> dict[str, str]:
    return {one.name: one.main["image"] for one in pods(Build(overlay).objects()) if one.is_served}


@pytest.mark.parametrize(
    ("overlay", "files"), [("cpu", [BASE]), ("two-gpu", [BASE, TWO_GPU]), ("scaled", [BASE, TWO_GPU])]
)
def test_images_are_those_of_compose(overlay: str, files: list[Path]) -> None:
    on_cpus = {"verifier": compose_images(BASE)["verifier"]}  # a cluster's GPUs are for models
    assert cluster_images(overlay) == compose_images(*files) | on_cpus
