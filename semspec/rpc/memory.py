"""The C allocator, told to keep the megabytes that every message takes and gives back."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_TRIM_BYTES = 256 << 20
_MMAP_BYTES = 32 << 20  # the most glibc takes


def keep_freed_memory() -> None:
    """Let malloc reuse freed memory, up to 256 MiB, rather than return it to the kernel and fault it in again.

    Sending 1.3 MB of states costs a third as much then. Acts on the whole process, so only a `__main__` or what it
    runs may call it; does nothing without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
