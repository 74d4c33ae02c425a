"""The playground: one static page, and what its lamps ask."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from fastapi import APIRouter
from fastapi.responses import Response

from gateway.http.openapi.responses import SERVICES
from gateway.parts import Parts, PartsOf
from gateway.storage.store import Store
from semspec.errors import NotFound, SemspecError, Unavailable
from semspec.records import Json
from semspec.types import ModelInfo, VerifierInfo

router = APIRouter(tags=["operations"])

PAGE = "index.html"
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page."""

    body: bytes
    media_type: str


def _listed() -> Mapping[str, Asset]:
    """The files of the folder by name: nothing else can be asked for."""
    assets = {}
    for entry in files("gateway").joinpath("http", "static").iterdir():
        media_type = MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            assets[entry.name] = Asset(entry.read_bytes(), media_type)
    return MappingProxyType(assets)


ASSETS = _listed()


@router.get("/", response_model=None, include_in_schema=False)
async def page() -> Response:
    """The page."""
    return _response(PAGE)


@router.get("/static/{name}", response_model=None, include_in_schema=False)
async def static(name: str) -> Response:
    """One of its files. Raises: NotFound."""
    return _response(name)


@router.get("/v1/services", responses=SERVICES)
async def services(parts: PartsOf) -> Json:
    """Who answers now, asked one by one."""
    backends = parts.backends
    asked = {
        "draft": _model(backends.drafter.info()),
        "target": _model(backends.target.info()),
        "verifier": _probes(backends.verifier.info()),
        "redis": _redis(parts.store),
    }
    answers = await asyncio.gather(*(_lamp(name, answer, parts) for name, answer in asked.items()))
    return {"services": list(answers)}


async def _lamp(name: str, answer: Awaitable[str], parts: Parts) -> Json:
    try:
        async with asyncio.timeout(parts.settings.handshake_deadline_s):
            return {"name": name, "status": "ok", "detail": await answer}
    except (SemspecError, TimeoutError) as error:
        detail = error.message if isinstance(error, SemspecError) else "no answer in time"
        return {"name": name, "status": "away", "detail": detail}


async def _model(answer: Awaitable[ModelInfo]) -> str:
    info = await answer
    name = info.model.rstrip("/").rpartition("/")[2]  # its folder on the server is not public
    return f"{name}, {info.num_layers} layers"


async def _probes(answer: Awaitable[VerifierInfo]) -> str:
    info = await answer
    return f"probes {info.draft_probe} and {info.target_probe}"


async def _redis(store: Store) -> str:
    if not await store.ping():
        raise Unavailable("no answer")
    return "keeps traces and sessions"


def _response(name: str) -> Response:
    if name not in ASSETS:
        raise NotFound(f"the playground has no file {name!r}; the page is at /", "name")
    asset = ASSETS[name]
    return Response(asset.body, media_type=asset.media_type, headers=HEADERS)
