"""From settings to an engine whose segments are written by a server."""

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, cast

from semspec.engine.protocol import Engine, load_engine
from semspec.errors import DeadlineExceeded, Mismatch, Overloaded, Unavailable
from semspec.remote.connecting import connect
from semspec.remote.protocol import CompletionClient, Server
from semspec.remote.writer import RemoteWriter
from semspec.settings import ModelSettings
from semspec.types import Writer

if TYPE_CHECKING:
    from semspec.engine.transformers_engine import TransformersEngine

logger = logging.getLogger(__name__)


def load_remote_writer(settings: ModelSettings, server: Server, writer: Writer) -> Engine:
    """The model the settings name, with `server` writing for it.

    Raises: Mismatch when either cannot serve. A server that is merely away is waited for by those who call.
    """
    asyncio.run(_check(settings.model, server))
    engine = load_engine(settings, writer)
    return RemoteWriter(engine, cast("TransformersEngine", engine).lm, connect(server), writer)


async def _check(model: str, server: Server) -> None:
    """Compare names, all that a server tells of its model."""
    async with aclosing(connect(server)) as client:
        served = await _served(client)
    if served is None:
        return
    if server.api == "openai" and server.model not in served:
        names = ", ".join(served) or "nothing"
        raise Mismatch(f"{server.url} serves {names}, not {server.model}; {server.remedy}")
    name = server.model if server.api == "openai" else served[0]
    if name is not None and Path(name).name == Path(model).name:
        logger.info("segments are written by %s at %s", name, server.url)
    else:
        logger.warning(
            "segments are written by %s at %s, states are those of %s: it must be the same model",
            name,
            server.url,
            model,
        )


async def _served(client: CompletionClient) -> list[str] | None:
    try:
        return await client.served()
    except (Unavailable, Overloaded, DeadlineExceeded) as error:
        logger.warning("the model of the server that writes could not be checked: %s", error.message)
        return None
