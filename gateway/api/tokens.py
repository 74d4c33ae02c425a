"""Text to the target's token ids and back: TGI's `/tokenize`, and vLLM's `/tokenize` and `/detokenize`."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from semspec.decoding import Target
from semspec.errors import DeadlineExceeded, InternalError, InvalidRequest
from semspec.gateway.api.requests import check_model
from semspec.gateway.api.responses import DETOKENIZE, TOKENIZE
from semspec.gateway.api.sse import unless_disconnected
from semspec.gateway.api.tgi_bodies import DetokenizeRequest, TokenizeInputs, TokenizeMessages, TokenizeRequest
from semspec.gateway.api.tgi_models import Detokenized, TgiPlace, Tokens
from semspec.gateway.generation.choice import broken_target
from semspec.gateway.readiness import Readiness
from semspec.gateway.settings import GatewaySettings
from semspec.types import TokenIds

T = TypeVar("T")


def router(target: Target, readiness: Readiness, settings: GatewaySettings) -> APIRouter:
    """`/tokenize` and `/detokenize`."""
    routes = APIRouter(tags=["tgi"])

    async def asked(http: HttpRequest, call: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(settings.encode_deadline_s):
                with broken_target(InternalError):
                    return await unless_disconnected(http.receive, call)
        except TimeoutError:
            readiness.suspect()
            raise DeadlineExceeded("the target took too long to tokenize the text; retry") from None

    @routes.post("/tokenize", responses=TOKENIZE)
    async def tokenize(http: HttpRequest, body: TokenizeRequest) -> list[TgiPlace] | Tokens:
        """The target's tokens of a text, with their positions, as in TGI; or those of a prompt, as in vLLM."""
        if isinstance(body, TokenizeInputs):
            tokens = await asked(http, target.tokenize(body.inputs))
            return [TgiPlace(id=token.id, text=token.text, start=token.start, stop=token.stop) for token in tokens]
        check_model(body.model, settings)
        if isinstance(body, TokenizeMessages):
            messages = [message.message for message in body.messages]
            ids = list((await asked(http, target.encode(messages))).token_ids)
        elif body.add_special_tokens is False or not body.prompt.strip():  # the target encodes no empty prompt
            ids = [token.id for token in await asked(http, target.tokenize(body.prompt))]
        else:
            ids = list((await asked(http, target.encode(body.prompt))).token_ids)
        window = readiness.require().target.max_context_tokens
        return Tokens(count=len(ids), max_model_len=window, tokens=ids, token_strs=None)

    @routes.post("/detokenize", responses=DETOKENIZE)
    async def detokenize(http: HttpRequest, body: DetokenizeRequest) -> Detokenized:
        """The text of the target's token ids."""
        check_model(body.model, settings)
        try:
            return Detokenized(prompt=(await asked(http, target.encode(TokenIds(tuple(body.tokens))))).text)
        except InvalidRequest as error:
            raise type(error)(error.message, "tokens") from error

    return routes
