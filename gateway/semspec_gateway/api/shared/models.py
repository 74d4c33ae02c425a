"""Names of models: their routes and response schemas."""

from typing import Literal

from fastapi import APIRouter

from semspec.errors import NotFound
from semspec.records import Body
from semspec_gateway.api.shared.document import Responses, errors
from semspec_gateway.readiness import Readiness
from semspec_gateway.settings import GatewaySettings

LISTED: Responses = {
    200: {
        "links": {
            "model": {"operationId": "model", "parameters": {"name": "$response.body#/data/0/id"}}
        }
    }
}


class ModelName(Body):
    """A value for a request's `model`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    strategy: str
    """The strategy of a request that names only this model; empty before the first handshake."""


class ModelNames(Body):
    """All values for a request's `model`."""

    object: Literal["list"]
    data: list[ModelName]
    unsupported: dict[str, str]
    """Each strategy that the pair does not support, and what the pair lacks for it."""


def router(readiness: Readiness, settings: GatewaySettings) -> APIRouter:
    """`/v1/models`: the pair, and each strategy as a separate model, so that any client can choose one."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    def names() -> dict[str, ModelName]:
        root, default = settings.name, readiness.default_strategy
        named = {root: default} | {f"{root}:{name}": name for name in readiness.strategies}
        if readiness.version:
            named[f"{root}@{readiness.version}"] = default
        return {
            name: ModelName(
                id=name, object="model", created=0, owned_by="semspec", root=root, strategy=strategy
            )
            for name, strategy in named.items()
        }

    @routes.get("", responses=LISTED)
    async def models() -> ModelNames:
        """All values for a request's `model`, with the strategies that this pair supports."""
        return ModelNames(
            object="list", data=list(names().values()), unsupported=readiness.unsupported
        )

    @routes.get("/{name:path}", responses=errors(404))
    async def model(name: str) -> ModelName:
        """One model name."""
        served = names()
        if name not in served:
            lacks = readiness.unsupported.get(name.removeprefix(f"{settings.name}:"))
            reason = f": the pair does not support its strategy ({lacks})" if lacks else ""
            remedy = "" if lacks else "GET /v1/models lists all"
            raise NotFound(f"the model {name!r} does not exist{reason}", "model", remedy=remedy)
        return served[name]

    return routes
