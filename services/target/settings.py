"""Settings of the target service, from `SEMSPEC_TARGET_*`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from semspec.settings import ModelSettings


class TargetSettings(ModelSettings):
    """What the target service's operator may choose."""

    model_config = SettingsConfigDict(env_prefix="SEMSPEC_TARGET_")

    port: int = Field(50052, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")
