"""The cluster runs the images that docker-compose.yml runs."""

from pathlib import Path

import pytest

from tests.compose.support import SECRETS, TENSOR_PARALLEL, TWO_GPU, VLLM, composed
from tests.manifests.kustomize import ENGINES, Build, has_tool
from tests.manifests.objects import pods

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_tool(), reason="neither kubectl nor kustomize is installed")]


def compose_images(*overlays: Path) -> dict[str, str]:
    """By service."""
    services = composed(SECRETS | {"SEMSPEC_PAIR": "/srv/pair"}, *overlays)
    return {name: service["image"] for name, service in services.items()}


def cluster_images(build: Build) -> dict[str, str]:
    return {one.name: one.main["image"] for one in pods(build.objects()) if one.is_served}


@pytest.mark.parametrize(
    ("build", "overlays"),
    [
        (Build("cpu"), []),
        (Build("two-gpu"), [TWO_GPU]),
        (Build("scaled"), [TWO_GPU]),
        (Build("two-gpu", ENGINES[:1]), [TWO_GPU, VLLM]),
        (Build("scaled", ENGINES), [TWO_GPU, VLLM, TENSOR_PARALLEL]),
    ],
    ids=str,
)
def test_images_are_those_of_compose(build: Build, overlays: list[Path]) -> None:
    on_cpus = {"verifier": compose_images()["verifier"]}  # a cluster's GPUs are for models
    assert cluster_images(build) == compose_images(*overlays) | on_cpus
