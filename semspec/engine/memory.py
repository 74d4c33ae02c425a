"""What an engine does when its device has no memory left: the caches go, the call is refused, the service lives on."""

import logging

import torch

from semspec.engine.prefix_cache import PrefixCache
from semspec.engine.scheduler import Steps, T
from semspec.errors import Overloaded

_log = logging.getLogger(__name__)


def within_memory(steps: Steps[T], cache: PrefixCache) -> Steps[T]:
    """The steps of a call. Raises: Overloaded when there is not enough memory for it, and what the steps raise.

    `cache` bounds what is kept between calls; the keys and values of those under way come on top.
    """
    try:
        yield from steps
        return
    except torch.OutOfMemoryError as error:
        _log.error("out of memory, with %d bytes in the cache: %s", cache.num_bytes, error)
    # Only here is the error forgotten, and with it the frames that hold the tensors of the call.
    cache.clear()
    torch.cuda.empty_cache()
    raise Overloaded("the engine has no memory left for this call; retry later, or on another replica")
