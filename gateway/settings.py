"""What a gateway can be told, checked before it opens a socket."""

from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from semspec.core import Segmentation, Strategy

MAX_GAMMA = 8
MAX_CHOICES = 8


class GatewaySettings(BaseSettings):
    """Environment variables `SEMSPEC_GATEWAY_*`."""

    model_config = SettingsConfigDict(env_prefix="SEMSPEC_GATEWAY_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    draft_address: str = Field("127.0.0.1:50051", description="host:port of the draft service.")
    target_address: str = Field("127.0.0.1:50052", description="host:port of the target service.")
    verifier_address: str = Field("127.0.0.1:50053", description="host:port of the verifier service.")
    service_token: SecretStr = Field(SecretStr(""), description="Bearer token of the internal services; empty: none.")
    redis_url: str = Field("redis://127.0.0.1:6379/0", pattern="^(rediss?|unix)://", description="Where contexts live.")

    model_name: str = Field("semspec-demo", pattern=r"^[\w./-]{1,128}$", description="Name of the pair in the API.")
    default_strategy: Strategy = "semantic"
    default_gamma: int = Field(1, ge=1, le=MAX_GAMMA, description="Segments drafted before the target reads them.")
    default_segmentation: Segmentation = Segmentation.PARAGRAPH
    default_acceptance_rule: str = Field("sample", pattern="^(sample|threshold)$", description="sample or threshold.")
    default_threshold: float = Field(0.5, ge=0, allow_inf_nan=False, description="Ratio the rule threshold asks for.")
    default_temperature: float = Field(0.6, ge=0, le=2, allow_inf_nan=False)
    default_top_p: float = Field(0.95, gt=0, le=1, allow_inf_nan=False)
    default_max_tokens: int = Field(1024, ge=1, description="Cut to what the model's window leaves.")

    max_n: int = Field(MAX_CHOICES, ge=1, le=MAX_CHOICES, description="Choices of one request.")
    max_concurrent: int = Field(32, ge=1, description="Generations running at once, over all requests.")
    max_body_bytes: int = Field(1 << 20, ge=1024)
    max_session_bytes: int = Field(1 << 20, ge=1024, description="Text of all turns of one session.")
    max_generation_bytes: int = Field(16 << 20, ge=1024, description="Stored trace of one generation.")

    ttl_s: int = Field(24 * 3600, ge=1, description="How long an untouched trace or session is kept.")
    session_lease_s: float = Field(30.0, ge=1, description="After this a dead gateway's hold on a session ends.")
    redis_timeout_s: float = Field(0.5, gt=0, le=10, description="Longest wait for any one answer of Redis.")
    flush_timeout_s: float = Field(2.0, gt=0, le=30, description="Longest wait for the trace before the last event.")
    generation_deadline_s: float = Field(600.0, gt=0, description="Longest a request may take.")
    encode_deadline_s: float = Field(10.0, gt=0, description="Longest the target may take to tokenize a prompt.")
    handshake_deadline_s: float = Field(3.0, gt=0, description="Longest a service may take to say what it serves.")
    handshake_interval_s: float = Field(10.0, gt=0, description="Pause between handshakes while all is well.")
    recheck_s: float = Field(1.0, gt=0, description="Pause between handshakes while a service is missing.")
    drain_s: int = Field(20, ge=0, description="Time running requests get to finish after SIGTERM.")

    log_level: str = Field("info", pattern="^(debug|info|warning|error|critical)$")
    log_json: bool = False

    @model_validator(mode="after")
    def _room_for_one_request(self) -> Self:
        if self.max_concurrent < self.max_n:
            raise ValueError(f"max_concurrent ({self.max_concurrent}) must be at least max_n ({self.max_n})")
        return self
