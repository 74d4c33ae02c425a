"""docker-compose.yml and its overlays, held to the code and to what a cautious reviewer asks for."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from semspec import __version__
from semspec.engine.vllm.options import VLLM_VERSIONS
from semspec.keys import Keys
from semspec.settings import described
from semspec.stack import BUNDLED_PAIR
from semspec_gateway.app import STORED_WITHIN_S
from tests.compose.support import (
    BASE,
    ROOT,
    SECRETS,
    SETTINGS,
    TWO_GPU,
    Json,
    MissingVariable,
    composed,
)

PAIR = {"SEMSPEC_PAIR": "/srv/pair"}
VARIANTS: dict[str, tuple[Path, ...]] = {
    "base": (),
    "two-gpu": (TWO_GPU,),
    "separate": (TWO_GPU, TWO_GPU.with_name("separate.yml")),
}
EXAMPLE = (ROOT / ".env.example").read_text()


@pytest.fixture(params=VARIANTS)
def services(request: pytest.FixtureRequest) -> Json:
    return composed(SECRETS | PAIR, *VARIANTS[request.param])


def gpus(service: Json) -> list[str]:
    reservations = service["deploy"]["resources"].get("reservations", {})
    return [gpu for device in reservations.get("devices", []) for gpu in device["device_ids"]]


def settings_of(service: Json, role: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings the container's process would read, where the bundled pair is what is mounted."""
    for name, value in service["environment"].items():
        if value is not None:
            monkeypatch.setenv(name, value.replace("/models/", f"{BUNDLED_PAIR}/"))
    return SETTINGS[role]()


@pytest.mark.parametrize("role", [*SETTINGS, "redis"])
def test_service_is_hardened(services: Json, role: str) -> None:
    service = services[role]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] and service["restart"] == "unless-stopped"
    assert not {"privileged", "cap_add", "pid", "network_mode", "ipc"} & set(service)
    assert service["healthcheck"]["start_period"] and service["logging"]["options"]["max-size"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}


@pytest.mark.parametrize("role", SETTINGS)
def test_environment_names_known_settings(services: Json, role: str) -> None:
    known = {setting.variable for setting in described(SETTINGS[role])}
    assert set(services[role]["environment"]) - known <= {"HF_TOKEN"}


@pytest.mark.parametrize("role", ["draft", "target", "gateway"])
def test_environment_accepted(services: Json, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(services[role], role, monkeypatch)
    assert settings.service_token.get_secret_value() == SECRETS["SEMSPEC_SERVICE_TOKEN"]


def test_gateway_finds_services(services: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(services["gateway"], "gateway", monkeypatch)
    for role in ("draft", "target", "verifier"):
        port = SETTINGS[role].model_fields["port"].default
        assert getattr(settings, f"{role}_address") == f"{role}:{port}"
        assert set(services[role]["networks"]) & set(services["gateway"]["networks"])
    assert (
        settings.redis_url.get_secret_value()
        == f"redis://:{SECRETS['SEMSPEC_REDIS_PASSWORD']}@redis:6379/0"
    )
    assert set(services["gateway"]["depends_on"]) == set(services) - {"gateway"}
    assert all(
        other["condition"] == "service_healthy"
        for other in services["gateway"]["depends_on"].values()
    )


def test_only_the_gateway_is_published_and_on_this_machine_alone(services: Json) -> None:
    assert [role for role, service in services.items() if "ports" in service] == ["gateway"]
    assert services["gateway"]["ports"] == [
        f"127.0.0.1:8080:{SETTINGS['gateway'].model_fields['port'].default}"
    ]
    assert services["redis"]["networks"] == ["store"]
    assert [role for role, service in services.items() if "store" in service["networks"]] == [
        "redis",
        "gateway",
    ]


def test_work_ends_before_the_kill(services: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = settings_of(services["gateway"], "gateway", monkeypatch)
    draft = settings_of(services["draft"], "draft", monkeypatch)
    drains = (gateway.settle_s + gateway.grace_s + STORED_WITHIN_S, draft.settle_s + draft.grace_s)
    for service in services.values():
        assert float(service["stop_grace_period"].removesuffix("s")) > max(drains)


def test_images_carry_this_version(services: Json) -> None:
    for role in SETTINGS:
        build = services[role]["build"]
        is_vllm = build["dockerfile"] == "deploy/vllm.Dockerfile"
        assert is_vllm == (
            services[role]["environment"].get(f"SEMSPEC_{role.upper()}_ENGINE") == "vllm"
        )
        variant = "-vllm" if is_vllm else "-cuda" if gpus(services[role]) else ""
        assert services[role]["image"] == f"ghcr.io/semspec/semspec-{role}:{__version__}{variant}"
        assert build["args"].get("TORCH_VARIANT") == ("cuda" if variant == "-cuda" else None)
        assert build["args"].get("ROLE") == (role if is_vllm else None)
        assert (ROOT / build["dockerfile"]).is_file()
    assert re.fullmatch(r"redis:\d+\.\d+-alpine", services["redis"]["image"])


@pytest.mark.parametrize("variant", ["two-gpu", "separate"])
def test_vllm_has_the_gpus_that_it_uses(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    services = composed(SECRETS | PAIR, *VARIANTS[variant])
    for role in ("draft", "target"):
        settings = settings_of(services[role], role, monkeypatch)
        assert settings.vllm_options.tensor_parallel_size == len(gpus(services[role]))
        assert len(gpus(services[role])) == 1 or "shm_size" in services[role]
        is_alone = not set(gpus(services[role])) & set(gpus(services["verifier"]))
        assert is_alone is (settings.vllm_options.gpu_memory_utilization is not None)
        assert settings.engine == "vllm"
        assert all("exec" in mount for mount in services[role]["tmpfs"])


def test_image_of_vllm_is_of_a_version_that_the_engine_knows() -> None:
    build = composed(SECRETS | PAIR, *VARIANTS["two-gpu"])["target"]["build"]
    [default] = re.findall(
        r"^ARG BASE_IMAGE=(.+)$", (ROOT / build["dockerfile"]).read_text(), re.MULTILINE
    )
    assert build["args"]["BASE_IMAGE"] == default
    assert default.partition(":v")[2].startswith(VLLM_VERSIONS[0])


@pytest.mark.parametrize("missing", SECRETS)
def test_without_a_secret_the_variable_and_the_remedy_are_named(missing: str) -> None:
    given = {name: value for name, value in SECRETS.items() if name != missing}
    with pytest.raises(MissingVariable, match=rf"{missing}: run scripts/docker-env"):
        composed(given)


@pytest.mark.parametrize("overlays", VARIANTS.values(), ids=VARIANTS)
def test_no_secret_is_written_in(overlays: tuple[Path, ...]) -> None:
    for service in composed(dict.fromkeys(SECRETS, "SECRET") | PAIR, *overlays).values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"(TOKEN|KEYS|PASSWORD|AUTH|URL)$", name):
                assert value is None or "SECRET" in value
    assert not re.search(r"requirepass (?!\$\$REDISCLI_AUTH)", BASE.read_text())


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """scripts/docker-env in a checkout of its own."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".env.example").write_text(EXAMPLE)
    return Path(shutil.copy(ROOT / "scripts" / "docker-env", tmp_path / "scripts"))


def test_script_writes_secrets_that_fit(tmp_path: Path, script: Path) -> None:
    said = subprocess.run([script], check=True, capture_output=True, text=True).stdout
    written = dict(re.findall(r"^([A-Z_]+)=(.+)$", (tmp_path / ".env").read_text(), re.MULTILINE))
    assert set(written) == set(SECRETS) and len(set(written.values())) == len(SECRETS)
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    assert all(re.fullmatch(r"[0-9a-f]{64}", written[name]) for name in list(SECRETS)[1:])
    [key] = re.findall(r"sk-\S+", said)
    assert Keys(written["SEMSPEC_GATEWAY_API_KEYS"], None).owner(key.encode()) == "me"

    again = subprocess.run([script], capture_output=True, text=True)
    assert again.returncode == 1 and ".env is there already" in again.stderr


def test_script_passes_no_secret_as_argument(tmp_path: Path, script: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "bin"
    folder.mkdir()
    for name in ("cut", "dirname", "od", "sed", "sha256sum", "shasum", "tr"):
        if found := shutil.which(name):
            (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\nexec {found} "$@"\n')
            (folder / name).chmod(0o755)
    subprocess.run([script], check=True, capture_output=True, env={"PATH": str(folder)})
    assert "od -An" in log.read_text() and not re.search(r"[0-9a-f]{64}", log.read_text())


@pytest.mark.parametrize("random", ["", "echo deadbeef", f"echo {'g' * 64}"])
def test_script_needs_random_bytes(tmp_path: Path, script: Path, random: str) -> None:
    (tmp_path / "od").write_text(f"#!/bin/sh\n{random}\n")
    (tmp_path / "od").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([script], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "no 64 hex digits" in done.stderr
    assert not (tmp_path / ".env").exists()
