"""Settings of the C library's allocator, for glibc; with other libraries they are left out.

A broker allocates and frees large bodies all the time. Giving each back to the system and faulting
it in again cost half the time of the 64 KB benchmark, so freed memory is kept. But when memory runs
short, free memory must go back to the system, or the alarm would never end.
"""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger("warren.node")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 64 << 20
"""The free memory kept at the top of the heap."""

MAPPED_FROM_BYTES = 4 << 20
"""Buffers below this size come from the heap, not from a mapping of their own. A body that grows as
it arrives is copied when it leaves the heap, and everything waits for that copy: 20 ms for 32 MiB.
A mapping grows without a copy."""


def keep_freed_memory() -> None:
    """Keep freed memory for the next bodies."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        log.debug("allocator_call_missing name=mallopt")
        return
    mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def release_freed_memory() -> None:
    """Give free memory back to the system, wherever in the heap it is."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        log.debug("allocator_call_missing name=malloc_trim")
