"""What a user is told to run works: configurations, manifests, and the commands and errors of docs/probes.md."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from semspec.errors import InvalidRequest
from semspec.training import cli
from semspec.training.config import PipelineConfig, load_config
from semspec.training.preset import laptop_preset, limit_questions
from semspec.training.trainer.probes import Variants
from semspec.training.trainer.recipe import FitRecipe
from tests.manifests.policy import CONFINED

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/demo/semspec_demo"
REAL_PAIRS = sorted((ROOT / "semspec/training/configs").glob("*.yaml"))
DEPLOYMENT = ROOT / "deploy" / "kubernetes" / "probe-training"

Manifest = dict[str, Any]


# Configurations


@pytest.mark.parametrize(
    "path", [*REAL_PAIRS, *sorted(DEMO.glob("probes*.yaml"))], ids=lambda path: path.stem
)
def test_configuration_loads(path: Path) -> None:
    assert load_config(path).samples.num_samples == 20


@pytest.mark.parametrize("path", [*REAL_PAIRS, DEMO / "probes.yaml"], ids=lambda path: path.stem)
def test_laptop_preset_takes_as_many_questions_as_it_is_told(path: Path) -> None:
    whole = load_config(path)
    config = limit_questions(laptop_preset(whole), 100)
    limits = {
        role: [one.limit or 0 for one in config.questions if one.role == role]
        for role in ("train", "test")
    }
    assert sum(limits["train"]) == 100 and sum(limits["test"]) in (0, 24)
    assert config.contexts.per_question == 4 and config.samples.num_samples == 10
    assert config.name == f"{whole.name}-laptop" and not config.report.variants
    assert PipelineConfig.model_validate(config.model_dump()) == config
    unchanged = {"questions", "contexts", "samples", "report", "name"}
    assert config.model_dump(exclude=unchanged) == whole.model_dump(exclude=unchanged)


def test_domain_without_questions_is_refused_with_those_there_are() -> None:
    config = load_config(REAL_PAIRS[0]).model_copy(update={"probes": FitRecipe(domain="law")})
    with pytest.raises(InvalidRequest, match="there are math, science"):
        Variants.of(config, ["math", "science"])


def test_preset_is_refused_for_a_datastore(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["datastore", "--preset", "laptop", "--config", str(DEMO / "datastore.yaml")])
    assert ended.value.code == 2 and "arguments: --preset laptop" in capsys.readouterr().err


def test_missing_block_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pair.yaml").write_text(
        "name: x\ndraft: {}\nquestions: []\nequivalence: {model: y}\n"
    )
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--config", str(tmp_path / "pair.yaml")])
    [line] = capsys.readouterr().err.splitlines()
    examples = dict(re.findall(r"(\S+): missing; for example `(.+?)`", line))
    assert ended.value.code == 2
    assert examples.keys() == {"target", "draft.model", "questions", "equivalence", "output"}
    for example in examples.values():
        assert yaml.safe_load(example)


# Kubernetes


def jobs() -> dict[str, Manifest]:
    found = yaml.safe_load_all((DEPLOYMENT / "job.yaml").read_text())
    return {job["metadata"]["name"]: job["spec"] for job in found}


def arguments(job: Manifest) -> list[str]:
    [container] = job["template"]["spec"]["containers"]
    return [str(one) for one in container["args"]]


def test_cluster_trains_the_pair_of_the_guide() -> None:
    assert (DEPLOYMENT / "pair.yaml").read_text() == (
        ROOT / "semspec/training/configs/r1-1.5b-r1-32b.yaml"
    ).read_text()


def test_workers_share_all_shards_and_the_jobs_behind_them_wait() -> None:
    estimate, workers, report = jobs().values()
    assert workers["completionMode"] == "Indexed"
    assert workers["parallelism"] <= workers["completions"]
    num_workers, parse = workers["completions"], cli.parser().parse_args
    for index in range(num_workers):
        own = parse(
            [one.replace("$(JOB_COMPLETION_INDEX)", str(index)) for one in arguments(workers)]
        )
        assert own.shard == (index, num_workers)
    assert parse(arguments(estimate)).command == "estimate" and parse(arguments(report)).shard == (
        0,
        1,
    )
    assert [job.get("suspend", False) for job in (estimate, workers, report)] == [False, True, True]


def test_pods_are_confined_and_write_to_writable_mounts() -> None:
    pod = yaml.safe_load((DEPLOYMENT / "pod.yaml").read_text())["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == CONFINED
    mounts = [mount for mount in container["volumeMounts"] if not mount.get("readOnly")]
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    for path in (
        values["HOME"],
        values["HF_HOME"],
        values["MPLCONFIGDIR"],
        container["workingDir"],
    ):
        assert any(Path(path).is_relative_to(mount["mountPath"]) for mount in mounts), path
