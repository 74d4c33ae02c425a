"""A validated request with every default filled in, and the acceptance threshold that its strictness selects."""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self, cast, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    SerializeAsAny,
    TypeAdapter,
    ValidationInfo,
    create_model,
)

from semspec.decoding import Generation, Options, Prompts, Strategies, Strategy
from semspec.errors import InvalidRequest
from semspec.records import Body
from semspec.types import (
    NO_PENALTIES,
    Context,
    JsonObject,
    Message,
    OperatingPoint,
    Penalties,
    SamplingParams,
    Segmentation,
    TokenIds,
    derive_seed,
)
from semspec_gateway.generation.grammar import output_grammar
from semspec_gateway.store.store import choice_id

_SAMPLING, _OPTIONS = get_type_hints(SamplingParams), get_type_hints(Options)
del _SAMPLING["seed"]
_Typed: Any = create_model("_Typed", __base__=Body, **_SAMPLING | _OPTIONS)


class Parameters(_Typed):
    """All parameters of a generation, defaults filled in, except the prompt and the seed."""

    strategy: str
    segmentation: Segmentation
    answer_strategy: Literal["", "token-level", "target"]
    """The exact strategy that writes what is not reasoning; empty: `strategy` writes it too."""
    strictness: float | None
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: dict[str, float]
    """By token id."""
    max_tokens: int
    min_tokens: int
    stop: list[str]

    @classmethod
    def of(cls, generation: Generation, strictness: float | None) -> Self:
        sampling, penalties = generation.sampling, generation.penalties
        strategy, answer = generation.strategy, generation.answer_strategy
        return cls(
            **{name: getattr(sampling, name) for name in _SAMPLING},
            **{name: getattr(strategy.options, name) for name in _OPTIONS},
            strategy=strategy.name,
            segmentation=generation.segmentation,
            answer_strategy=answer.name if answer else "",
            strictness=strictness,
            presence_penalty=penalties.presence,
            frequency_penalty=penalties.frequency,
            repetition_penalty=penalties.repetition,
            logit_bias={str(token): bias for token, bias in penalties.logit_bias},
            max_tokens=generation.max_tokens,
            min_tokens=min(generation.min_tokens, generation.max_tokens),
            stop=list(generation.stops),
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected results of a setting, from the probes' report."""

    acceptance: float
    """Share of drafted segments that are accepted."""
    wrong_accepted: float | None
    """Share of wrong segments that are accepted; None without ground truth."""
    speed_up: float | None
    """Speed-up over the target alone."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A threshold and its expected results."""

    threshold: float
    expected: Expected


def at_strictness(strictness: float, points: Sequence[OperatingPoint]) -> Setting:
    """Interpolate linearly from the report's lowest threshold (strictness 0) to its highest (1).

    A higher strictness never accepts more. The expected results are interpolated between the report's two nearest
    points, and None where one of them has none. Raises: InvalidRequest when the report has no curve.
    """
    curve = {point.threshold: point for point in points if point.threshold is not None}
    if not curve:
        raise InvalidRequest(
            "strictness needs a curve of thresholds, but the probes' report has no curve",
            "strictness",
            remedy="use semspec.acceptance",
        )
    thresholds = sorted(curve)
    lowest, highest = thresholds[0], thresholds[-1]
    threshold = (
        highest if strictness == 1 else min(lowest + strictness * (highest - lowest), highest)
    )
    upper = min(bisect_right(thresholds, threshold), len(thresholds) - 1)
    lower = max(upper - 1, 0)
    span = thresholds[upper] - thresholds[lower]
    share = (threshold - thresholds[lower]) / span if span else 0.0
    expected = _between(curve[thresholds[lower]], curve[thresholds[upper]], share)
    return Setting(threshold, expected)


def _between(lower: OperatingPoint, upper: OperatingPoint, share: float) -> Expected:
    """Interpolate linearly between two points; `share` is the weight of `upper`."""

    def value(low: float | None, high: float | None) -> float | None:
        if share in (0, 1):
            return high if share else low
        return None if low is None or high is None else (1 - share) * low + share * high

    return Expected(
        (1 - share) * lower.acceptance + share * upper.acceptance,
        value(lower.wrong_accepted, upper.wrong_accepted),
        value(lower.speed_up, upper.speed_up),
    )


RequestPrompt = str | TokenIds | tuple[Message, ...]
_STORED_OPTIONS = TypeAdapter(Options)


def _read_strategy(stored: Any, info: ValidationInfo) -> Strategy:
    """The stored strategy; the context of the validation is the gateway's table."""
    strategies = cast(Strategies, info.context)
    return strategies[stored["name"]](_STORED_OPTIONS.validate_python(stored["options"]))


StoredStrategy = Annotated[
    Strategy,
    PlainValidator(_read_strategy),
    PlainSerializer(lambda strategy: {"name": strategy.name, "options": strategy.options}),
]
"""A strategy that is stored as its name and options."""


class AnswerOptions(BaseModel):
    """What an API needs, in addition to the request, to format its answer. An API adds its own fields in a subclass;
    when a stored request is read, the API makes its subclass from this."""

    model_config = ConfigDict(frozen=True, extra="allow")

    api: str
    fields: Mapping[str, str]
    """The API's fields for the parameters that errors name."""
    trace: bool
    include_usage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """The part of a request that its API reads from the body, and that no default of the operator changes."""

    answer: SerializeAsAny[AnswerOptions]
    prompts: tuple[RequestPrompt, ...]
    """More than one only for a plain completion."""
    num_choices_per_prompt: int = 1
    max_tokens: int | None = None
    """None: the default, limited to what the context window leaves."""
    default_max_tokens: int | None = None
    """Largest default budget, unless the operator sets one; None: a share of the window."""
    min_tokens: int = 0
    """See `Generation`."""
    thinking_token_budget: int | None = None
    """Tokens of reasoning after which it is ended, at the end of a segment; None: without a limit."""
    num_logprobs: int | None = None
    """See `GenerationParams`."""
    are_logprobs_optional: bool = False
    """Whether the answer leaves logprobs out where the strategy has none."""
    penalties: Penalties = NO_PENALTIES
    grammar: str = ""
    """Grammar of the answer; empty: none. The target alone writes such an answer, unless a strategy is chosen."""
    may_reason: bool = True
    """Whether the model may open its reasoning itself where an answer follows a grammar."""
    stops: tuple[str, ...] = ()
    keep_stop: bool = False
    """Whether the stop sequence that ends a text stays in it."""
    instructions: str = ""
    """A system message before all others, that a response which follows this one does not inherit."""
    tools: tuple[JsonObject, ...] = ()
    """Tools that the model may call, in OpenAI's format. With them, calls are split off the text."""
    variables: JsonObject = field(default_factory=dict)
    """Variables of the chat template, each a scalar."""
    has_seed: bool = False
    """Whether the client sent a seed, so that its answer must not depend on the load."""
    is_kept: bool = True
    """False: routes do not give the answer by its id once it has ended."""

    @property
    def num_choices(self) -> int:
        """Number for all prompts together; those of the first prompt come first."""
        return self.num_choices_per_prompt * len(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest(ClientRequest):
    """A request as it is served, with every default filled in and checked against the services, before its prompts are
    encoded. It is stored with its generations, to resume them."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str
    """The name in the client's request."""
    sampling: SamplingParams
    """With the client's seed, which may be negative, or a random one."""
    strategy: StoredStrategy
    answer_strategy: StoredStrategy | None
    """See `Generation`."""
    segmentation: Segmentation
    show_drafts: bool
    """See `Generation`."""
    strictness: float | None
    expected: Expected | None
    """Expected results of the acceptance rule that `strictness` selected."""
    session: str | None
    owner: str
    """Name of the request's API key; empty when authentication is off."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of a chat; none for a plain prompt."""
        return self.prompts[0] if isinstance(self.prompts[0], tuple) else ()

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the functions that the model may call."""
        return tuple(tool["function"]["name"] for tool in self.tools)

    def choice_id(self, index: int) -> str:
        """The id of one choice's generation; the first one has the response's id."""
        return choice_id(self.id, index)

    def generation(self, index: int, prompts: Prompts, max_tokens: int) -> Generation:
        """The decoding loop's input for one choice. The first choice of a prompt uses the request's seed unchanged, so
        that the loop alone reproduces it, and a prompt's choices are those that it has in a request of its own."""
        seed, number = self.sampling.seed % (1 << 64), index % self.num_choices_per_prompt
        return Generation(
            context=Context((prompts.target,)),
            sampling=replace(
                self.sampling, seed=derive_seed(seed, "choice", number) if number else seed
            ),
            penalties=self.penalties,
            strategy=self.strategy,
            answer_strategy=self.answer_strategy,
            segmentation=self.segmentation,
            num_logprobs=self.num_logprobs,
            show_drafts=self.show_drafts,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            session=self.session or self.choice_id(index),
            owner=hashlib.blake2b(self.owner.encode(), digest_size=8).hexdigest(),
            draft_prompt=prompts.draft,
            grammar=self.grammar
            and output_grammar(self.grammar, prompts.target.text, self.may_reason),
            fallback=prompts.fallback,
            stops=self.stops,
            splits_reasoning=bool(self.messages),
        )
