"""Configuration of equivalences of meaning, and their loading."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from semspec.clustering.entailment import EntailmentEquivalence
from semspec.clustering.equivalence import Equivalence, import_object
from semspec.clustering.language_model import LanguageModelConfig, LanguageModelEquivalence
from semspec.clustering.nli import EntailmentConfig
from semspec.clustering.results import ResultsConfig, ResultsEquivalence
from semspec.errors import InvalidRequest, Mismatch
from semspec.files import first_error, read_json

PythonObject = Annotated[str, Field(pattern=r"^[\w.]+:\w+$", description="module:attribute")]


class PythonEquivalence(BaseModel):
    """Equivalence by a user's class (see `semspec.clustering.equivalence.Equivalence`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["python"]
    object: PythonObject


AnyEquivalence = EntailmentConfig | LanguageModelConfig | ResultsConfig | PythonEquivalence
EquivalenceConfig = Annotated[AnyEquivalence, Field(discriminator="kind")]

FROM_CARD = "card"
"""Selects the equivalence in the target probe's card, with which its labels were made."""
_REMEDY = "name a JSON file with the `equivalence` of a training configuration in SEMSPEC_VERIFIER_EQUIVALENCE"
_CONFIG: TypeAdapter[AnyEquivalence] = TypeAdapter(EquivalenceConfig)


def load_equivalence(config: AnyEquivalence, max_segment_tokens: int = 0) -> Equivalence:
    """Load an equivalence. Raises: Mismatch when its model cannot be used; InvalidRequest when its class is missing."""
    if isinstance(config, EntailmentConfig):
        return EntailmentEquivalence.load(config, max_segment_tokens)
    if isinstance(config, LanguageModelConfig):
        return LanguageModelEquivalence.load(config)
    if isinstance(config, ResultsConfig):
        return ResultsEquivalence()
    equivalence: Equivalence = import_object(config.object)()
    return equivalence


def served_equivalence(source: str, training: Mapping[str, Any]) -> tuple[str, Equivalence]:
    """Load the equivalence of a verifier, and return it with its name.

    `source`: `FROM_CARD` or a JSON file; `training`: from the card of the target's probe.

    Raises: Mismatch, with a remedy, when there is none or it cannot be loaded.
    """
    if source == FROM_CARD:
        fields = training.get("equivalence")
        if fields is None:
            raise Mismatch(
                "the card of the target's probe names no equivalence of meaning", remedy=_REMEDY
            )
    else:
        try:
            fields = read_json(Path(source))
        except (OSError, ValueError) as error:
            raise Mismatch(
                f"cannot read the equivalence of meaning {source}: {error}", remedy=_REMEDY
            ) from error
    try:
        config = _CONFIG.validate_python(fields)
        return _name(config), load_equivalence(config)
    except ValidationError as error:
        raise Mismatch(
            f"equivalence of meaning {source}: {first_error(error, 'all of it')}", remedy=_REMEDY
        ) from error
    except InvalidRequest as error:
        raise Mismatch(
            f"equivalence of meaning {source}: {error.message}",
            remedy=f"{error.remedy}, or {_REMEDY}",
        ) from error


def _name(config: AnyEquivalence) -> str:
    """Return the name of an equivalence, for clients."""
    if isinstance(config, ResultsConfig):
        return config.kind
    return config.object if isinstance(config, PythonEquivalence) else config.model
