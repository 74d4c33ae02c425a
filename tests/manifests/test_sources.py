"""The files of deploy/kubernetes agree with each other and with what else says the same: no tool is wanted."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import semspec
from semspec.training.config import load_config
from tests.compose.support import SECRETS, TWO_GPU, composed
from tests.manifests.custom import ALERTS
from tests.manifests.kustomize import KUBERNETES, ROOT

pytestmark = pytest.mark.slow
FOLDERS = sorted(
    path.parent
    for path in KUBERNETES.rglob("kustomization.yaml")
    if path.parent.name != "probe-training"
)
GPU = KUBERNETES / "components" / "gpu"
PAIR = ROOT / "examples/demo/semspec_demo/pair"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def kustomization(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read(folder / "kustomization.yaml")
    return found


def settings(folder: Path) -> dict[str, str]:
    """Every setting that a kustomization adds."""
    generated = kustomization(folder)["configMapGenerator"]
    return dict(entry.split("=", 1) for config in generated for entry in config.get("literals", ()))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_file_is_used_and_every_used_file_is_there(folder: Path) -> None:
    content = kustomization(folder)
    named = [name for name in content.get("resources", ()) if name.endswith(".yaml")]
    named += [patch["path"] for patch in content.get("patches", ()) if "path" in patch]
    named += [
        name for config in content.get("configMapGenerator", ()) for name in config.get("files", ())
    ]
    assert sorted(named) == sorted(
        {path.name for path in folder.iterdir()} - {"kustomization.yaml"}
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_images_of_ours_are_of_this_version(folder: Path) -> None:
    images = [
        image
        for image in kustomization(folder).get("images", ())
        if image["name"].startswith("ghcr.io/semspec/")
    ]
    assert all(
        re.sub("-(cuda|vllm)$", "", image["newTag"]) == semspec.__version__ for image in images
    )


def test_bundled_pair_is_laid_out_as_the_pods_look_for_it() -> None:
    values = settings(KUBERNETES / "overlays" / "cpu") | settings(KUBERNETES / "base")
    paths = [
        value.removeprefix("/models/") for value in values.values() if value.startswith("/models/")
    ]
    assert len(paths) == 6 and all((PAIR / path).exists() for path in paths)


def test_real_pair_is_the_one_that_probes_are_trained_for() -> None:
    config, own = load_config(ROOT / "semspec/training/configs/r1-1.5b-r1-32b.yaml"), settings(GPU)
    assert own["SEMSPEC_GATEWAY_MODEL_NAME"] == config.name
    for role, model in (("DRAFT", config.draft), ("TARGET", config.target)):
        served = (
            own[f"SEMSPEC_{role}_MODEL"],
            own[f"SEMSPEC_{role}_REVISION"],
            own[f"SEMSPEC_{role}_DTYPE"],
        )
        assert served == (model.model, model.revision, model.dtype)


def test_real_pair_is_served_alike_by_compose() -> None:
    services = composed(
        SECRETS | {"SEMSPEC_PAIR": "/srv/pair"}, TWO_GPU, TWO_GPU.with_name("separate.yml")
    )
    theirs = {
        name: value
        for service in services.values()
        for name, value in service.get("environment", {}).items()
    }
    own = settings(GPU)
    assert theirs["SEMSPEC_DRAFT_KV_BYTES"] and json.loads(
        own.pop("SEMSPEC_DRAFT_VLLM_OPTIONS")
    )  # of a share
    assert {name for name in own if name not in theirs} == {
        "SEMSPEC_DRAFT_DTYPE",
        "SEMSPEC_TARGET_DTYPE",
    }  # auto
    assert {name: theirs[name] for name in own if name in theirs}.items() <= own.items()


def test_job_downloads_the_models_that_are_served() -> None:
    documents = list(
        yaml.safe_load_all((KUBERNETES / "overlays" / "scaled" / "models.yaml").read_text())
    )
    [job] = [
        document["spec"]["template"]["spec"] for document in documents if document["kind"] == "Job"
    ]
    own = settings(GPU)
    for container in [*job["initContainers"], *job["containers"]]:
        role = container["name"].upper()
        model, revision = own[f"SEMSPEC_{role}_MODEL"], own[f"SEMSPEC_{role}_REVISION"]
        assert container["args"] == [model, revision]


def test_alerts_are_those_of_prometheus() -> None:
    rules = read(KUBERNETES / "components" / "monitoring" / "alerts.yaml")
    assert rules["spec"] == read(ALERTS), "copy them as the head of the file says"
