"""Request schemas of Text Generation Inference's API, and of vLLM's routes for tokens."""

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from semspec.gateway.api.bodies import ChatMessage, Extension, False_, Stop, Text, TokenId, or_default
from semspec.gateway.api.neutral import TGI_NEUTRAL, Strict, Tolerant
from semspec.gateway.settings import MAX_LOGPROBS, MAX_STOPS


class TgiParameters(Tolerant):
    """TGI's `parameters`."""

    neutral = TGI_NEUTRAL
    labels = frozenset()

    do_sample: bool | None = None
    max_new_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    return_full_text: bool | None = None
    stop: list[Stop] | None = Field(default=None, max_length=MAX_STOPS)
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    temperature: float | None = Field(default=None, gt=0, le=2)
    top_k: int | None = Field(default=None, ge=1, lt=1 << 31)
    top_p: float | None = Field(default=None, gt=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    details: bool | None = None
    top_n_tokens: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    @property
    def is_greedy(self) -> bool:
        """TGI samples if `do_sample` is set or if any sampling parameter is."""
        filters = self.top_k is not None or self.top_p not in (None, 1)
        return not (self.do_sample or filters or self.temperature not in (None, 1))


class TgiRequest(Strict):
    """Body of `POST /`, `/generate` and `/generate_stream`."""

    inputs: Text = Field(min_length=1)
    parameters: Annotated[TgiParameters, or_default(TgiParameters)] = TgiParameters()
    stream: bool | None = None
    semspec: Annotated[Extension, or_default(Extension)] = Extension()


class TokenizeInputs(Strict):
    """Body of `POST /tokenize` as in TGI."""

    inputs: Text
    add_special_tokens: False_ | None = None


class TokenizePrompt(Tolerant):
    """Body of `POST /tokenize` as in vLLM, for a text."""

    model: str | None = None
    prompt: Text
    add_special_tokens: bool | None = None
    """True by default, as in vLLM."""
    return_token_strs: False_ | None = None


class TokenizeMessages(Tolerant):
    """Body of `POST /tokenize` as in vLLM, for a conversation."""

    model: str | None = None
    messages: list[ChatMessage] = Field(min_length=1)
    add_special_tokens: False_ | None = None
    return_token_strs: False_ | None = None


def _kind_of_text(body: object) -> str:
    names = body if isinstance(body, dict) else {}
    return "<tgi>" if "inputs" in names else "<chat>" if "messages" in names else "<text>"


TokenizeRequest = Annotated[
    Annotated[TokenizeInputs, Tag("<tgi>")]
    | Annotated[TokenizePrompt, Tag("<text>")]
    | Annotated[TokenizeMessages, Tag("<chat>")],
    Discriminator(_kind_of_text),
]


class DetokenizeRequest(Strict):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: list[TokenId] = Field(min_length=1)
