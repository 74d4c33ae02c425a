"""Settings of the draft service, from `SEMSPEC_DRAFT_*`."""

from pydantic import DirectoryPath, Field
from pydantic_settings import SettingsConfigDict

from semspec.settings import ModelSettings


class DraftSettings(ModelSettings):
    """Settings of the draft service."""

    model_config = SettingsConfigDict(env_prefix="SEMSPEC_DRAFT_")

    port: int = Field(50051, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")
    datastore: DirectoryPath | None = Field(
        None, description="folder of a datastore of the target's answers, for the strategy retrieval; unset: none"
    )
