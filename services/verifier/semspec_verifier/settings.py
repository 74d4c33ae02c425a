"""Settings of the verifier service, from `SEMSPEC_VERIFIER_*`."""

from pydantic import DirectoryPath, Field
from pydantic_settings import SettingsConfigDict

from semspec.settings import ServiceSettings


class VerifierSettings(ServiceSettings):
    """Settings of the verifier service."""

    model_config = SettingsConfigDict(env_prefix="SEMSPEC_VERIFIER_")

    port: int = Field(
        50053, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one"
    )
    pair: DirectoryPath = Field(
        description="folder of a release: pair.json, the two probes and their alternatives"
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N"
    )
    equivalence: str | None = Field(
        None,
        min_length=1,
        description="equivalence of meaning for the gateway's audit: card, the one that the target probe's card names, "
        "or a JSON file with the equivalence section of a training configuration; unset: none",
    )
