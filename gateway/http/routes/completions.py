"""Generation: OpenAI's chat and plain completions."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway.http.answer import answered
from gateway.http.calls import chat_call, completion_call
from gateway.http.openapi.responses import CHAT, COMPLETION, IDEMPOTENT
from gateway.http.schemas import ChatRequest, CompletionRequest
from gateway.parts import PartsOf

router = APIRouter(prefix="/v1", tags=["completions"])


@router.post("/chat/completions", response_model=None, responses=CHAT, openapi_extra=IDEMPOTENT)
async def chat_completions(request: Request, body: ChatRequest, parts: PartsOf) -> Response:
    """Answer a conversation."""
    return await answered(request, chat_call(body, parts.settings), body, parts)


@router.post("/completions", response_model=None, responses=COMPLETION, openapi_extra=IDEMPOTENT)
async def completions(request: Request, body: CompletionRequest, parts: PartsOf) -> Response:
    """Continue a text."""
    return await answered(request, completion_call(body, parts.settings), body, parts)
