"""A validated request with every default filled in."""

from dataclasses import dataclass, replace
from typing import Literal

from gateway.generations.output_text import ReasoningParser, StopChecker
from gateway.generations.strictness import Expected
from semspec.types import Context, Generation, Message, derive_seed

Api = Literal["chat", "completions", "tgi"]
"""In whose shapes a request is answered."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, understood; only its tokens are still unknown. Stored with its generations, to go on with them."""

    id: str
    api: Api
    created: int
    """Seconds since 1970."""
    model: str
    """As the client named it."""
    prompt: str | tuple[Message, ...]
    num_choices: int
    seed: int
    """As the client gave it, or drawn."""
    max_tokens: int | None
    """None: the default, cut to what the window leaves."""
    plan: Generation
    """Everything but the context, the budget and the choice's own seed."""
    stops: tuple[str, ...]
    keep_stop: bool
    """Whether the stop sequence that ends a text stays in it."""
    strictness: float | None
    session: str | None
    stream: bool
    include_usage: bool
    trace: bool
    owner: str = ""
    """Name of the API key it came with; empty where none is asked for."""
    num_turns: int = 0
    """Of the session, before this request."""
    expected: Expected | None = None
    """Of the acceptance rule that `strictness` led to."""
    details: bool = False
    """Whether TGI's answer tells of the single tokens and of the end."""
    full_text: bool = False
    """Whether TGI's text begins with the prompt."""

    @property
    def prompt_field(self) -> str:
        return "prompt" if isinstance(self.prompt, str) else "messages"

    @property
    def strategy_field(self) -> str:
        """Where the client chose the strategy, if it did."""
        return "model" if ":" in self.model else "semspec.strategy"

    @property
    def choice_ids(self) -> list[str]:
        return [self.choice_id(index) for index in range(self.num_choices)]

    def stop_checker(self, prompt: str) -> StopChecker:
        """For the text that follows the rendered `prompt`."""
        reasoning_parser = ReasoningParser.after(prompt) if self.api == "chat" else None
        return StopChecker(self.stops, self.keep_stop, reasoning_parser)

    def choice_id(self, index: int) -> str:
        """The generation of one choice; that of the first bears the response's own id."""
        return f"{self.id}-{index}" if index else self.id

    def generation(self, index: int, context: Context, max_tokens: int) -> Generation:
        """The order for one choice. The first uses the request's seed itself, so that the loop alone repeats it."""
        seed = self.seed % (1 << 64)
        sampling = replace(self.plan.sampling, seed=derive_seed(seed, "choice", index) if index else seed)
        session = self.session or self.choice_id(index)
        return replace(self.plan, context=context, sampling=sampling, max_tokens=max_tokens, session=session)
