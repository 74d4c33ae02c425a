"""A request's options of strategies, their limits, and the defaults that the operator gives them."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from semspec.decoding import PREFERRED, STRATEGIES, Options, RetrievalOptions
from semspec.decoding.generation import RewriteName
from semspec.errors import InvalidRequest, InvalidValue, Mismatch
from semspec.files import first_error
from semspec.release import Release
from semspec.types import (
    LEAST_POSITIVE,
    Acceptance,
    AcceptanceRule,
    RetrievalSource,
    Segmentation,
)

if TYPE_CHECKING:
    StrategyName = str
else:
    StrategyName = Literal[tuple(STRATEGIES)]


def or_default(model: type[BaseModel]) -> Any:
    """Accept null instead of an object, as the object without fields."""
    return BeforeValidator(
        lambda value: {} if value is None else value, json_schema_input_type=model | None
    )


def _not_tiny(number: float) -> float:
    if 0 < number < LEAST_POSITIVE:
        raise ValueError(f"Input should be 0, or at least {LEAST_POSITIVE}")
    return number


Temperature = Annotated[float, Field(ge=0, le=2), AfterValidator(_not_tiny)]
TopP = Annotated[float, Field(ge=LEAST_POSITIVE, le=1)]


MAX_FIELDS = 128
"""Maximum number of fields of an object, known or not, since each unknown one is an error."""


class RequestModel(BaseModel):
    """A part of a request's body. Unknown fields and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, values: Any) -> Any:
        if isinstance(values, dict) and len(values) > MAX_FIELDS:
            raise InvalidValue(
                f"it should have at most {MAX_FIELDS} fields, not {len(values)}",
                remedy="leave some out",
            )
        return values


class AcceptanceOptions(RequestModel):
    """When a drafted segment is accepted: with probability min(1, ratio), or iff the ratio reaches `threshold`."""

    rule: AcceptanceRule | None = None
    threshold: float | None = Field(default=None, ge=0)
    """A ratio for `semantic`, a probability for `likelihood`."""

    @model_validator(mode="after")
    def _threshold_is_used(self) -> Self:
        if self.rule == "sample" and self.threshold is not None:
            raise InvalidValue(
                "the rule 'sample' takes no threshold",
                remedy="leave it out or set rule to 'threshold'",
            )
        return self


class RetrievalChoices(RequestModel):
    """Of `retrieval`, and of `semantic` with this rewrite."""

    source: RetrievalSource | None = None


class StrategyOptions(RequestModel):
    """Options of the strategies, set by a request or by the operator.

    None in a request selects the operator's value, and None there the built-in one.
    """

    rewrite: RewriteName | None = Field(
        None,
        description="how semantic writes rejected segments: target (unset), token-level or retrieval",
    )
    probes: str | None = Field(
        None,
        max_length=128,
        description="the verifier's probes that semantic judges by; unset or empty: the main ones",
    )
    gamma: int | None = Field(
        None, ge=1, le=8, description="segments drafted before the target scores them; unset: 1"
    )
    num_candidates: int | None = Field(
        None, ge=1, le=4, description="alternatives of each segment that the draft writes; unset: 1"
    )
    num_speculative_tokens: int | None = Field(
        None,
        ge=1,
        le=64,
        description="tokens proposed before the target verifies them; token-level: at most 16, unset 8; retrieval: "
        "unset 8",
    )
    acceptance: Annotated[AcceptanceOptions, or_default(AcceptanceOptions)] = Field(
        AcceptanceOptions(),
        description="rule: sample (unset) or threshold; threshold: a ratio, .5 if unset, for likelihood a probability",
    )
    retrieval: Annotated[RetrievalChoices, or_default(RetrievalChoices)] = Field(
        RetrievalChoices(),
        description="source: all (unset), ngrams (no semantic neighbours), context (n-grams of the context) or "
        "datastore (all without the context)",
    )


class Defaults(StrategyOptions):
    """Defaults for what a request leaves out.

    `num_speculative_tokens` and the acceptance's `threshold` mean something else in each strategy: those given here
    hold for the strategy given here, or else for `semantic`.
    """

    model_config = ConfigDict(strict=False)

    strategy: StrategyName | None = Field(
        None,
        description=f"one of {', '.join(STRATEGIES)}; unset: the first supported of {', '.join(PREFERRED)}",
    )
    segmentation: Segmentation = Field(Segmentation.PARAGRAPH, description="paragraph or sentence")
    draft_ahead: bool = Field(True, description="true drafts on while the target reads")
    temperature: Temperature = Field(0.6, description="0 is greedy")
    top_p: TopP = Field(0.95, description="share of probability mass to draw from; 1 keeps all")
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="output budget, cut to what the model's window leaves; unset: a quarter of the window, 1,024 for "
        "the bundled pair and 32,768 for the R1 distillations; at most 1,024 on TGI's routes",
    )

    @model_validator(mode="after")
    def _fit_the_strategy(self) -> Self:
        try:
            STRATEGIES[self._strategy_name](self.options(self._strategy_name))
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return self

    def with_rule(self, release: Release) -> "Defaults":
        """Return these defaults with the release's rule. Raises: Mismatch when they cannot hold it."""
        try:
            return Defaults.model_validate(self.model_dump(exclude_unset=True) | release.rule)
        except ValidationError as error:
            raise Mismatch(
                f"the release {release.label}: rule.{first_error(error)}", remedy="correct it"
            ) from None

    @property
    def _strategy_name(self) -> str:
        return self.strategy or PREFERRED[0]

    def options(self, strategy: str, requested: StrategyOptions | None = None) -> Options:
        """Return the options of a request for `strategy`: the requested ones, and these defaults for the others."""
        defaults, changes = _values(self), _values(requested or StrategyOptions())
        if strategy != self._strategy_name:
            defaults.pop("num_speculative_tokens", None)
            defaults["acceptance"].pop("threshold", None)
        if "threshold" in changes["acceptance"]:
            defaults["acceptance"]["rule"] = "threshold"
        acceptance = Acceptance(**defaults.pop("acceptance") | changes.pop("acceptance"))
        retrieval = RetrievalOptions(**defaults.pop("retrieval") | changes.pop("retrieval"))
        return Options(
            **defaults | changes,
            acceptance=acceptance,
            retrieval=retrieval,
            draft_ahead=self.draft_ahead,
        )


def _values(options: StrategyOptions) -> dict[str, Any]:
    return options.model_dump(include={*StrategyOptions.model_fields}, exclude_none=True)
