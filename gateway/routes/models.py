"""The pair, and each strategy as a model of its own, so that any client can choose without extension fields."""

from fastapi import APIRouter
from pydantic import JsonValue

from gateway.call import model_names
from gateway.parts import Parts, PartsOf
from semspec.errors import NotFound
from semspec.trace import Json

router = APIRouter(prefix="/v1/models")


@router.get("")
async def models(parts: PartsOf) -> Json:
    """All names a request may put in `model`."""
    data: list[JsonValue] = [_model(name, parts) for name in model_names(parts.settings)]
    return {"object": "list", "data": data}


@router.get("/{name:path}")
async def model(name: str, parts: PartsOf) -> Json:
    """One of them."""
    if name not in model_names(parts.settings):
        raise NotFound(f"the model {name!r} does not exist", "model")
    return _model(name, parts)


def _model(name: str, parts: Parts) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "semspec", "root": parts.settings.model_name}
