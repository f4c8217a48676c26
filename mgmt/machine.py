"""The resources of the process and its machine: memory, disk, files, threads."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from warren.core.resources.disk_monitor import DiskMonitor
from warren.core.resources.memory_monitor import MemoryMonitor
from warren.open_files import descriptors


class Machine(NamedTuple):
    """Octets and counts of this moment; 0 where the system does not tell."""

    mem_used: int
    mem_limit: int
    disk_free: int
    disk_free_limit: int
    fd_used: int
    fd_total: int
    sockets_used: int
    sockets_total: int
    proc_used: int
    proc_total: int


THREADS_MAX = 1024
"""Reported in place of RabbitMQ's limit of processes; a node has about five threads."""


def look(
    memory: MemoryMonitor, disk: DiskMonitor | None, fd_used: int, sockets_used: int
) -> Machine:
    """Gather the figures of this moment; the caller has counted open files and sockets.

    `sockets_total` is how many clients may connect while the other files stay open.
    """
    shares = descriptors()
    return Machine(
        mem_used=memory.used_bytes or 0,
        mem_limit=memory.limit_bytes,
        disk_free=(disk.free_bytes or 0) if disk is not None else 0,
        disk_free_limit=disk.limit_bytes if disk is not None else 0,
        fd_used=fd_used,
        fd_total=shares.total,
        sockets_used=sockets_used,
        sockets_total=max(sockets_used, shares.clients - max(0, fd_used - sockets_used)),
        proc_used=threading.active_count(),
        proc_total=THREADS_MAX,
    )


def open_files() -> int:
    """File descriptors of this process; 0 if the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
