"""What docs/kubernetes.md tells its reader to do works, and what it says of numbers is so."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.checks import problems
from tests.manifests.environment import SECRETS
from tests.manifests.kustomize import ENGINES, INCLUDED, OPTIONAL, ROOT, Build, build_folder, has_tool
from tests.manifests.objects import of_kind, pods

pytestmark = pytest.mark.slow
GUIDE = (ROOT / "docs" / "kubernetes.md").read_text()
wants_tool = pytest.mark.skipif(not has_tool(), reason="neither kubectl nor kustomize is installed")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)


def commands() -> Iterator[list[str]]:
    yield from (shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines())


def table(first: str) -> list[list[str]]:
    """The rows of the table whose head begins with a word."""
    rows = GUIDE.partition(f"\n| {first} |" if first else "\n| |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


def test_secrets_are_those_that_the_manifests_refer_to() -> None:
    created = [words for words in commands() if words[3:6] == ["create", "secret", "generic"]]
    keys = {words[6]: {words[7].removeprefix("--from-literal=").partition("=")[0]} for words in created}
    assert keys == {name: set(values) for name, values in SECRETS.items()}


def test_folders_and_files_are_there() -> None:
    paths = [word for words in commands() for word in words if word.startswith(("deploy/", "demo/"))]
    assert len(paths) == 4 and all((ROOT / path).exists() for path in paths)


def test_overlays_and_components_are_all_there_are() -> None:
    assert [row[0] for row in table("overlay")] == list(INCLUDED)
    assert [row[0].partition("`")[0] for row in table("component")] == [*ENGINES, *OPTIONAL]


@wants_tool
def test_numbers_of_replicas_are_those_of_the_autoscalers() -> None:
    objects = Build("scaled").objects()
    stated = {row[0]: (row[2].split()[0].rstrip("%"), row[3]) for row in table("workload")}
    for scaler in of_kind(objects, "ScaledObject"):
        spec = scaler["spec"]
        bounds = f"{spec['minReplicaCount']}, {spec['maxReplicaCount']}"
        assert stated[scaler["metadata"]["name"]] == (spec["triggers"][0]["metadata"]["threshold"], bounds)
    [verifier] = of_kind(objects, "HorizontalPodAutoscaler")
    share = verifier["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"]
    assert stated["verifier"] == (str(share), f"{verifier['spec']['minReplicas']}, {verifier['spec']['maxReplicas']}")


@wants_tool
def test_seconds_to_the_end_are_those_of_the_pods() -> None:
    rows = table("")
    assert len(rows) == 2
    for names, serves, _, killed in rows:
        for one in (one for one in pods(Build("cpu").objects()) if one.name in names.split(", ")):
            assert serves.startswith(f"{one.main['lifecycle']['preStop']['sleep']['seconds']} s")
            assert killed == f"{one.spec['terminationGracePeriodSeconds']} s"


@wants_tool
def test_kustomization_of_ones_own_builds(tmp_path: Path) -> None:
    [text] = [block for block in blocks("yaml") if "components:" in block]
    content: dict[str, Any] = yaml.safe_load(text)
    for kind in ("resources", "components"):
        content[kind] = [os.path.relpath(ROOT / path, tmp_path.resolve()) for path in content[kind]]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    objects = build_folder(tmp_path)
    assert problems(objects) == []
    assert any(one.main["image"].endswith("semspec-gateway@sha256:...") for one in pods(objects))


@wants_tool
def test_namespace_can_be_another(tmp_path: Path) -> None:
    path = os.path.relpath(ROOT / "deploy" / "kubernetes" / "overlays" / "two-gpu", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"namespace": "other", "resources": [path]}))
    assert problems(build_folder(tmp_path)) == []
