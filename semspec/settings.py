"""Settings from environment variables: one class per deployable, built and checked in `__main__` before models load."""

import argparse
import os
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    DirectoryPath,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from semspec.certificates import check_authority, check_pair
from semspec.errors import InvalidRequest
from semspec.text import is_utf8
from semspec.types import MIN_CONTEXT_TOKENS

EXIT_BAD_SETTINGS = 2
"""Exit code of a process with invalid settings."""

RENAMED = {"TOKEN": "SERVICE_TOKEN", "DRAIN_S": "GRACE_S"}
"""Shared variables that had a process's prefix and another name."""
SIMILARITY = 0.9
"""Of a variable to a shared one from which it is taken for a mistake; none of another process is so similar."""
UNSET = (None, PydanticUndefined, "")
"""Defaults of settings that have no value unless they are set."""

MEBIBYTE = 1 << 20

S = TypeVar("S", bound=BaseSettings)


def shared(name: str, default: object, description: str, **bounds: Any) -> Any:
    """A field with the same variable in all processes; those of other fields begin with the process's prefix."""
    return Field(default, validation_alias=f"SEMSPEC_{name}", description=description, **bounds)


class ProcessSettings(BaseSettings):
    """Settings of every process. An empty variable counts as unset."""

    model_config = SettingsConfigDict(
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        populate_by_name=True,
        loc_by_alias=False,
    )

    host: str = shared("HOST", "127.0.0.1", "address to listen on; 0.0.0.0 or :: for all interfaces", min_length=1)
    tls_certificate: Path | None = shared(
        "TLS_CERTIFICATE", None, "PEM file of the certificate chain of this process as a server; unset: without TLS"
    )
    tls_key: Path | None = shared("TLS_KEY", None, "PEM file of the certificate's private key")
    service_token: SecretStr | None = shared(
        "SERVICE_TOKEN", None, "bearer token that the gateway sends and services require; unset: none"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = shared(
        "LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING or ERROR"
    )
    log_json: bool = shared("LOG_JSON", False, "true logs JSON lines instead of key=value")

    @field_validator("tls_key")
    @classmethod
    def _has_its_certificate(cls, tls_key: Path | None, info: ValidationInfo) -> Path | None:
        check_pair(info.data.get("tls_certificate"), tls_key)
        return tls_key


class ServiceSettings(ProcessSettings):
    """Settings of every gRPC service."""

    port: int = Field(0, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")
    port_file: Path | None = shared("PORT_FILE", None, "file to write the bound port to once the service is ready")
    tls_client_ca: Path | None = shared(
        "TLS_CLIENT_CA", None, "PEM file of the CA of required client certificates; unset requires none"
    )
    settle_s: float = shared(
        "SETTLE_S",
        1.0,
        "seconds from reporting NOT_SERVING to refusing new calls, so that clients choose other replicas",
        ge=0,
        le=300,
    )
    grace_s: float = shared("GRACE_S", 25.0, "seconds for running calls to end at shutdown", ge=0, le=3600)
    stall_s: float = shared(
        "STALL_S",
        30.0,
        "seconds without a step, while there is work, after which the model is taken to hang; more than the slowest "
        "step takes",
        gt=0,
    )
    threads: int = Field(1, ge=1, le=1024, description="CPU threads of the model; at most the cores it has to itself")

    @field_validator("tls_client_ca")
    @classmethod
    def _client_ca_requires_tls(cls, tls_client_ca: Path | None, info: ValidationInfo) -> Path | None:
        if tls_client_ca:
            check_authority(tls_client_ca)
            if info.data.get("tls_certificate") is None:
                raise ValueError("client certificates require TLS; set tls_certificate and tls_key")
        return tls_client_ca


class SettingObject(BaseModel):
    """The value of a variable that is a JSON object."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class VllmOptions(SettingObject):
    """Fields of vLLM's `AsyncEngineArgs` that an operator sets. None runs code of a checkpoint, and none but
    `quantization`, which is part of the fingerprint, changes the model."""

    tensor_parallel_size: int = Field(1, ge=1, le=1024, description="GPUs that share each layer")
    pipeline_parallel_size: int = Field(1, ge=1, le=1024, description="groups of layers on GPUs")
    quantization: str | None = Field(
        None, min_length=1, description="quantisation at the start, such as fp8; unset: as in the checkpoint"
    )
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the memory for weights, keys and values; unset: 0.9 of a GPU, and kv_bytes for keys and "
        "values on a CPU",
    )
    max_num_batched_tokens: int = Field(
        2048,
        ge=32,
        le=1 << 20,
        description="tokens of a step; (layers + 1) x tokens x hidden size is the memory of their states",
    )
    max_num_seqs: int = Field(64, ge=1, le=4096, description="requests of a step")
    enforce_eager: bool | None = Field(None, description="true: without CUDA graphs; unset: on a CPU alone")
    distributed_executor_backend: Literal["mp", "ray"] | None = Field(
        None, description="how the processes of several GPUs are started; unset: as vLLM chooses"
    )


class ModelSettings(ServiceSettings):
    """Additional settings of the services that run a language model."""

    model: str = Field(min_length=1, description="directory or Hugging Face id of the model to serve")
    revision: str | None = Field(None, description="branch, tag or commit of a Hugging Face model")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="float32, bfloat16, float16, or auto: float32 on a CPU, bfloat16 on a GPU"
    )
    engine: Literal["auto", "transformers", "fast", "vllm"] = Field(
        "auto",
        description="transformers (any causal LM), fast (own decoder of Qwen2 and Llama), vllm (many users, several "
        "GPUs, quantisation), or auto: fast if supported, else transformers",
    )
    cache_bytes: int = Field(1 << 30, ge=0, description="keys and values kept between calls (prefix cache), in bytes")
    kv_bytes: int = Field(
        4 << 30,
        ge=0,
        description="keys and values of running calls and of the prefix cache together, in bytes; beyond it, calls "
        "wait, or are evicted and computed again",
    )
    probes: DirectoryPath | None = Field(
        None,
        description="folder of the pair's probes, whose first layers the engine computes, so that it sends 256 numbers "
        "a segment instead of its states; SIGHUP has it read again; unset: none",
    )
    max_context_tokens: int | None = Field(
        None,
        ge=MIN_CONTEXT_TOKENS,
        description="cap on prompt and output together; unset: the model's context window",
    )
    vllm_options: VllmOptions = Field(
        VllmOptions(),
        description='with the engine vllm, options of vLLM as a JSON object, such as {"tensor_parallel_size": 2}; '
        "docs/settings.md has the keys",
    )

    @model_validator(mode="after")
    def _vllm_has_its_settings(self) -> Self:
        if self.engine != "vllm" and self.vllm_options != VllmOptions():
            raise ValueError("vllm_options: only for the engine vllm; set engine=vllm, or unset them")
        return self


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable, as `--help` and docs/settings.md show it."""

    variable: str
    values: str
    default: str | None
    """None: it has no value unless it is set."""
    is_required: bool
    description: str

    @property
    def default_text(self) -> str:
        """What it is where it is not set."""
        return "required" if self.is_required else "unset" if self.default is None else self.default


def described(settings_class: type[BaseModel]) -> Iterator[Setting]:
    """Every setting of a class, inherited ones first, or every key of an object that is a setting."""
    schema = settings_class.model_json_schema(by_alias=False)
    for name, field in schema["properties"].items():
        default = settings_class.model_fields[name].get_default()
        if isinstance(default, SecretStr):  # a default is no secret
            default = default.get_secret_value()
        if isinstance(default, BaseModel):
            default = {}
        yield Setting(
            _variable(settings_class, name),
            _values(schema, field),
            None if default in UNSET else str(default).lower() if isinstance(default, bool) else str(default),
            name in schema.get("required", ()),
            field.get("description", ""),
        )


def _values(schema: dict[str, Any], field: dict[str, Any]) -> str:
    """The values that a field of a JSON schema takes, in words."""
    if "$ref" in field:
        return _values(schema, schema["$defs"][field["$ref"].rpartition("/")[2]])
    if "anyOf" in field:
        return " or ".join(_values(schema, one) for one in field["anyOf"] if one.get("type") != "null")
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    kinds = {"string": "text", "boolean": "true, false"}
    kind = "file or folder" if "path" in field.get("format", "") else kinds.get(field["type"], field["type"])
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{words} {field[name]:.12g}" for name, words in bounds.items() if name in field]
    return ", ".join([kind, *limits])


def parse_command(settings_class: type[S], prog: str) -> S:
    """Settings of a process that has no arguments but `--help`, which lists the variables. See `load_settings`."""
    lines = []
    for one in described(settings_class):
        values = "" if one.values in one.description else f" ({one.values})"
        lines += [f"{one.variable} [{one.default_text}]", *textwrap.wrap(one.description + values, 100)]
    listed = "\n".join(line if line.startswith("SEMSPEC_") else f"    {line}" for line in lines)
    parser = argparse.ArgumentParser(
        prog=prog,
        description=f"Settings are environment variables, in brackets their defaults:\n\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    return load_settings(settings_class)


def load_settings(settings_class: type[S]) -> S:
    """Settings from the environment of this process. Invalid ones end it with exit code 2 and one line."""
    try:
        return read_settings(settings_class)
    except InvalidRequest as error:
        sys.stderr.write(f"cannot start: {error.message}\n")
        raise SystemExit(EXIT_BAD_SETTINGS) from None


def read_settings(settings_class: type[S]) -> S:
    """Settings from the environment of this process.

    Raises: InvalidRequest, in one line that names each missing, invalid or unknown variable and its valid values. The
    line does not repeat values, since some are secret.
    """
    try:
        problems = _unknown_variables(settings_class) + _unreadable_variables(settings_class)
        if not problems:
            return settings_class()
    except OSError as error:  # of a path that no file can have
        names = [name for name in _variables(settings_class) if os.environ.get(name) == error.filename]
        problems = [f"{', '.join(names)}: {error.strerror}"]
    except ValidationError as error:
        problems = [_problem(settings_class, [*detail["loc"]], detail["msg"]) for detail in error.errors()]
    except SettingsError as error:
        name = str(error).split('"')[1]  # 'error parsing value for field "defaults" from source ...'
        problems = [f"{_variable(settings_class, name)}: Input should be a JSON object"]
    raise InvalidRequest("; ".join(problems))


def _problem(settings_class: type[BaseSettings], location: list[int | str], complaint: str) -> str:
    name = str(location[0]) if location else ""
    field = settings_class.model_fields.get(name)
    remedy = f" ({field.description})" if field and field.description else ""
    part = "".join(f"{key}: " for key in location[1:])
    return f"{_variable(settings_class, name)}: {part}{complaint}{remedy}"


def _unknown_variables(settings_class: type[BaseSettings]) -> list[str]:
    """Variables with this process's prefix that it does not have, and misspelt shared ones. Other processes may have
    other shared ones."""
    prefix, known = _prefix(settings_class), _variables(settings_class)
    shared = [name for name in known if not name.startswith(prefix)]
    problems = []
    for name in sorted(os.environ):
        if not prefix or name.upper() in known:
            continue
        if name.upper().startswith(prefix):
            problems.append(f"{name}: no such setting{_suggestion(name.upper(), prefix, known)}")
        elif similar := get_close_matches(name.upper(), shared, 1, SIMILARITY):
            problems.append(f"{name}: no such setting, did you mean {similar[0]}?")
    return problems


def _unreadable_variables(settings_class: type[BaseSettings]) -> list[str]:
    values = {name: os.environ.get(name, "") for name in _variables(settings_class)}
    return [f"{name}: its value is not UTF-8" for name, value in values.items() if not is_utf8(value)]


def _suggestion(name: str, prefix: str, known: list[str]) -> str:
    suffix = name.removeprefix(prefix)
    shared = f"SEMSPEC_{RENAMED.get(suffix, suffix)}"
    objects = [one for one in known if name.startswith(f"{one}_")]
    matches = [shared] if shared in known else objects or get_close_matches(name, known, 1)
    return f", did you mean {matches[0]}?" if matches else f"; unset it, or choose from {', '.join(known)}"


def _variables(settings_class: type[BaseSettings]) -> list[str]:
    return [_variable(settings_class, name) for name in settings_class.model_fields]


def _variable(settings_class: type[BaseModel], name: str) -> str:
    alias = settings_class.model_fields[name].validation_alias if name else None
    return str(alias or f"{_prefix(settings_class)}{name}".upper())


def _prefix(settings_class: type[BaseModel]) -> str:
    return str(settings_class.model_config.get("env_prefix") or "")
