"""The playground: one static page."""

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
FILES = MappingProxyType(
    {
        entry.name: entry.read_bytes()
        for entry in files("semspec_gateway").joinpath("api", "static").iterdir()
        if entry.name.rpartition(".")[2] in MEDIA_TYPES
    }
)
"""The folder's files by name; only these can be requested."""


@router.get("/", response_model=None, include_in_schema=False)
async def page() -> Response:
    """The page."""
    return _response(PAGE)


@router.get("/static/{name}", response_model=None, include_in_schema=False)
async def static(name: str) -> Response:
    """One of the page's files. Raises: NotFound."""
    return _response(name)


def _response(name: str) -> Response:
    if name not in FILES:
        raise NotFound(f"the playground has no file {name!r}", "name", remedy="the page is at /")
    return Response(FILES[name], media_type=MEDIA_TYPES[name.rpartition(".")[2]], headers=HEADERS)
