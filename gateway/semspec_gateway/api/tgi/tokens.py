"""Text to the target's token ids and back: TGI's `/tokenize`, and vLLM's `/tokenize` and `/detokenize`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import TypeAdapter

from semspec.decoding import Target
from semspec.types import Token, TokenIds
from semspec_gateway.api.shared.bodies import BodyRoute
from semspec_gateway.api.shared.document import ANY_TGI_ROUTE, TGI, errors
from semspec_gateway.api.shared.middleware import owner_of, unless_disconnected
from semspec_gateway.api.shared.resolver import check_model
from semspec_gateway.api.tgi.answers import Detokenized, TgiSimpleToken, Tokens
from semspec_gateway.api.tgi.requests import (
    DetokenizeRequest,
    TokenizeInputs,
    TokenizeMessages,
    TokenizeRequest,
)
from semspec_gateway.generation.preparation import Preparation
from semspec_gateway.readiness import Readiness
from semspec_gateway.settings import GatewaySettings

T = TypeVar("T")
_TOKENS = TypeAdapter(list[TgiSimpleToken])


def router(preparation: Preparation, readiness: Readiness, settings: GatewaySettings) -> APIRouter:
    """`/tokenize` and `/detokenize`."""
    routes = APIRouter(tags=["tgi"], route_class=BodyRoute)

    def target_of(model: str | None) -> Target:
        check_model(model, settings, readiness)
        return readiness.require().pinned.target

    async def ask_target(http: HttpRequest, field: str, call: Callable[[], Awaitable[T]]) -> T:
        async def answer() -> T:
            async with preparation.admitted(owner_of(http)):
                return await preparation.tokenized(call, field)

        return await unless_disconnected(http.receive, answer())

    @routes.post(
        "/tokenize",
        responses={**TGI, **ANY_TGI_ROUTE},
        response_model=list[TgiSimpleToken] | Tokens,
    )
    async def tokenize(http: HttpRequest, body: TokenizeRequest) -> Response:
        """The target's tokens of a text, with their positions, as in TGI; or those of a prompt, as in vLLM."""
        if isinstance(body, TokenizeInputs):
            call = partial(target_of(None).tokenize, body.inputs)
            return await asyncio.to_thread(_token_list, await ask_target(http, "inputs", call))
        target = target_of(body.model)
        if isinstance(body, TokenizeMessages):
            messages = [message.message for message in body.messages]
            ids = (await ask_target(http, "messages", partial(target.encode, messages))).token_ids
        elif body.add_special_tokens is False or not body.prompt.strip():
            # The target encodes no empty prompt.
            ids = tuple(
                token.id
                for token in await ask_target(http, "prompt", partial(target.tokenize, body.prompt))
            )
        else:
            ids = (await ask_target(http, "prompt", partial(target.encode, body.prompt))).token_ids
        window = readiness.require().target.max_context_tokens
        tokens = Tokens(count=len(ids), max_model_len=window, tokens=list(ids), token_strs=None)
        return Response(tokens.model_dump_json(), media_type="application/json")

    @routes.post("/detokenize", responses=errors(400, 404, 408, 413, 429, 503, 504))
    async def detokenize(http: HttpRequest, body: DetokenizeRequest) -> Detokenized:
        """The text of the target's token ids."""
        call = partial(target_of(body.model).encode, TokenIds(tuple(body.tokens)))
        return Detokenized(prompt=(await ask_target(http, "tokens", call)).text)

    return routes


def _token_list(tokens: Sequence[Token]) -> Response:
    simple_tokens = _TOKENS.validate_python(tokens, from_attributes=True)
    return Response(_TOKENS.dump_json(simple_tokens), media_type="application/json")
