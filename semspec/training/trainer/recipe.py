"""Settings of fitting probes, a part of the pipeline's configuration."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from semspec.probes.probe import HIDDEN_SIZES, CalibrationKind, FeatureSet, LayerSet

Role = Literal["target", "draft"]
Device = Literal["auto", "cpu", "cuda"]
Size = Annotated[int, Field(ge=1)]


class FitRecipe(BaseModel):
    """Settings of a fit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: FeatureSet = Field(
        default="states+surprisal",
        description="what the target's probe sees; the draft's sees states",
    )
    layers: LayerSet = Field(
        default="all",
        description="all, last, or a list: 0 is the embeddings, n the output of block n",
    )
    draft_layers: LayerSet | None = Field(
        default=None, description="the same of the draft's states; unset: as layers"
    )
    labels: Literal["cross", "own"] = Field(
        default="cross",
        description="cross: the target's probe also learns from draft-written segments; own: the paper's, each from "
        "its own model's segments, whose shares count the segment itself",
    )
    domain: str | None = Field(
        default=None, description="learn from questions of this domain alone"
    )
    calibration: CalibrationKind = "temperature"
    loss: Literal["mse", "bce"] = Field(
        default="bce", description="squared error (the paper's) or cross-entropy"
    )
    num_epochs: int = Field(
        default=14, ge=1, description="at most; the learning rate falls to 0 over them"
    )
    patience: int = Field(
        default=5,
        ge=1,
        description="epochs without a lower squared error on validation before stopping",
    )
    batch_size: int = Field(default=256, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    hidden_sizes: tuple[Size, Size] = Field(
        default=HIDDEN_SIZES, description="of the probe's two hidden layers"
    )
    projection: Size | None = Field(
        default=None,
        description="train on so many numbers a layer, a random projection; folded into the probe",
    )
    seed: int = Field(default=0, ge=0)
    memory_gib: float = Field(
        default=8.0, gt=0, description="of projected features to keep in memory"
    )
    device: Device = Field(default="auto", description="auto: cuda where there is one")

    @field_validator("layers", "draft_layers")
    @classmethod
    def _is_ascending(cls, layers: LayerSet | None) -> LayerSet | None:
        if isinstance(layers, tuple) and (
            not layers or layers[0] < 0 or list(layers) != sorted(set(layers))
        ):
            raise ValueError("list layers in ascending order, each once, from 0")
        return layers

    def inputs(self, role: Role) -> tuple[FeatureSet, LayerSet]:
        """Features and layers of the role's probe."""
        if role == "target":
            return self.features, self.layers
        return "states", self.layers if self.draft_layers is None else self.draft_layers
