"""Settings of the target service, from `SEMSPEC_TARGET_*`."""

from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from semspec.remote.client import Server
from semspec.settings import ModelSettings


class TargetSettings(ModelSettings):
    """Settings of the target service."""

    model_config = SettingsConfigDict(env_prefix="SEMSPEC_TARGET_")

    port: int = Field(50052, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")

    writer_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="address of a server that generates segments with the same model instead of this engine: TGI's, or "
        "an OpenAI-compatible API's with /v1",
    )
    writer_api: Literal["tgi", "openai"] = Field("tgi", description="API of writer_url: tgi or openai")
    writer_model: str | None = Field(
        None, min_length=1, validate_default=True, description="the model's name at writer_url, for the API openai"
    )
    writer_token: SecretStr | None = Field(None, description="bearer token for writer_url; unset sends none")
    writer_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="maximum wait for the next piece of text from writer_url, in seconds"
    )

    @field_validator("writer_model")
    @classmethod
    def _is_set_for_openai(cls, writer_model: str | None, info: ValidationInfo) -> str | None:
        if writer_model is None and info.data.get("writer_url") and info.data.get("writer_api") == "openai":
            raise ValueError("required for the API openai")
        return writer_model

    @property
    def writer(self) -> Server | None:
        """The server that generates segments; None: the local engine."""
        if self.writer_url is None:
            return None
        return Server(
            self.writer_api,
            self.writer_url,
            self.writer_model,
            self.writer_token.get_secret_value() if self.writer_token else None,
            self.writer_timeout_s,
            remedy="start it, or check SEMSPEC_TARGET_WRITER_URL, _API, _MODEL, _TOKEN and _TIMEOUT_S",
        )
