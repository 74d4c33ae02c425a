"""Response formats: one module per API."""

from collections.abc import Callable

from gateway.generations.call import Api, Call
from gateway.http.formats.format import Envelope, Format
from gateway.http.formats.openai import ChatFormat, CompletionFormat
from gateway.http.formats.tgi import TgiFormat

__all__ = ["Envelope", "Format", "format_of"]

_FORMATS: dict[Api, Callable[[Call, Envelope], Format]] = {
    "chat": ChatFormat,
    "completions": CompletionFormat,
    "tgi": TgiFormat,
}


def format_of(call: Call, envelope: Envelope) -> Format:
    """The response format of the API that the call came by."""
    return _FORMATS[call.api](call, envelope)
