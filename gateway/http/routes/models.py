"""The pair, and each strategy as a model of its own, so that any client can choose without extension fields."""

from fastapi import APIRouter
from pydantic import JsonValue

from gateway.http.calls import model_names
from gateway.http.openapi.responses import MODEL, MODELS
from gateway.parts import Parts, PartsOf
from semspec.errors import NotFound
from semspec.records import Json

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("", responses=MODELS)
async def models(parts: PartsOf) -> Json:
    """All names a request may put in `model`: of strategies, those this pair can do."""
    data: list[JsonValue] = [_model(name, parts) for name in _names(parts)]
    return {"object": "list", "data": data}


@router.get("/{name:path}", description="One of these names", responses=MODEL)
async def model(name: str, parts: PartsOf) -> Json:
    """One of them."""
    if name not in _names(parts):
        raise NotFound(f"the model {name!r} does not exist, or names a strategy this pair cannot do", "model")
    return _model(name, parts)


def _names(parts: Parts) -> list[str]:
    return model_names(parts.settings, parts.readiness.strategies)


def _model(name: str, parts: Parts) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "semspec", "root": parts.settings.model_name}
