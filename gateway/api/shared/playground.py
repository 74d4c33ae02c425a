"""The playground: one static page."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from fastapi import APIRouter
from fastapi.responses import Response

from semspec.errors import NotFound

router = APIRouter(tags=["operations"])

PAGE = "index.html"
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file of the page."""

    body: bytes
    media_type: str


def _load_assets() -> Mapping[str, Asset]:
    """The folder's files by name; only these can be requested."""
    assets = {}
    for entry in files("semspec.gateway").joinpath("api", "static").iterdir():
        media_type = MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            assets[entry.name] = Asset(entry.read_bytes(), media_type)
    return MappingProxyType(assets)


ASSETS = _load_assets()


@router.get("/", response_model=None, include_in_schema=False)
async def page() -> Response:
    """The page."""
    return _response(PAGE)


@router.get("/static/{name}", response_model=None, include_in_schema=False)
async def static(name: str) -> Response:
    """One of the page's files. Raises: NotFound."""
    return _response(name)


def _response(name: str) -> Response:
    if name not in ASSETS:
        raise NotFound(f"the playground has no file {name!r}; the page is at /", "name")
    asset = ASSETS[name]
    return Response(asset.body, media_type=asset.media_type, headers=HEADERS)
