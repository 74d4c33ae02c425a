"""What a user is told to run works: configurations, manifests, and the commands and errors of docs/probes.md."""

import argparse
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from semspec import cli as semspec_cli
from semspec.clustering.nli import EntailmentConfig
from semspec.commands.options import stack_config
from semspec.demo.probe_data import solutions
from semspec.errors import InvalidRequest
from semspec.training import cli, collect
from semspec.training.config import (
    DatastoreConfig,
    PipelineConfig,
    ServerSampler,
    load_config,
    quick,
    read_config,
)

ROOT = Path(__file__).resolve().parents[2]
REAL_PAIRS = sorted((ROOT / "training" / "configs").glob("*.yaml"))
DEPLOYMENT = ROOT / "deploy" / "kubernetes" / "probe-training"
GUIDE = (ROOT / "docs" / "probes.md").read_text()

Manifest = dict[str, Any]


def parsed(arguments: list[str]) -> argparse.Namespace:
    if arguments[0] == "collect":
        return collect.parser().parse_args(arguments[1:])
    return cli._parser().parse_args(arguments)


# Configurations


@pytest.mark.parametrize(
    "path", [*REAL_PAIRS, *sorted((ROOT / "demo").glob("probes*.yaml"))], ids=lambda path: path.stem
)
def test_configuration_loads(path: Path) -> None:
    assert load_config(path).samples.num_samples == 20


@pytest.mark.parametrize("path", [*REAL_PAIRS, ROOT / "demo" / "probes.yaml"], ids=lambda path: path.stem)
def test_quick_preset_fits_on_some_600_contexts(path: Path) -> None:
    config, whole = quick(load_config(path)), load_config(path)
    limits = {role: [one.limit or 0 for one in config.questions if one.role == role] for role in ("train", "test")}
    fitted = 1 - whole.shares.validation - whole.shares.calibration - (0 if limits["test"] else whole.shares.test)
    assert config.contexts.per_question is not None
    assert 500 < sum(limits["train"]) * config.contexts.per_question * fitted < 800
    assert sum(limits["test"]) <= 60 and config.name == f"{whole.name}-quick" and not config.report.variants
    assert PipelineConfig.model_validate(config.model_dump()) == config
    unchanged = {"questions", "contexts", "report", "name"}
    assert config.model_dump(exclude=unchanged) == whole.model_dump(exclude=unchanged)


def test_preset_is_refused_for_a_datastore(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["datastore", "--preset", "quick", "--config", str(ROOT / "demo" / "datastore.yaml")])
    assert ended.value.code == 2 and "--preset is for probes" in capsys.readouterr().err


def test_datastore_of_the_bundled_pair_leaves_the_reports_questions_out() -> None:
    config = read_config(ROOT / "demo" / "datastore.yaml", DatastoreConfig)
    splits = {source.arguments["split"]: source.role for source in config.questions}
    assert splits == {"probe": "train", "report": "test"}


def test_datastore_of_a_million_entries_takes_given_answers() -> None:
    config = read_config(ROOT / "studies" / "retrieval" / "million.yaml", DatastoreConfig)
    [source] = config.questions
    assert config.answers.source == "data" and source.trace in next(solutions("probe")) and source.limit == 5600


@pytest.mark.parametrize("path", REAL_PAIRS, ids=lambda path: path.stem)
def test_real_pair_is_pinned_and_as_large_as_the_papers(path: Path) -> None:
    config = load_config(path)
    assert isinstance(config.equivalence, EntailmentConfig)
    revisions = [config.draft.revision, config.target.revision, config.equivalence.revision]
    revisions += [source.revision for source in config.questions]
    assert all(re.fullmatch(r"[0-9a-f]{40}", revision or "") for revision in revisions)
    assert path.stem == config.name == config.output.name
    num_contexts = 1000 * (config.contexts.per_question or 0)
    assert num_contexts * 2 * config.samples.num_samples == 400_000
    assert config.prompt.template.endswith("\\boxed{}.") and "\n" in config.prompt.template


@pytest.mark.parametrize("path", REAL_PAIRS, ids=lambda path: path.stem)
def test_commented_alternatives_load(path: Path, tmp_path: Path) -> None:
    text = re.sub(r"^  # (?=sampler:|- hub:|  \w+: )", "  ", path.read_text(), flags=re.MULTILINE)
    (tmp_path / "pair.yaml").write_text(text)
    config = load_config(tmp_path / "pair.yaml")
    for model in (config.draft, config.target):
        assert isinstance(model.sampler, ServerSampler) and model.sampler.model == model.model
    assert config.evaluation_sets[-1].hub_config == "gpqa_diamond"


def test_unknown_setting_is_named(tmp_path: Path) -> None:
    text = REAL_PAIRS[0].read_text().replace("rows_at_once", "rows_at_onec")
    (tmp_path / "pair.yaml").write_text(text)
    with pytest.raises(InvalidRequest, match=r"samples\.rows_at_onec: no such setting"):
        load_config(tmp_path / "pair.yaml")


# Kubernetes


def documents(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((DEPLOYMENT / name).read_text()))


def jobs() -> dict[str, Manifest]:
    return {job["metadata"]["name"]: job["spec"] for job in documents("job.yaml")}


def shared_pod() -> Manifest:
    [patch] = documents("pod.yaml")
    pod: Manifest = patch["spec"]["template"]["spec"]
    return pod


def container(pod: Manifest) -> Manifest:
    [one] = pod["containers"]
    assert isinstance(one, dict)
    return one


def test_cluster_trains_the_pair_of_the_guide() -> None:
    assert (DEPLOYMENT / "pair.yaml").read_text() == (ROOT / "training" / "configs" / "r1-1.5b-r1-32b.yaml").read_text()


def test_jobs_run_commands_that_exist() -> None:
    assert container(shared_pod())["command"] == ["semspec", "train"]
    commands = {name: container(job["template"]["spec"])["args"][0] for name, job in jobs().items()}
    assert commands == {
        "probe-training-estimate": "estimate",
        "probe-training-workers": "run",
        "probe-training-report": "run",
    }
    assert parsed(container(jobs()["probe-training-report"]["template"]["spec"])["args"]).shard == (0, 1)


def test_workers_share_all_shards_among_them() -> None:
    workers = jobs()["probe-training-workers"]
    assert workers["completionMode"] == "Indexed" and workers["parallelism"] <= workers["completions"]
    arguments = container(workers["template"]["spec"])["args"]
    shares = [
        parsed([argument.replace("$(JOB_COMPLETION_INDEX)", str(index)) for argument in arguments]).shard
        for index in range(workers["completions"])
    ]
    assert shares == [(index, workers["completions"]) for index in range(workers["completions"])]


def test_later_jobs_wait_to_be_resumed() -> None:
    assert {name: job.get("suspend", False) for name, job in jobs().items()} == {
        "probe-training-estimate": False,
        "probe-training-workers": True,
        "probe-training-report": True,
    }


def test_failed_pods_are_tried_again_unless_the_command_line_is_wrong() -> None:
    for job in jobs().values():
        assert (job.get("backoffLimit") or job["backoffLimitPerIndex"]) > 0
        assert job["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy wants this"
        ignored, fatal = job["podFailurePolicy"]["rules"]
        assert ignored == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        assert fatal["onExitCodes"] == {"containerName": "semspec", "operator": "In", "values": [2]}
    with pytest.raises(SystemExit) as exit_info:
        parsed(["run"])
    assert exit_info.value.code == 2


def test_mounts_have_volumes_and_volumes_have_sources() -> None:
    pod, [claim] = shared_pod(), documents("storage.yaml")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container(pod)["volumeMounts"]} == set(volumes)
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    [generated] = documents("kustomization.yaml")[0]["configMapGenerator"]
    assert volumes["config"]["configMap"]["name"] == generated["name"]
    [config_mount] = [mount for mount in container(pod)["volumeMounts"] if mount["name"] == "config"]
    for job in jobs().values():
        config = parsed(container(job["template"]["spec"])["args"][:2]).config
        assert str(config.parent) == config_mount["mountPath"] and config.name in generated["files"]


def test_everything_written_lies_on_a_writable_mount() -> None:
    one = container(shared_pod())
    writable = [Path(mount["mountPath"]) for mount in one["volumeMounts"] if not mount.get("readOnly")]
    written = [entry["value"] for entry in one["env"] if entry["name"] in ("HOME", "HF_HOME", "MPLCONFIGDIR")]
    assert len(written) == 3
    for path in map(Path, [*written, one["workingDir"]]):
        assert any(path.is_relative_to(mount) for mount in writable)
    assert not load_config(DEPLOYMENT / "pair.yaml").output.is_absolute(), "relative to the working directory"


def test_pods_are_confined() -> None:
    pod, one = shared_pod(), container(shared_pod())
    assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for kind in ("requests", "limits"):
        assert {"cpu", "memory", "nvidia.com/gpu"} <= one["resources"][kind].keys()


def test_kustomization_names_files_and_image_that_exist() -> None:
    [kustomization] = documents("kustomization.yaml")
    patches = kustomization["patches"]
    [generated] = kustomization["configMapGenerator"]
    for name in (*kustomization["resources"], *generated["files"], *(patch["path"] for patch in patches)):
        assert (DEPLOYMENT / name).is_file()
    assert patches == [{"path": "pod.yaml", "target": {"kind": "Job"}}]
    assert [image["name"] for image in kustomization["images"]] == [container(shared_pod())["image"]]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_whole_jobs(tmp_path: Path) -> None:
    folder = shutil.copytree(DEPLOYMENT, tmp_path / "probe-training")
    text = (folder / "job.yaml").read_text()
    (folder / "job.yaml").write_text(text.replace("completions: 2", "completions: 7"))
    output = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True).stdout
    built = {job["metadata"]["name"]: job for job in yaml.safe_load_all(output) if job["kind"] == "Job"}
    assert built.keys() == jobs().keys()
    for job in built.values():
        assert container(job["spec"]["template"]["spec"])["securityContext"]["readOnlyRootFilesystem"] is True
        assert container(job["spec"]["template"]["spec"])["image"] != "semspec-training"
    workers = built["probe-training-workers"]["spec"]["template"]["spec"]
    assert container(workers)["args"][-1] == "--shard=$(JOB_COMPLETION_INDEX)/7"


# The guide


def shell_commands() -> Iterator[list[str]]:
    """Words of every command in the guide's shell blocks, without assignments before it."""
    for block in re.findall(r"^```sh\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"^\w+=", words[0]):
                words.pop(0)
            yield [word for word in words if word != "&"]


def yaml_blocks() -> list[str]:
    inline = re.findall(r"`((?:probes|report|segmentation|truth): ?[^`\n]*)`", GUIDE)
    return re.findall(r"^```yaml\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL) + inline


def test_train_commands_of_the_guide_parse() -> None:
    commands = [words[2:] for words in shell_commands() if words[:2] == ["semspec", "train"]]
    assert [str(parsed(words).output) for words in commands if words[0] == "collect"] == ["traffic/r1"]
    options = [parsed(words) for words in commands if words[0] != "collect"]
    assert {option.command for option in options} == {"estimate", "run", "status", "check", "calibrate"}
    assert [option.shard for option in options if option.command == "run"] == [(0, 1), (0, 2), (1, 2), (0, 1)]
    assert all((ROOT / option.config).is_file() for option in options)


def test_serve_commands_of_the_guide_name_what_the_configuration_makes() -> None:
    commands = [words[1:] for words in shell_commands() if words[:2] == ["semspec", "serve"]]
    bare, whole = (semspec_cli._parser([]).parse_args(words) for words in commands)
    config = load_config(ROOT / "training" / "configs" / "r1-1.5b-r1-32b.yaml")
    for options in (bare, whole):
        assert (options.draft_model, options.target_model) == (config.draft.model, config.target.model)
    assert (whole.draft_probe.parent, whole.target_probe.parent) == (config.output, config.output)
    assert bare.likelihood == config.output / "likelihood.json"
    assert not stack_config(bare).has_probes and stack_config(whole).has_probes


def test_revisions_of_the_guide_are_the_configurations() -> None:
    config = load_config(ROOT / "training" / "configs" / "r1-1.5b-r1-32b.yaml")
    assert set(re.findall(r"\b[0-9a-f]{40}\b", GUIDE)) == {config.draft.revision, config.target.revision}


def test_guide_names_the_clusters_jobs_in_their_order() -> None:
    commands = "\n".join(" ".join(words) for words in shell_commands() if words[:1] == ["kubectl"])
    assert list(dict.fromkeys(re.findall(r"probe-training-\w+", commands))) == list(jobs())


@pytest.mark.parametrize("fragment", yaml_blocks())
def test_settings_in_the_guide_are_settings(fragment: str) -> None:
    base = yaml.safe_load(REAL_PAIRS[0].read_text())
    PipelineConfig.model_validate(base | yaml.safe_load(fragment))
