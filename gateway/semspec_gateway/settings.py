"""The gateway's settings, validated before it opens a socket."""

import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from semspec.certificates import check_authority, check_pair
from semspec.keys import read_entries
from semspec.rpc.resolver import parse_endpoints
from semspec.settings import MEBIBYTE, ProcessSettings, SettingObject, checked, shared
from semspec_gateway.options import Defaults
from semspec_gateway.releases import load_served_release

MAX_CHOICES = 8
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_LOGPROBS = 20

NO_VERIFIER = "none"
"""Address of the verifier of a pair without probes."""
Addresses = Annotated[str, checked(parse_endpoints)]
_ADDRESS = "host:port of the {} service, or several with commas; a host may have many addresses, one a replica"


class AuditOptions(SettingObject):
    """How accepted segments are judged again."""

    share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="of accepted segments; each is judged in memory, while there is capacity to spare",
    )
    samples: int = Field(
        8, ge=3, le=64, description="samples of the target for each segment judged again"
    )
    tolerance: float = Field(
        0.02,
        ge=0,
        le=0.2,
        description="how much less often than the target's own segments the accepted ones may have its support before "
        "the alarm",
    )
    max_running: int = Field(
        0, ge=0, description="most generations running while the audit works; more pause it"
    )
    strictness: float | None = Field(
        None,
        ge=0,
        le=1,
        description="strictness of requests that choose none while the alarm stands; unset: that of all",
    )


class GatewaySettings(ProcessSettings):
    """Settings of the gateway."""

    model_config = SettingsConfigDict(env_prefix="SEMSPEC_GATEWAY_")

    port: int = Field(8080, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")

    cors_origins: str | None = Field(
        None,
        description="origins whose web pages may call this gateway, such as https://app.example.com, separated by "
        "commas or white space; * allows all, unset none",
    )

    auth: Literal["keys", "none"] = Field(
        "keys", description="keys asks every client for an API key, none lets everyone in"
    )
    api_keys_file: Annotated[Path | None, checked(lambda file: read_entries("", file))] = Field(
        None,
        description="file with NAME:SHA256 of each API key, one a line; it is read again whenever it changes",
    )
    api_keys: SecretStr = Field(
        SecretStr(""),
        validate_default=True,
        description="NAME:SHA256 of each API key, separated by commas or white space; `semspec key NAME` makes one",
    )

    draft_address: Addresses = Field(
        "127.0.0.1:50051", min_length=1, description=_ADDRESS.format("draft")
    )
    target_address: Addresses = Field(
        "127.0.0.1:50052", min_length=1, description=_ADDRESS.format("target")
    )
    verifier_address: Annotated[
        str, checked(lambda given: given == NO_VERIFIER or parse_endpoints(given))
    ] = Field(
        "127.0.0.1:50053",
        min_length=1,
        description=f"{_ADDRESS.format('verifier')}; {NO_VERIFIER}: the pair has no probes",
    )
    health_timeout_s: float = Field(
        5.0, gt=0, description="silence after which a replica is given up, in seconds"
    )
    service_ca: Annotated[Path | None, checked(check_authority)] = Field(
        None,
        description="PEM file of the authority that signs the services' certificates; unset speaks without TLS",
    )
    service_certificate: Path | None = Field(
        None, description="PEM file of the certificate shown to the services"
    )
    service_key: Path | None = Field(None, description="PEM file of that certificate's private key")
    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        description="where traces and sessions live: redis://, rediss:// or unix://",
    )

    model_name: str = Field(
        "",
        pattern=r"^[\w./-]{0,128}$",
        description="the pair's name in the API: letters, digits, . / - _; unset: the release's, without one "
        "semspec-demo",
    )
    pair: Path | None = Field(
        None,
        description="release that is served: its folder or pair.json; unset: the pair has no release",
    )
    defaults: Defaults = Field(
        Defaults(),
        validate_default=True,
        description='defaults for what a request leaves out, as a JSON object, such as {"strategy": "target", '
        '"max_tokens": 8192}; docs/settings.md has the keys',
    )
    max_concurrent: int = Field(
        32, ge=1, description="most generations running at once; a request has at most 8 of them"
    )
    max_concurrent_per_key: int | None = Field(
        None,
        ge=1,
        description="most generations of one API key running at once; unset: max_concurrent",
    )
    max_queued: int = Field(
        64, ge=0, description="most requests waiting for room; 0 refuses at once"
    )
    queue_timeout_s: float = Field(
        10.0, gt=0, description="longest a request waits for room, in seconds"
    )
    max_body_bytes: int = Field(
        MEBIBYTE, ge=1024, description="largest request body, and text of a session, in bytes"
    )
    max_generation_bytes: int = Field(
        16 * MEBIBYTE, ge=1024, description="largest stored trace, in bytes"
    )

    audit: AuditOptions = Field(
        AuditOptions(),
        description='audit of accepted segments, as a JSON object, such as {"share": 0.01}; docs/settings.md has the '
        "keys; unset: none",
    )

    load_adaptive: bool = Field(
        False,
        description="true lets the target write segments alone while it serves more tokens/s without drafts; answers "
        "then depend on the load, except those of requests with a seed",
    )

    ttl_s: int = Field(86_400, ge=1, description="seconds an untouched trace or session is kept")
    writer_lease_s: float = Field(
        6.0, ge=1, description="seconds a dead gateway holds its generations"
    )
    redis_timeout_s: float = Field(
        0.5, gt=0, le=10, description="longest wait for one answer of Redis, in seconds"
    )
    generation_deadline_s: float | None = Field(
        None,
        gt=0,
        description="longest a generation may take, in seconds; unset: 600, or 0.1 for each token of its budget if "
        "that is more",
    )
    target_patience_s: float | None = Field(
        None,
        ge=0,
        description="longest wait of a running generation for a lost target, in seconds; unset: 300, or twice what "
        "it took to load",
    )
    send_timeout_s: float = Field(
        60.0, gt=0, description="longest a client may take to read what was sent, in seconds"
    )
    keep_alive_s: int = Field(
        75,
        ge=1,
        description="seconds that an idle connection is kept open; more than the idle time of a load balancer in front",
    )
    settle_s: float = shared(
        "SETTLE_S",
        0.0,
        "seconds from announcing the shutdown to refusing connections",
        ge=0,
        le=300,
    )
    grace_s: float = shared(
        "GRACE_S",
        20.0,
        "seconds for running requests to end at shutdown; less than the services'",
        ge=0,
        le=3600,
    )

    prompt_tokens_details: bool = Field(
        False,
        description="true tells how many prompt tokens the target had cached; all owners share the cache, so the "
        "number shows whether another owner's prompt began alike",
    )

    log_prompts: bool = Field(
        False, description="true logs each prompt and answer; they are nowhere else in a log"
    )

    @cached_property
    def name(self) -> str:
        """The pair's name in the API."""
        release = load_served_release(self.pair, self.defaults)
        return self.model_name or (release.pair.name if release else "semspec-demo")

    @property
    def max_choices(self) -> int:
        """The most choices of one request, which all run at once."""
        return min(
            MAX_CHOICES, self.max_concurrent, self.max_concurrent_per_key or self.max_concurrent
        )

    @property
    def origins(self) -> list[str]:
        """The origins of `cors_origins`."""
        return (self.cors_origins or "").replace(",", " ").split()

    @field_validator("pair", "defaults")
    @classmethod
    def _can_be_served(
        cls, given: Path | Defaults | None, info: ValidationInfo
    ) -> Path | Defaults | None:
        load_served_release(
            *(
                (info.data.get("pair"), given)
                if isinstance(given, Defaults)
                else (given, Defaults())
            )
        )
        return given

    @field_validator("cors_origins")
    @classmethod
    def _has_origins(cls, origins: str | None) -> str | None:
        for origin in (origins or "").replace(",", " ").split():
            if origin != "*" and not re.fullmatch(r"https?://[^/?#@]+", origin):
                raise ValueError(
                    f"{origin} is not an origin; write https://HOST or https://HOST:PORT, without a path"
                )
        return origins

    @field_validator("api_keys")
    @classmethod
    def _has_any_key(cls, api_keys: SecretStr, info: ValidationInfo) -> SecretStr:
        entries = read_entries(api_keys.get_secret_value(), info.data.get("api_keys_file"))
        if not entries and info.data.get("auth") == "keys" and "api_keys_file" in info.data:
            raise ValueError(
                "there is no API key, so every request would be refused; SEMSPEC_GATEWAY_AUTH=none accepts all"
            )
        return api_keys

    @field_validator("service_key")
    @classmethod
    def _needs_tls(cls, service_key: Path | None, info: ValidationInfo) -> Path | None:
        check_pair(info.data.get("service_certificate"), service_key)
        if service_key and "service_ca" in info.data and info.data["service_ca"] is None:
            raise ValueError("a certificate is shown over TLS only; set service_ca")
        return service_key

    @field_validator("redis_url")
    @classmethod
    def _has_known_scheme(cls, redis_url: SecretStr) -> SecretStr:
        if not redis_url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        for authority in parse_qs(urlsplit(redis_url.get_secret_value()).query).get(
            "ssl_ca_certs", ()
        ):
            check_authority(Path(authority))
        return redis_url
