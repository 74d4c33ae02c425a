"""Which equivalence of meaning is used: settings of one, and how it is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from semspec.clustering.entailment import EntailmentEquivalence
from semspec.clustering.equivalence import Equivalence, resolve
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

OF_THE_CARD = "card"
"""Selects the equivalence that the target probe's card names: the one its labels come from."""
_REMEDY = "name a JSON file with the `equivalence` of a training configuration in SEMSPEC_VERIFIER_EQUIVALENCE"
_CONFIG: TypeAdapter[AnyEquivalence] = TypeAdapter(EquivalenceConfig)


def load_equivalence(config: AnyEquivalence, max_segment_tokens: int = 0) -> Equivalence:
    """Raises: Mismatch when the model cannot be used; InvalidRequest when there is no such class."""
    if isinstance(config, EntailmentConfig):
        return EntailmentEquivalence.load(config, max_segment_tokens)
    if isinstance(config, LanguageModelConfig):
        return LanguageModelEquivalence.load(config)
    if isinstance(config, ResultsConfig):
        return ResultsEquivalence()
    equivalence: Equivalence = resolve(config.object)()
    return equivalence


def served_equivalence(source: str, training: Mapping[str, Any]) -> tuple[str, Equivalence]:
    """An equivalence with its name. `source` is `OF_THE_CARD` or a JSON file; `training` is of the probe's card.
    Raises: Mismatch, with the remedy, when there is none or it cannot be loaded."""
    if source == OF_THE_CARD:
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
    if isinstance(config, ResultsConfig):
        return config.kind
    return config.object if isinstance(config, PythonEquivalence) else config.model
