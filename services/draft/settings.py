"""Settings of the draft service, from `SEMSPEC_DRAFT_*`."""

from pydantic import DirectoryPath, Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from semspec.settings import ModelSettings


class DraftSettings(ModelSettings):
    """Settings of the draft service."""

    model_config = SettingsConfigDict(env_prefix="SEMSPEC_DRAFT_")

    model: str = Field(
        "",
        description="directory or Hugging Face id of the model to serve; unset: none, only a datastore, for the "
        "strategy retrieval",
    )
    port: int = Field(50051, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")
    datastore: DirectoryPath | None = Field(
        None,
        validate_default=True,
        description="folder of a datastore of the target's answers, for the strategy retrieval; unset: none",
    )
    learned_tokens: int = Field(
        0,
        ge=0,
        le=1 << 22,
        description="tokens of answers that the datastore learns while it serves, the oldest dropped first; answers of "
        "one owner then speed up those of others, who can tell; 0: none",
    )

    @field_validator("datastore")
    @classmethod
    def _there_is_something_to_serve(
        cls, datastore: DirectoryPath | None, info: ValidationInfo
    ) -> DirectoryPath | None:
        if datastore is None and not info.data.get("model", "unknown"):
            raise ValueError("set SEMSPEC_DRAFT_MODEL, to a directory or Hugging Face id of a model, or this")
        return datastore

    @field_validator("learned_tokens")
    @classmethod
    def _learns_beside_a_datastore(cls, learned_tokens: int, info: ValidationInfo) -> int:
        if learned_tokens and info.data.get("datastore") is None:
            raise ValueError("only with a datastore; set SEMSPEC_DRAFT_DATASTORE")
        return learned_tokens
