"""Every overlay, with every set of components, is what it should be."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from tests.manifests.checks import check
from tests.manifests.custom import OWN_KINDS
from tests.manifests.kustomize import KUBERNETES, Build, builds, built_in, has_tool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_tool(), reason="neither kubectl nor kustomize is installed"),
]

BUILDS = list(builds())
VERSIONS = ("1.30", "1.34", "1.37")
"""Of Kubernetes: the oldest that the guide promises, and newer ones."""


def test_each_pair_of_components_is_built() -> None:
    known = {path.name for path in (KUBERNETES / "components").iterdir()} - {"gpu"}
    built = {frozenset(pair) for build in BUILDS for pair in combinations(build.components, 2)}
    assert built == {frozenset(pair) for pair in combinations(known, 2)}


@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_build_has_no_problems(build: Build) -> None:
    check(build.objects())


def test_namespace_can_be_another(tmp_path: Path) -> None:
    resources = [KUBERNETES / "overlays" / "two-gpu"]
    check(built_in(tmp_path, {"namespace": "other", "resources": resources}))


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    ).validate
    manifests = [
        manifest
        for build in BUILDS
        for manifest in build.objects()
        if manifest["kind"] not in OWN_KINDS
    ]
    for text in sorted({json.dumps(manifest) for manifest in manifests}):
        validate(json.loads(text), version, strict=True)
