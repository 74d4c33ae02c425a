"""From a body in TGI's words to a call."""

from dataclasses import replace

from gateway.generations.call import Call
from gateway.http.calls import completion_call
from gateway.http.schemas import CompletionRequest
from gateway.http.schemas_tgi import TgiRequest
from gateway.settings import GatewaySettings
from semspec.errors import InvalidRequest


class TextRequest(CompletionRequest):
    """What TGI was asked for, in the words of a plain completion."""

    details: bool = False
    full_text: bool = False
    """Whether the text begins with the prompt."""


def text_request(body: TgiRequest, stream: bool, settings: GatewaySettings) -> TextRequest:
    """Raises: InvalidRequest when the body wants the other of whole and streamed."""
    if body.stream is not None and body.stream != stream:
        other = "/generate_stream" if body.stream else "/generate"
        raise InvalidRequest(f"stream is not what this route does; leave it out, or use {other}", "stream")
    asked = body.parameters
    return TextRequest(
        model=settings.model_name,
        prompt=body.inputs,
        stream=stream,
        seed=asked.seed,
        temperature=0 if asked.is_greedy else asked.temperature or 1,
        top_p=asked.top_p or 1,
        top_k=asked.top_k or 0,
        stop=asked.stop,
        max_tokens=asked.max_new_tokens,
        logprobs=asked.top_n_tokens,
        semspec=body.semspec,
        details=bool(asked.details),
        full_text=bool(asked.return_full_text),
    )


def tgi_call(body: TextRequest, settings: GatewaySettings) -> Call:
    """TGI tells each token's logprob, so those are asked for wherever tokens are told and the strategy knows them.

    Raises: InvalidRequest.
    """
    call = completion_call(body, settings, "tgi")
    wanted = body.stream or body.details
    plan = replace(call.plan, num_logprobs=body.logprobs or (0 if wanted else None), show_drafts=False)
    return replace(call, plan=plan, keep_stop=True, details=body.details, full_text=body.full_text)
