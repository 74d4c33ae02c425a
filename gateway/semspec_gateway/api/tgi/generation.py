"""Text Generation Inference's API, version 3: routes and response formats that its clients work with unchanged.

Fields that TGI does not have come last.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import BaseModel

from semspec import __version__
from semspec.errors import InvalidRequest, SemspecError
from semspec.types import NO_PENALTIES, FinishReason, Penalties, SegmentRecord
from semspec_gateway.api.shared.bodies import BodyRoute
from semspec_gateway.api.shared.document import ANY_TGI_ROUTE, TGI, TGI_STREAM, errors
from semspec_gateway.api.shared.errors import TgiError, tgi_error_body
from semspec_gateway.api.shared.event_stream import GENERATION_ID
from semspec_gateway.api.shared.formats import Format
from semspec_gateway.api.shared.idempotency import Key
from semspec_gateway.api.shared.resolver import answer_options
from semspec_gateway.api.shared.responder import Responder
from semspec_gateway.api.tgi import answers
from semspec_gateway.api.tgi.requests import TgiRequest
from semspec_gateway.api.tgi.stream import SegmentStream, ShownToken, TokenStream
from semspec_gateway.generation.choice import Choice, Ended, Kept, Written
from semspec_gateway.generation.request import AnswerOptions, ClientRequest, GenerationRequest
from semspec_gateway.readiness import Readiness
from semspec_gateway.settings import MAX_STOPS, GatewaySettings

MAX_NEW_TOKENS = 1024
"""The default of `max_new_tokens` in TGI's API reference. A plain text often has no end that a model would see."""


def router(responder: Responder, readiness: Readiness, settings: GatewaySettings) -> APIRouter:
    """`/generate`, `/generate_stream`, `/` and `/info`."""
    routes = APIRouter(tags=["tgi"], responses=ANY_TGI_ROUTE, route_class=BodyRoute)

    async def respond(
        http: HttpRequest, body: TgiRequest, key: str | None, stream: bool
    ) -> Response:
        if body.stream is not None and body.stream != stream:
            other = "/generate_stream" if body.stream else "/generate"
            raise InvalidRequest(
                "stream contradicts this route", "stream", remedy=f"leave it out, or use {other}"
            )
        body = body.model_copy(update={"stream": stream})
        return await responder.respond(http, body, tgi_request(body), key)

    @routes.post("/generate", response_model=answers.TgiAnswer, responses=TGI)
    async def generate(http: HttpRequest, body: TgiRequest, key: Key = None) -> Response:
        """Continue a text."""
        return await respond(http, body, key, False)

    @routes.post("/generate_stream", response_class=Response, responses=TGI_STREAM)
    async def generate_stream(http: HttpRequest, body: TgiRequest, key: Key = None) -> Response:
        """Continue a text, with one event per token."""
        return await respond(http, body, key, True)

    @routes.post("/", response_model=list[answers.TgiAnswer], responses=TGI_STREAM)
    async def either(http: HttpRequest, body: TgiRequest, key: Key = None) -> Response:
        """Either of the other two, by `stream`, as TGI's client expects; a whole response comes in a list."""
        answer = await respond(http, body, key, bool(body.stream))
        if body.stream:
            return answer
        headers = {GENERATION_ID: answer.headers[GENERATION_ID]}
        return Response(
            b"[%b]" % bytes(answer.body), media_type="application/json", headers=headers
        )

    @routes.get("/info", responses=errors(424, error=TgiError))
    async def info() -> answers.TgiInfo:
        """The served model and its limits."""
        served = readiness.require()
        window = min(info.max_context_tokens for info in served.writers(served.default()))
        return answers.TgiInfo(
            model_id=f"{settings.name}@{served.release.pair.version}"
            if served.release
            else settings.name,
            model_sha=served.target.fingerprint,
            model_pipeline_tag="text-generation",
            max_concurrent_requests=settings.max_concurrent,
            max_best_of=1,
            max_stop_sequences=MAX_STOPS,
            max_input_tokens=window - 1,
            max_total_tokens=window,
            validation_workers=1,
            max_client_batch_size=1,
            router="semspec",
            version=__version__,
            sha=None,
            docker_label=None,
        )

    return routes


class TgiOptions(AnswerOptions):
    """What TGI's response depends on."""

    details: bool
    """Whether it includes tokens and the finish reason."""
    return_full_text: bool
    """Whether the text begins with the prompt."""


def tgi_request(body: TgiRequest) -> ClientRequest:
    """Requests logprobs wherever TGI's response lists tokens, since TGI reports each token's logprob."""
    parameters = body.parameters
    fields = {
        "prompt": "inputs",
        "grammar": "parameters.grammar",
        "logprobs": "parameters.top_n_tokens",
        "repetition_penalty": "parameters.repetition_penalty",
    }
    repetition = parameters.repetition_penalty
    details, full_text = bool(parameters.details), bool(parameters.return_full_text)
    return ClientRequest(
        prompts=(body.inputs,),
        max_tokens=parameters.max_new_tokens,
        num_logprobs=parameters.top_n_tokens or (0 if body.stream or parameters.details else None),
        are_logprobs_optional=not parameters.top_n_tokens,
        answer=answer_options(
            TgiOptions, "tgi", body, fields, details=details, return_full_text=full_text
        ),
        grammar=parameters.grammar.grammar if parameters.grammar else "",
        penalties=NO_PENALTIES if repetition is None else Penalties(repetition=repetition),
        stops=tuple(parameters.stop or ()),
        keep_stop=True,
        may_reason=False,
        default_max_tokens=MAX_NEW_TOKENS,
        has_seed=parameters.seed is not None,
    )


class TgiFormat(Format):
    """`POST /generate`, and its stream: one event per token or, for strategies without logprobs, per segment."""

    options = TgiOptions

    def __init__(self, request: GenerationRequest, system_fingerprint: str) -> None:
        super().__init__(request, system_fingerprint)
        self._tokens = SegmentStream() if request.num_logprobs is None else TokenStream()
        self._num_events = 0

    def text(self, index: int, event: Written | Kept | Ended) -> list[BaseModel]:
        if isinstance(event, Ended):
            return []  # `closing` sends the last text with the final chunk
        is_written = isinstance(event, Written)
        last_id = event.token_id if isinstance(event, Written) else _last_id(event.record)
        tokens = self._tokens.add(
            event.logprobs or (), last_id, event.delta.content, is_followed=is_written
        )
        return [self._chunk(token) for token in tokens]

    def closing(self, index: int, ended: Ended, choices: Sequence[Choice]) -> list[BaseModel]:
        (choice,) = choices  # TGI has no choices
        *tokens, last = self._tokens.close(
            ended.delta.content, choice.stop_checker.stop is not None
        )
        chunks = [self._chunk(token) for token in tokens]
        end = {
            "generated_text": self._text(choice),
            "details": answers.TgiEnd(**self._end(choice, self._num_events + 1))
            if self._options.details
            else None,
            **self.statistics(choices),
        }
        return [*chunks, self._chunk(last, **end)]

    def response(self, choices: Sequence[Choice]) -> BaseModel:
        (choice,) = choices
        return answers.TgiAnswer(
            generated_text=self._text(choice),
            details=self._details(choice) if self._options.details else None,
            **self.statistics(choices),
        )

    def error(self, error: SemspecError) -> BaseModel:
        return tgi_error_body(error)

    def _text(self, choice: Choice) -> str:
        prompt = self._request.prompts[0] if self._options.return_full_text else ""
        return f"{prompt}{choice.seen.content}"

    def _chunk(self, token: ShownToken, **end: Any) -> BaseModel:
        self._num_events += 1
        if self._num_events == 1:  # a client whose stream breaks needs the id to attach again
            end = {"semspec": answers.TgiStarted(id=self._request.id), **end}
        return answers.TgiChunk(
            index=self._num_events,
            token=token,
            top_tokens=token.alternatives if self._request.num_logprobs else None,
            **{"generated_text": None, "details": None, **end},
        )

    def _end(self, choice: Choice, num_tokens: int) -> dict[str, Any]:
        reason = "length" if choice.finish_reason is FinishReason.LENGTH else "eos_token"
        return {
            "finish_reason": reason if choice.stop_checker.stop is None else "stop_sequence",
            "generated_tokens": num_tokens
            if isinstance(self._tokens, TokenStream)
            else choice.num_tokens,
            "input_length": choice.num_prompt_tokens,
            "seed": self._request.sampling.seed if self._request.sampling.temperature > 0 else None,
        }

    def _details(self, choice: Choice) -> answers.TgiDetails:
        """With all tokens of a finished text."""
        tokens, rest = list[ShownToken](), choice.seen.content
        for record in choice.records:
            size = len(record.segment.text)
            tokens += self._tokens.add(record.logprobs or (), _last_id(record), rest[:size])
            rest = rest[size:]
        if isinstance(self._tokens, TokenStream):
            tokens += self._tokens.close("", choice.stop_checker.stop is not None)
        top_tokens = (
            [token.alternatives for token in tokens] if self._request.num_logprobs else None
        )
        return answers.TgiDetails(
            **self._end(choice, len(tokens)), prefill=[], tokens=tokens, top_tokens=top_tokens
        )


def _last_id(record: SegmentRecord) -> int | None:
    """Return the last token of a segment; None if no model wrote it."""
    return record.segment.token_ids[-1] if record.segment.token_ids else None
