"""From a server's address to a client of its API."""

from semspec.errors import Mismatch
from semspec.remote.protocol import CompletionClient, Server


def connect(server: Server) -> CompletionClient:
    """A client of the server. Raises: Mismatch when the package for its API is not installed."""
    if server.api == "tgi":
        from semspec.remote.tgi import TgiClient  # each API's client is a large package of its own

        return TgiClient(server)
    try:
        from semspec.remote.openai import OpenAIClient
    except ModuleNotFoundError as error:
        raise Mismatch(f"the API openai wants the package {error.name!r}: pip install 'semspec[remote]'") from error
    return OpenAIClient(server)
