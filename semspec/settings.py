"""Settings from environment variables: one class per deployable, built and checked in `__main__` before models load."""

import argparse
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from semspec.certificates import check_authority, check_pair
from semspec.errors import InvalidRequest, SemspecError, is_utf8
from semspec.files import TooDeep, parse_json

EXIT_BAD_SETTINGS = 2
"""Exit code of a process with invalid settings."""

RENAMED = {"TOKEN": "SERVICE_TOKEN", "DRAIN_S": "GRACE_S"}
"""Shared variables that had a process's prefix and another name."""
SIMILARITY = 0.9
"""A variable at least this similar to a shared one is taken for a misspelling of it."""
UNSET = "unset"
"""Shown as the default of a setting that has none."""

MEBIBYTE = 1 << 20

S = TypeVar("S", bound=BaseSettings)


def shared(name: str, default: object, description: str, **bounds: Any) -> Any:
    """Return a field whose variable is the same in all processes, without the process's prefix."""
    return Field(default, validation_alias=f"SEMSPEC_{name}", description=description, **bounds)


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator of settings that are not empty: `check` raises ValueError or SemspecError."""

    def unchanged(value: Any) -> Any:
        try:
            if value:
                check(value)
        except SemspecError as error:
            raise ValueError(str(error)) from error
        return value

    return AfterValidator(unchanged)


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

    host: str = shared(
        "HOST", "127.0.0.1", "address to listen on; 0.0.0.0 or :: for all interfaces", min_length=1
    )
    tls_certificate: Path | None = shared(
        "TLS_CERTIFICATE",
        None,
        "PEM file of the certificate chain of this process as a server; unset: without TLS",
    )
    tls_key: Path | None = shared("TLS_KEY", None, "PEM file of the certificate's private key")
    service_token: SecretStr | None = shared(
        "SERVICE_TOKEN",
        None,
        "bearer token that the gateway sends and services require; unset: none",
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
    port_file: Path | None = shared(
        "PORT_FILE", None, "file to write the bound port to once the service is ready"
    )
    metrics_port: int | None = shared(
        "METRICS_PORT", None, "TCP port of its metrics; unset: none", ge=1, le=65535
    )
    tls_client_ca: Path | None = shared(
        "TLS_CLIENT_CA",
        None,
        "PEM file of the CA of required client certificates; unset requires none",
    )
    settle_s: float = shared(
        "SETTLE_S",
        1.0,
        "seconds from reporting NOT_SERVING to refusing new calls, so that clients choose other replicas",
        ge=0,
        le=300,
    )
    grace_s: float = shared(
        "GRACE_S", 25.0, "seconds for running calls to end at shutdown", ge=0, le=3600
    )
    stall_s: float = shared(
        "STALL_S",
        30.0,
        "seconds without a step, while there is work, after which the model is taken to hang; more than the slowest "
        "step takes",
        gt=0,
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="CPU threads of the model; without it one, or every core for packed weights",
    )

    @field_validator("tls_client_ca")
    @classmethod
    def _client_ca_requires_tls(
        cls, tls_client_ca: Path | None, info: ValidationInfo
    ) -> Path | None:
        if tls_client_ca:
            check_authority(tls_client_ca)
            if info.data.get("tls_certificate") is None:
                raise ValueError("client certificates require TLS; set tls_certificate and tls_key")
        return tls_client_ca


class SettingObject(BaseModel):
    """The value of a variable that is a JSON object."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable, as `--help` and docs/settings.md show it."""

    variable: str
    values: str
    default: str
    """Its value when it is not set; "required" or "unset" if it has none."""
    description: str


def described(settings_class: type[BaseModel]) -> Iterator[Setting]:
    """Yield every setting of a class, inherited ones first, or every key of an object that is a setting."""
    schema = settings_class.model_json_schema(by_alias=False)
    for name, field in schema["properties"].items():
        default = (
            "required"
            if name in schema.get("required", ())
            else _default(settings_class.model_fields[name])
        )
        description = field.get("description", "")
        yield Setting(_variable(settings_class, name), _values(schema, field), default, description)


def _default(field: FieldInfo) -> str:
    match field.get_default():
        case SecretStr() as default:  # a default is no secret
            return default.get_secret_value() or UNSET
        case BaseModel():
            return "{}"
        case bool() as default:
            return str(default).lower()
        case default:
            return UNSET if default in (None, "") else str(default)


def _values(schema: dict[str, Any], field: dict[str, Any]) -> str:
    """Describe the values that a field of a JSON schema takes."""
    if "$ref" in field:
        return _values(schema, schema["$defs"][field["$ref"].rpartition("/")[2]])
    if "anyOf" in field:
        return " or ".join(
            _values(schema, option) for option in field["anyOf"] if option.get("type") != "null"
        )
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    kinds = {"string": "text", "boolean": "true, false"}
    kind = (
        "file or folder"
        if "path" in field.get("format", "")
        else kinds.get(field["type"], field["type"])
    )
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    limits = [f"{words} {field[name]:.12g}" for name, words in bounds.items() if name in field]
    return ", ".join([kind, *limits])


def parse_command(settings_class: type[S], prog: str) -> S:
    """Load the settings of a process whose only argument is `--help`, which lists them. See `load_settings`."""
    lines = []
    for setting in described(settings_class):
        values = "" if setting.values in setting.description else f" ({setting.values})"
        lines += [
            f"{setting.variable} [{setting.default}]",
            *textwrap.wrap(setting.description + values, 100),
        ]
    listed = "\n".join(line if line.startswith("SEMSPEC_") else f"    {line}" for line in lines)
    parser = argparse.ArgumentParser(
        prog=prog,
        description=f"Settings are environment variables, in brackets their defaults:\n\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    return load_settings(settings_class)


def load_settings(settings_class: type[S]) -> S:
    """Read the settings from the environment; invalid ones end the process with exit code 2 and one line."""
    try:
        return read_settings(settings_class)
    except InvalidRequest as error:
        sys.stderr.write(f"cannot start: {error}\n")
        raise SystemExit(EXIT_BAD_SETTINGS) from None


def read_settings(settings_class: type[S]) -> S:
    """Read the settings from the environment of this process.

    Raises: InvalidRequest, in one line that names each missing, invalid or unknown variable and its valid values. The
    line does not repeat values, since some are secret.
    """
    try:
        problems = _unknown_variables(settings_class) + _unreadable_variables(settings_class)
        if not problems:
            return settings_class()
    except OSError as error:  # of a path that no file can have
        names = [
            name for name in _variables(settings_class) if os.environ.get(name) == error.filename
        ]
        problems = [f"{', '.join(names)}: {error.strerror}"]
    except ValidationError as error:
        problems = [_problem(settings_class, detail) for detail in error.errors()]
    except SettingsError as error:
        # 'error parsing value for field "defaults" from source ...'
        name = str(error).split('"')[1]
        problems = [f"{_variable(settings_class, name)}: Input should be a JSON object"]
    raise InvalidRequest("; ".join(problems))


def _problem(settings_class: type[BaseSettings], detail: ErrorDetails) -> str:
    name, *keys = map(str, detail["loc"] or ("",))
    field = settings_class.model_fields.get(name)
    remedy = f" ({field.description})" if field and field.description else ""
    part = "".join(f"{key}: " for key in keys)
    complaint = (
        "not among the keys, leave it out" if detail["type"] == "extra_forbidden" else detail["msg"]
    )
    return f"{_variable(settings_class, name)}: {part}{complaint}{remedy}"


def _unknown_variables(settings_class: type[BaseSettings]) -> list[str]:
    """List variables with this process's prefix that it does not have, and misspelt shared ones.

    Shared variables of other processes are not listed.
    """
    prefix, known = _prefix(settings_class), _variables(settings_class)
    shared = [name for name in known if not name.startswith(prefix)]
    problems = []
    for variable in sorted(os.environ):
        name = variable.upper()
        if not prefix or name in known:
            continue
        if not name.startswith(prefix):
            similar, rest = get_close_matches(name, shared, 1, SIMILARITY), ""
        else:
            suffix = name.removeprefix(prefix)
            plain = f"SEMSPEC_{RENAMED.get(suffix, suffix)}"
            similar = [plain] if plain in shared else get_close_matches(name, known, 1)
            rest = f"; unset it, or choose from {', '.join(known)}"
        if similar or rest:
            problems.append(
                f"{variable}: no such setting{f', did you mean {similar[0]}?' if similar else rest}"
            )
    return problems


def _unreadable_variables(settings_class: type[BaseSettings]) -> list[str]:
    values = {name: os.environ.get(name, "") for name in _variables(settings_class)}
    problems = {name: _unreadable_reason(value) for name, value in values.items()}
    return [f"{name}: {reason}" for name, reason in problems.items() if reason]


def _unreadable_reason(value: str) -> str:
    if not is_utf8(value):
        return "its value is not UTF-8"
    if value.lstrip().startswith(("{", "[")):
        try:
            parse_json(value)
        except TooDeep as error:
            return str(error)
        except ValueError:  # its field says what is wrong
            pass
    return ""


def _variables(settings_class: type[BaseSettings]) -> list[str]:
    return [_variable(settings_class, name) for name in settings_class.model_fields]


def _variable(settings_class: type[BaseModel], name: str) -> str:
    alias = settings_class.model_fields[name].validation_alias if name else None
    return str(alias or f"{_prefix(settings_class)}{name}".upper())


def _prefix(settings_class: type[BaseModel]) -> str:
    return str(settings_class.model_config.get("env_prefix") or "")
