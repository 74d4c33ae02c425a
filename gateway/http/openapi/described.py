"""What the models of this package share."""

from pydantic import BaseModel, ConfigDict


class Described(BaseModel):
    """Complete: a key that is not named here is a fault of the description."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
