"""Settings of the target service, from `SEMSPEC_TARGET_*`."""

from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from semspec.engine.settings import ModelSettings
from semspec.remote.client import Server
from semspec.settings import SettingObject


class WriterOptions(SettingObject):
    """A server that generates segments."""

    url: str = Field(
        pattern=r"^https?://", description="address of TGI, or of an OpenAI-compatible API with /v1"
    )
    api: Literal["tgi", "openai"] = Field("tgi", description="tgi or openai")
    model: str | None = Field(
        None,
        min_length=1,
        validate_default=True,
        description="the model's name there, for the API openai",
    )
    timeout_s: float = Field(
        60.0, gt=0, le=3600, description="longest wait for the next piece of text, in seconds"
    )

    @field_validator("model")
    @classmethod
    def _is_set_for_openai(cls, model: str | None, info: ValidationInfo) -> str | None:
        if model is None and info.data.get("api") == "openai":
            raise ValueError("required for the API openai")
        return model


class TargetSettings(ModelSettings):
    """Settings of the target service."""

    model_config = SettingsConfigDict(env_prefix="SEMSPEC_TARGET_")

    port: int = Field(
        50052, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one"
    )

    writer: WriterOptions | None = Field(
        None,
        description="server that generates segments with the same model instead of this engine, as a JSON object, such "
        'as {"url": "http://tgi:80"}; docs/settings.md has the keys',
    )
    writer_token: SecretStr | None = Field(
        None, description="bearer token for the writer; unset sends none"
    )

    @property
    def server(self) -> Server | None:
        """The server that generates segments; None: the local engine."""
        if self.writer is None:
            return None
        return Server(
            self.writer.api,
            self.writer.url,
            self.writer.model,
            self.writer_token.get_secret_value() if self.writer_token else None,
            self.writer.timeout_s,
            remedy="start it, or check SEMSPEC_TARGET_WRITER and SEMSPEC_TARGET_WRITER_TOKEN",
        )
