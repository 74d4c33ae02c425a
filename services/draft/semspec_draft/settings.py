"""Settings of the draft service, from `SEMSPEC_DRAFT_*`."""

from pydantic import DirectoryPath, Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from semspec.engine.settings import ModelSettings


class DraftSettings(ModelSettings):
    """Settings of the draft service."""

    model_config = SettingsConfigDict(env_prefix="SEMSPEC_DRAFT_")

    model: str = Field(
        "",
        description="model to serve: folder, GGUF file, Hugging Face id, or ID:FILE.gguf; unset: none, only a "
        "datastore, for the strategy retrieval",
    )
    port: int = Field(
        50051, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one"
    )
    datastore: DirectoryPath | None = Field(
        None,
        validate_default=True,
        description="folder of a datastore of the target's answers, for the strategy retrieval; unset: none",
    )

    @field_validator("datastore")
    @classmethod
    def _needs_model_or_datastore(
        cls, datastore: DirectoryPath | None, info: ValidationInfo
    ) -> DirectoryPath | None:
        if datastore is None and not info.data.get("model", "unknown"):
            raise ValueError(
                "set SEMSPEC_DRAFT_MODEL, to a directory or Hugging Face id of a model, or this"
            )
        return datastore
