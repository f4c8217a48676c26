"""The process for whose sake a snapshot stands, so that the snapshot can go when the process has.

A process is known by its number and the moment it was started, on one boot of one machine, or in
one container (a namespace of processes). A process that sees other processes than the maker of the
snapshot cannot tell, and leaves it to the lease.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

PROC = Path("/proc")

_STARTED = 19
"""Place of the start in what follows the name of the program in /proc/PID/stat."""


class Owner(NamedTuple):
    """`started` in clock ticks since the boot; `where` names the boot and the namespace."""

    pid: int
    started: int
    where: str


def owner_of(pid: int) -> Owner | None:
    """Return the owner with this process id; None if there is none, or the system does not say."""
    started, where = _started(pid), _where()
    return None if started is None or where is None else Owner(pid, started, where)


def decode_owner(fields: Any) -> Owner | None:
    """Return the owner that was written as a list; None for anything else."""
    match fields:
        case [int(pid), int(started), str(where)] if pid > 0:
            return Owner(pid, started, where)
    return None


def has_ended(owner: Owner) -> bool:
    """Return True if the process has certainly ended."""
    if owner.where != _where():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        # A process of another user has this id; whether it is the owner may be hidden from us.
        pass
    started = _started(owner.pid)
    return started is not None and started != owner.started


def _started(pid: int) -> int | None:
    try:
        stat = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
        # The name is in parentheses and may have any character.
        return int(stat.rpartition(")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return None


def _where() -> str | None:
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return None
