"""The request bodies of Text Generation Inference (version 3) as far as they are served here, and nothing beyond."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from gateway.http.schemas import Extension, False_, Stop, Strict, Text, Tolerant
from gateway.settings import MAX_LOGPROBS, MAX_STOPS

NEUTRAL: dict[str, tuple[object, ...]] = {
    "adapter_id": (),
    "best_of": (1,),
    "decoder_input_details": (False,),
    "frequency_penalty": (0,),
    "grammar": (),
    "repetition_penalty": (1,),
    "truncate": (),
    "typical_p": (1,),
    "watermark": (False,),
}
"""Parameters of TGI and the values, beside null, under which leaving them out changes nothing."""


def is_known_parameter(name: str) -> bool:
    """Whether TGI has this parameter, so that only its value was refused."""
    return name in NEUTRAL


class TgiParameters(Tolerant):
    """TGI's `parameters`."""

    neutral = NEUTRAL
    labels = frozenset()

    do_sample: bool | None = None
    max_new_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    return_full_text: bool | None = None
    stop: list[Stop] | None = Field(default=None, max_length=MAX_STOPS)
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    temperature: float | None = Field(default=None, gt=0, le=2)
    top_k: int | None = Field(default=None, ge=1, lt=1 << 31)
    top_p: float | None = Field(default=None, gt=0, le=1)
    details: bool | None = None
    top_n_tokens: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    @property
    def is_greedy(self) -> bool:
        """TGI samples if told to, and also if told how."""
        filters = self.top_k is not None or self.top_p not in (None, 1)
        return not (self.do_sample or filters or self.temperature not in (None, 1))


class TgiRequest(Strict):
    """Body of `POST /`, `/generate` and `/generate_stream`."""

    inputs: Text = Field(min_length=1)
    parameters: Annotated[TgiParameters, BeforeValidator(lambda given: {} if given is None else given)] = (
        TgiParameters()
    )
    stream: bool | None = None
    semspec: Extension = Extension()


class TokenizeRequest(Strict):
    """Body of `POST /tokenize`."""

    inputs: Text
    add_special_tokens: False_ | None = None
