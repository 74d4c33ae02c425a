"""Text Generation Inference's API, so that its clients need not know where they are."""

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import JsonValue

from gateway.http.answer import GENERATION_ID, answered
from gateway.http.calls import text_request, tgi_call
from gateway.http.openapi.responses import EITHER, GENERATE, GENERATE_STREAM, IDEMPOTENT, INFO, TOKENIZE
from gateway.http.schemas import TgiRequest, TokenizeRequest
from gateway.parts import Parts, PartsOf
from gateway.settings import MAX_STOPS
from semspec import __version__
from semspec.errors import DeadlineExceeded
from semspec.records import Json

router = APIRouter(tags=["tgi"])


@router.post("/generate", response_model=None, responses=GENERATE, openapi_extra=IDEMPOTENT)
async def generate(request: Request, body: TgiRequest, parts: PartsOf) -> Response:
    """Continue a text."""
    return await _answered(request, body, False, parts)


@router.post("/generate_stream", response_model=None, responses=GENERATE_STREAM, openapi_extra=IDEMPOTENT)
async def generate_stream(request: Request, body: TgiRequest, parts: PartsOf) -> Response:
    """Continue a text, an event a token."""
    return await _answered(request, body, True, parts)


@router.post("/", response_model=None, responses=EITHER, openapi_extra=IDEMPOTENT)
async def either(request: Request, body: TgiRequest, parts: PartsOf) -> Response:
    """Both of the others, as TGI's own client asks; a whole answer comes in a list."""
    answer = await _answered(request, body, bool(body.stream), parts)
    if body.stream:
        return answer
    headers = {GENERATION_ID: answer.headers[GENERATION_ID]}
    return Response(b"[%b]" % bytes(answer.body), media_type="application/json", headers=headers)


@router.post("/tokenize", response_model=None, responses=TOKENIZE)
async def tokenize(body: TokenizeRequest, parts: PartsOf) -> list[JsonValue]:
    """The target's tokens of a text, with their places in it."""
    try:
        async with asyncio.timeout(parts.settings.encode_deadline_s):
            tokens = await parts.backends.target.tokenize(body.inputs)
    except TimeoutError:
        parts.readiness.suspect()
        raise DeadlineExceeded("the target took too long to tokenize the text; retry") from None
    return [{"id": token.id, "text": token.text, "start": token.start, "stop": token.stop} for token in tokens]


@router.get("/info", response_model=None, responses=INFO)
async def info(parts: PartsOf) -> Json:
    """What is served and within which bounds."""
    served, settings = parts.readiness.require(), parts.settings
    window = served.max_context_tokens(settings.default_strategy)
    return {
        "model_id": settings.model_name,
        "model_sha": served.target.fingerprint,
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": settings.max_concurrent,
        "max_best_of": 1,
        "max_stop_sequences": MAX_STOPS,
        "max_input_tokens": window - 1,
        "max_total_tokens": window,
        "validation_workers": 1,
        "max_client_batch_size": 1,
        "router": "semspec",
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }


async def _answered(request: Request, body: TgiRequest, stream: bool, parts: Parts) -> Response:
    text = text_request(body, stream, parts.settings)
    return await answered(request, tgi_call(text, parts.settings), text, parts)
