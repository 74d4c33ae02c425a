"""What a user is told to run works: configurations, manifests, and the commands and errors of docs/probes.md."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from semspec import cli as semspec_cli
from semspec.clustering.nli import EntailmentConfig
from semspec.errors import InvalidRequest
from semspec.training import cli
from semspec.training.config import (
    DatastoreConfig,
    PipelineConfig,
    ServerSampler,
    load_config,
    read_config,
)
from semspec.training.preset import laptop_preset, limit_questions
from semspec.training.trainer.probes import Variants
from semspec.training.trainer.recipe import FitRecipe
from tests.manifests.policy import CONFINED

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/demo/semspec_demo"
REAL_PAIRS = sorted((ROOT / "semspec/training/configs").glob("*.yaml"))
DEPLOYMENT = ROOT / "deploy" / "kubernetes" / "probe-training"
GUIDE = (ROOT / "docs" / "probes.md").read_text()

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


def test_datastore_of_the_bundled_pair_leaves_the_reports_questions_out() -> None:
    config = read_config(DEMO / "datastore.yaml", DatastoreConfig)
    splits = {source.arguments["split"]: source.role for source in config.questions}
    assert splits == {"probe": "train", "report": "test"}


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


def test_missing_block_is_named_with_an_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert (
        workers["completionMode"] == "Indexed" and workers["parallelism"] <= workers["completions"]
    )
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


def test_failed_pods_are_tried_again_unless_the_command_line_is_wrong() -> None:
    for job in jobs().values():
        assert (job.get("backoffLimit") or job["backoffLimitPerIndex"]) > 0
        ignored, fatal = job["podFailurePolicy"]["rules"]
        assert ignored == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        assert fatal["onExitCodes"] == {"containerName": "semspec", "operator": "In", "values": [2]}


def test_pods_are_confined_and_write_to_writable_mounts() -> None:
    pod = yaml.safe_load((DEPLOYMENT / "pod.yaml").read_text())["spec"]["template"]["spec"]
    [one] = pod["containers"]
    assert (
        pod["automountServiceAccountToken"] is False
        and pod["securityContext"]["runAsNonRoot"] is True
    )
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one["securityContext"] == CONFINED
    writable = [
        Path(mount["mountPath"]) for mount in one["volumeMounts"] if not mount.get("readOnly")
    ]
    written = [
        entry["value"]
        for entry in one["env"]
        if entry["name"] in ("HOME", "HF_HOME", "MPLCONFIGDIR")
    ]
    for path in map(Path, [*written, one["workingDir"]]):
        assert any(path.is_relative_to(mount) for mount in writable)


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
    options = [cli.parser().parse_args(words) for words in commands]
    assert {option.command for option in options} == {
        "estimate",
        "run",
        "status",
        "check",
        "calibrate",
    }
    configs = [option.config for option in options if getattr(option, "config", None)]
    assert len(configs) >= 5 and all((ROOT / config).is_file() for config in configs)


def test_serve_commands_of_the_guide_name_what_the_configuration_makes() -> None:
    commands = [words[1:] for words in shell_commands() if words[:2] == ["semspec", "serve"]]
    config = load_config(ROOT / "semspec/training/configs/r1-1.5b-r1-32b.yaml")
    pairs = {semspec_cli.parser([]).parse_args(words).pair for words in commands}
    assert pairs == {str(config.output), "probes/quick"}  # with labels, and from prompts alone


@pytest.mark.parametrize("fragment", yaml_blocks())
def test_settings_in_the_guide_are_settings(fragment: str) -> None:
    base = yaml.safe_load(REAL_PAIRS[0].read_text())
    PipelineConfig.model_validate(base | yaml.safe_load(fragment))
