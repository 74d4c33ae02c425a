"""Choice of the client for a completion server's API."""

from semspec.errors import Mismatch
from semspec.installation import install_command
from semspec.remote.client import CompletionClient, Server


def connect(server: Server) -> CompletionClient:
    """Return a client of the server. Raises: Mismatch when the package for its API is not installed."""
    if server.api == "tgi":
        from semspec.remote.tgi import TgiClient  # deferred: each API's client is a large package

        return TgiClient(server)
    try:
        from semspec.remote.openai import OpenAIClient
    except ModuleNotFoundError as error:
        raise Mismatch(
            f"the API openai requires the package {error.name!r}: {install_command('remote')}"
        ) from error
    return OpenAIClient(server)
