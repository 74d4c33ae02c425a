"""A generation: the request's options, its progress, and what a strategy declares."""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

from semspec.decoding import repeats
from semspec.decoding.backends import Backends
from semspec.errors import InvalidField
from semspec.types import (
    NO_PENALTIES,
    Acceptance,
    Context,
    Drafted,
    FinishReason,
    GenerationParams,
    OpenText,
    Penalties,
    Piece,
    RetrievalSource,
    SamplingParams,
    Segment,
    Segmentation,
    SegmentRecord,
    Writer,
    derive_seed,
)

RewriteName = Literal["target", "token-level", "retrieval"]


@dataclass(frozen=True, slots=True)
class RetrievalOptions:
    """Options of the strategy `retrieval`."""

    source: RetrievalSource = "all"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of strategies. A strategy reads its own and ignores the others; its file has their limits."""

    rewrite: RewriteName = "target"
    """How `semantic` writes the segments it rejects: by plain decoding of the target, or in rounds of that strategy."""
    probes: str = ""
    """The probes that `semantic` judges by, a name in `VerifierInfo.alternatives`; "": the pair's main ones."""
    gamma: int = 1
    """Segments drafted before the target scores them."""
    num_candidates: int = 1
    """Alternatives of each segment that the draft writes. Each is drawn and judged on its own; the first accepted is
    kept, so more of the draft's are. Above 1, one segment is drafted at a time, whatever `gamma` is. Counts as 1 at
    temperature 0."""
    num_speculative_tokens: int | None = None
    """Tokens proposed before the target verifies them; None: the strategy's own number."""
    acceptance: Acceptance = field(default_factory=Acceptance)
    retrieval: RetrievalOptions = field(default_factory=RetrievalOptions)
    draft_ahead: bool = True
    """Draft the next segments while the target scores; a rejection cancels them. Affects speed, never the output."""


@dataclass(frozen=True)
class Generation:
    """A request to the decoding loop."""

    context: Context
    """The context as the target reads it."""
    sampling: SamplingParams
    max_tokens: int = 1024
    """Budget in tokens, each segment counted with the tokenizer of the model that wrote it."""
    strategy: "Strategy" = field(kw_only=True)
    """Made once, from the options of the request."""
    segmentation: Segmentation = Segmentation.PARAGRAPH
    num_logprobs: int | None = None
    """See `GenerationParams`."""
    show_drafts: bool = False
    """Emit a `Drafted` event as soon as segments are drafted."""
    show_text: bool = False
    """Emit `OpenText` events while the target writes a segment. Affects no draw."""
    stops: tuple[str, ...] = ()
    """See `GenerationParams`; they end the generation."""
    splits_reasoning: bool = False
    """See `GenerationParams`."""
    session: str = ""
    owner: str = ""
    """See `GenerationParams`."""
    draft_prompt: Piece | None = None
    """The prompt as the draft reads it, in its own chat template; None: the prompt in `context`."""
    grammar: str = ""
    """See `GenerationParams`; only for strategies that take one."""
    penalties: Penalties = NO_PENALTIES
    """See `GenerationParams`; only for strategies that take grammars."""
    min_tokens: int = 0
    """Least tokens before end-of-sequence is drawn; only for strategies that draw all kept text by `generate`."""
    fallback: str | None = None
    """Why the target writes alone from here on; None: the strategy runs."""
    answer_strategy: "Strategy | None" = None
    """The exact strategy that writes the answer after the reasoning; None: `strategy` writes it too."""
    accepts_repeats: bool = False
    """Switch off the guard against loops, see `semspec.decoding.repeats`. For measurements: no request can set it."""
    open_piece: Piece | None = None
    """`SegmentRecord.open_piece` of the last segment of a generation that is resumed."""


Step = SegmentRecord | OpenText | Drafted
"""A strategy yields records of kept segments, text that the target is writing, and drafted segments before the decision
on them."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a generation. It consists only of the request and the context, so any replica can resume it."""

    generation: Generation
    context: Context
    """The context as the target reads it."""

    @property
    def draft_context(self) -> Context:
        """The context as the draft reads it."""
        prompt = self.generation.draft_prompt
        return self.context if prompt is None else Context((prompt, *self.segments))

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(piece for piece in self.context.pieces if isinstance(piece, Segment))

    @property
    def tokens_left(self) -> int:
        return self.generation.max_tokens - sum(len(segment.token_ids) for segment in self.segments)

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while the generation is incomplete."""
        if self.segments and self.segments[-1].end.is_last:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.tokens_left <= 0 else None

    def repeated_index(self, drafted: Segment) -> int | None:
        """Return the index of the segment that the next one, `drafted`, repeats; None if it may be accepted."""
        if self.generation.accepts_repeats:
            return None
        return repeats.repeated_index(drafted, self.segments)

    def after(self, *segments: Segment) -> "Progress":
        return replace(self, context=self.context.extended(*segments))

    def params(
        self,
        purpose: str,
        max_segments: int,
        want_states: bool = False,
        max_tokens: int | None = None,
    ) -> GenerationParams:
        """Parameters for the next call, with the random stream `purpose`; `max_tokens` is capped at `tokens_left`."""
        generation = self.generation
        seed = derive_seed(generation.sampling.seed, purpose, self._stream(purpose))
        return GenerationParams(
            sampling=replace(generation.sampling, seed=seed),
            segmentation=generation.segmentation,
            max_segments=max_segments,
            max_tokens=self.tokens_left
            if max_tokens is None
            else min(max_tokens, self.tokens_left),
            min_tokens=max(0, generation.min_tokens - (generation.max_tokens - self.tokens_left)),
            want_states=want_states,
            num_logprobs=generation.num_logprobs,
            session=generation.session,
            owner=generation.owner,
            grammar=generation.grammar,
            penalties=generation.penalties,
            stops=generation.stops,
            splits_reasoning=generation.splits_reasoning,
        )

    def _stream(self, purpose: str) -> int:
        """Return the index of the random stream of `purpose`.

        Drafting uses a new stream after each rewrite: the rejection depended on the draws of the rejected segment, so
        reusing them would bias the output.
        """
        if purpose != "draft":
            return 0
        rewrites = [i for i, segment in enumerate(self.segments) if segment.writer is Writer.TARGET]
        return rewrites[-1] + 1 if rewrites else 0


Rounds = Callable[[Progress, Backends], AsyncGenerator[Step, None]]
"""Yields the steps of a generation to its end. Raises: BackendUnavailable, and what the target raises."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to write the segments of a generation, and its requirements of the served models and probes."""

    name: str
    rounds: Rounds
    options: Options
    """With the strategy's own defaults filled in."""
    writers: frozenset[Writer] = frozenset({Writer.DRAFT, Writer.TARGET})
    """Models whose segments may be kept."""
    is_exact: bool = False
    """Whether the output has the distribution of the target."""
    uses_probes: bool = False
    """Whether it judges by the verifier, with the probes that `options` name."""
    needs_calibration: bool = False
    """Whether it judges by `Backends.likelihood`."""
    needs_one_vocabulary: bool = False
    """Whether the target verifies draft tokens, so that both models must share their ordinary tokens."""
    needs_datastore: bool = False
    """Whether the draft service retrieves from a datastore of the target's answers."""
    supports_grammars: bool = False
    """Whether all kept text is drawn by `generate` of one model, which can apply a grammar and penalties."""
    supports_logprobs: bool = True
    """Whether each kept token has the log-probability that its writer assigned to it."""

    @property
    def verifies_tokens(self) -> bool:
        """Return whether the target writes by verifying proposed tokens one by one."""
        return self.needs_one_vocabulary or self.needs_datastore

    @property
    def can_skip_drafts(self) -> bool:
        """Return whether the target may write any segment alone instead of drafting it."""
        return self.verifies_tokens or self.writers == {Writer.DRAFT, Writer.TARGET}

    @property
    def is_judged_by_main_probes(self) -> bool:
        return self.uses_probes and not self.options.probes


Strategies = Mapping[str, Callable[[Options], Strategy]]
"""A table of strategies by name, each made from the options of a request. Raises: InvalidRequest, naming the option
that contradicts others or is beyond the strategy's limits."""

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Limits(Generic[Number]):
    """One strategy's default and limits of an option that several strategies read."""

    strategy: str
    option: str
    default: Number
    least: float
    most: float

    def of(self, value: Number | None) -> Number:
        """Return `value`, or the default for None. Raises: InvalidRequest when it is beyond the limits."""
        if value is None:
            return self.default
        if self.least <= value <= self.most:
            return value
        bound = f"at least {self.least:g}" if value < self.least else f"at most {self.most:g}"
        message = f"{value:g} should be {bound} for the strategy {self.strategy!r}"
        raise InvalidField(message, self.option)
