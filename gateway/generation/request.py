"""A validated request with every default filled in, its choices, and their storage format in Redis.

The stored fields suffice to resume a generation and to explain it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self, get_type_hints

from pydantic import TypeAdapter, create_model

from semspec.decoding import Generation, Prompts, RetrievalOptions
from semspec.decoding.generation import RewriteName
from semspec.errors import Conflict
from semspec.gateway.generation.grammar import of_output
from semspec.gateway.generation.output import ChoiceOutput
from semspec.gateway.generation.parsers import CallParser, ReasoningParser, StopChecker
from semspec.gateway.generation.strictness import Expected
from semspec.gateway.served import Served
from semspec.gateway.store.replies import reading
from semspec.records import Body, Json
from semspec.types import Acceptance, Context, Message, Piece, SamplingParams, Segmentation, TokenIds, derive_seed

_SAMPLING: dict[str, Any] = {
    name: (kind, ...) for name, kind in get_type_hints(SamplingParams).items() if name != "seed"
}
_Sampling: Any = create_model("_Sampling", __base__=Body, **_SAMPLING)


class Parameters(_Sampling):
    """All parameters of a generation, defaults filled in, except the prompt and the seed."""

    strategy: str
    rewrite: RewriteName
    probes: str
    gamma: int
    num_candidates: int
    num_speculative_tokens: int | None
    """Null where the strategy proposes none."""
    acceptance: Acceptance
    retrieval: RetrievalOptions
    draft_ahead: bool
    soft_gate: dict[str, float]
    segmentation: Segmentation
    strictness: float | None
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: dict[str, float]
    """By token id."""
    max_tokens: int
    stop: list[str]

    @classmethod
    def of(cls, generation: Generation, strictness: float | None, stops: tuple[str, ...]) -> Self:
        options, gate = generation.options, asdict(generation.options.soft_gate)
        sampling, penalties = generation.sampling, generation.penalties
        return cls(
            **{one.name: getattr(options, one.name) for one in fields(options) if one.name != "soft_gate"},
            soft_gate={name: number for name, number in gate.items() if name != "recent"},
            strategy=generation.strategy,
            segmentation=generation.segmentation,
            strictness=strictness,
            **{name: getattr(sampling, name) for name in _SAMPLING},
            presence_penalty=penalties.presence,
            frequency_penalty=penalties.frequency,
            repetition_penalty=penalties.repetition,
            logit_bias={str(token): bias for token, bias in penalties.logit_bias},
            max_tokens=generation.max_tokens,
            stop=list(stops),
        )


RequestPrompt = str | TokenIds | tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it is served, with every default filled in and checked against the services, before its prompts are
    encoded. It is stored with its generations, to resume them."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str
    """The name in the client's request."""
    prompts: tuple[RequestPrompt, ...]
    """Several are those of one plain completion."""
    num_choices: int
    """Of all prompts together, the same number for each; the first prompt's come first."""
    seed: int
    """The client's seed, or a random one."""
    max_tokens: int | None
    """None: the default, limited to what the context window leaves."""
    plan: Generation
    """All options except the context, the token budget and the choice's seed."""
    stops: tuple[str, ...]
    keep_stop: bool
    """Whether the stop sequence that ends a text stays in it."""
    may_reason: bool
    """Whether the model may open its reasoning itself where an answer follows a grammar."""
    strictness: float | None
    expected: Expected | None
    """Expected results of the acceptance rule that `strictness` selected."""
    session: str | None
    owner: str
    """Name of the request's API key; empty when authentication is off."""
    instructions: str
    """A system message before all others, that a response which follows this one does not inherit."""
    tools: str
    """A JSON list of the tools that the model may call; see `Conversation`. With them, calls are split off the text."""
    variables: str
    """A JSON object of variables of the chat template; see `Conversation`."""
    may_be_collected: bool
    """Whether the client lets the answer be listed in the collection; its owner's consent is another matter."""
    answer: str
    """What the request's API needs to format the answer, in JSON that only the API reads."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of a chat; none for a plain prompt."""
        return self.prompts[0] if isinstance(self.prompts[0], tuple) else ()

    @property
    def choice_ids(self) -> list[str]:
        return [self.choice_id(index) for index in range(self.num_choices)]

    def choice_id(self, index: int) -> str:
        """The id of one choice's generation; the first one has the response's id."""
        return f"{self.id}-{index}" if index else self.id

    @property
    def num_choices_per_prompt(self) -> int:
        return self.num_choices // len(self.prompts)

    def generation(self, index: int, prompts: Prompts, max_tokens: int) -> Generation:
        """The decoding loop's input for one choice. The first choice of a prompt uses the request's seed unchanged, so
        that the loop alone reproduces it, and a prompt's choices are those that it has in a request of its own."""
        seed, of_prompt, grammar = self.seed % (1 << 64), index % self.num_choices_per_prompt, self.plan.grammar
        sampling = replace(self.plan.sampling, seed=derive_seed(seed, "choice", of_prompt) if of_prompt else seed)
        return replace(
            self.plan,
            context=Context((prompts.target,)),
            sampling=sampling,
            max_tokens=max_tokens,
            session=self.session or self.choice_id(index),
            draft_prompt=prompts.draft,
            grammar=grammar and of_output(grammar, prompts.target.text, self.may_reason),
            fallback=prompts.fallback,
        )


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """One choice of a request, and the decoding loop's input for it."""

    index: int
    request: Request
    generation: Generation
    served: Served
    num_turns: int
    """Number of the session's turns before this request."""

    @property
    def id(self) -> str:
        return self.request.choice_id(self.index)

    @property
    def prompt(self) -> str:
        """The rendered prompt that the target receives."""
        return self.prompts.target.text

    @property
    def prompts(self) -> Prompts:
        generation = self.generation
        return Prompts(generation.context.pieces[0], generation.draft_prompt, generation.fallback)

    @property
    def parameters(self) -> Parameters:
        return Parameters.of(self.generation, self.request.strictness, self.request.stops)

    def output(self) -> ChoiceOutput:
        """An empty output."""
        reasoning_parser = ReasoningParser.after(self.prompt) if self.request.messages else None
        call_parser = CallParser(self.id) if self.request.tools else None
        stop_checker = StopChecker(self.request.stops, self.request.keep_stop, reasoning_parser, call_parser)
        return ChoiceOutput(self.id, self.generation, stop_checker)


_REQUEST = TypeAdapter(Request)
_PIECE = TypeAdapter(Piece)

ENDED = ("finished", "cancelled")
"""Final states."""


def stored_fields(choice: ChoiceRequest) -> dict[str, str]:
    """The fields that Redis stores when a generation begins; its segments are stored separately."""
    generation, prompts = choice.generation, choice.prompts
    return {
        "status": "running",
        "created": str(choice.request.created),
        "model": choice.request.model,
        "seed": str(generation.sampling.seed),
        "session": choice.request.session or "",
        "parameters": choice.parameters.model_dump_json(),
        "prompt": _PIECE.dump_json(prompts.target).decode(),
        "draft_prompt": _PIECE.dump_json(prompts.draft).decode() if prompts.draft else "",
        "fallback": prompts.fallback or "",
        "models": json.dumps(_models(choice.served)),
        "index": str(choice.index),
        "budget": str(generation.max_tokens),
        "num_turns": str(choice.num_turns),
        "call": _REQUEST.dump_json(choice.request).decode(),
    }


def stored_request(id: str, meta: Mapping[str, str]) -> Request:
    """The request stored in the fields of the generation `id`. Raises: Unavailable when they cannot be read."""
    with reading(f"generation {id}"):
        return _REQUEST.validate_json(meta["call"])


def stored_choice(id: str, meta: Mapping[str, str], served: Served) -> ChoiceRequest:
    """The choice stored in the fields of the generation `id`.

    Raises: Conflict when it has not ended and other models are served now; Unavailable when they cannot be read.
    """
    request = stored_request(id, meta)
    with reading(f"generation {id}"):
        if meta["status"] not in ENDED and json.loads(meta["models"]) != _models(served):
            raise Conflict("the models or probes have changed since this generation began; start a new one", "id")
        target = _PIECE.validate_json(meta["prompt"])
        draft = _PIECE.validate_json(meta["draft_prompt"]) if meta.get("draft_prompt") else None
        prompts = Prompts(target, draft, meta.get("fallback") or None)
        index, num_turns = int(meta["index"]), int(meta["num_turns"])
        return ChoiceRequest(index, request, request.generation(index, prompts, int(meta["budget"])), served, num_turns)


def _models(served: Served) -> Json:
    return {
        "draft": served.draft.fingerprint,
        "target": served.target.fingerprint,
        "draft_probe": served.verifier.draft_probe,
        "target_probe": served.verifier.target_probe,
        **({"likelihood": served.likelihood.digest} if served.likelihood else {}),
    }
