"""Work that ends with the client's connection, whether anything is being sent or not."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection."""


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`; cancel it, and wait until it has cleaned up, as soon as the client hangs up.

    The request's body must have been read. Raises: ClientGone, and what `work` raises.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
