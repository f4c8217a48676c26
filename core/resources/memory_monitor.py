"""Watches the memory of the process and raises the memory alarm above the watermark.

Answerable for storage_internals.md section d.1: every second, and more often near the watermark,
the resident set is compared with it, a fraction of the machine's memory or a number of bytes; above
it the alarm is on, below it is off, without hysteresis. What a control group allows counts as the
machine's memory.

Files are read through `read_file`, which raises OSError for one that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

from warren.core.resources.alarms import Alarms, Resource

ReadFile: TypeAlias = Callable[[str], str]

INTERVAL_MAX_S = 1.0
INTERVAL_MIN_S = 0.1
# How fast publishers can fill memory: near the watermark a second is too long.
FAST_BYTES_PER_S = 1_000_000_000
# When the process has grown or shrunk by so much there may be something to give back. That takes up
# to 40 ms, in which no client is served: a node that serves clients does it only when it uses much
# of what it may.
CHANGED_BYTES = 8 << 20
RELEASE_INTERVAL_S = 5.0
MUCH = 0.25
# Assumed of a system that does not say how much memory it has.
TOTAL_UNKNOWN_BYTES = 1 << 30

CGROUP = PurePosixPath("/sys/fs/cgroup")
CGROUP_V1_MEMORY = CGROUP / "memory"


@dataclass(frozen=True, slots=True)
class Fraction:
    """A share of the machine's memory, or of its disk; 0 keeps the memory alarm on for ever."""

    of_total: float


@dataclass(frozen=True, slots=True)
class Absolute:
    """A number of bytes."""

    octets: int


Limit: TypeAlias = Fraction | Absolute


def share(limit: Limit, count: int) -> Limit:
    """Return the limit of one of `count` processes that together have this limit."""
    if isinstance(limit, Fraction):
        return Fraction(limit.of_total / count)
    return Absolute(limit.octets // count)


DEFAULT_WATERMARK = Fraction(0.4)

GROWING_ONLY_UPTO = 1.1
"""Times the watermark, up to which only publishers to queues that grow have to wait."""


def limit_bytes(limit: Limit, total_bytes: int) -> int:
    """Return the limit in bytes on a machine with `total_bytes` of memory."""
    return limit.octets if isinstance(limit, Absolute) else int(limit.of_total * total_bytes)


class MemoryMonitor:
    """Compares the memory in use with the watermark; `Periodic` drives `check`.

    `used_bytes` is None as long as the system does not say. `release_free` gives memory that the
    process keeps without need back to the system; it is asked to before the alarm is raised, and
    now and then when the process has grown or shrunk. `total_bytes` is the machine's memory
    where it is not to be asked for. `is_busy` answers whether clients have been served since it was
    asked last. `blocks_all`: all publishers wait as soon as the watermark is passed.
    """

    def __init__(
        self,
        read_file: ReadFile,
        alarms: Alarms,
        watermark: Limit = DEFAULT_WATERMARK,
        *,
        release_free: Callable[[], None] = lambda: None,
        total_bytes: int | None = None,
        blocks_all: bool = False,
    ) -> None:
        self.watermark = watermark
        self._blocks_all = blocks_all
        self._given_total_bytes = total_bytes
        self.used_bytes: int | None = None
        self.total_bytes = TOTAL_UNKNOWN_BYTES
        self._read_file = read_file
        self._alarms = alarms
        self._release_free = release_free
        self.is_busy: Callable[[], bool] = lambda: False
        self._released_at = -RELEASE_INTERVAL_S
        self._bytes_then = 0

    @property
    def limit_bytes(self) -> int:
        return limit_bytes(self.watermark, self.total_bytes)

    @property
    def used_ratio(self) -> float | None:
        """The memory in use as a share of the limit; None if either is not known, or there is no
        limit."""
        limit = self.limit_bytes
        return self.used_bytes / limit if self.used_bytes is not None and limit else None

    def check(self, now: float) -> float:
        """Look once; returns the seconds until the next time."""
        self.total_bytes = self._given_total_bytes or total_memory(self._read_file)
        self.used_bytes = resident_memory(self._read_file)
        if self.used_bytes is not None and self._has_changed(now, self.used_bytes):
            self._release_free()
            self._released_at = now
            self.used_bytes = resident_memory(self._read_file)
            self._bytes_then = self.used_bytes or 0
        if self.used_bytes is None:
            return INTERVAL_MAX_S
        spare = self.limit_bytes - self.used_bytes
        may_use = self.limit_bytes * GROWING_ONLY_UPTO
        growing_only = not self._blocks_all and self.used_bytes <= may_use
        self._alarms.report(Resource.MEMORY, spare < 0, growing_only=growing_only)
        if spare < 0:
            return INTERVAL_MIN_S if growing_only else INTERVAL_MAX_S
        return min(max(spare / FAST_BYTES_PER_S, INTERVAL_MIN_S), INTERVAL_MAX_S)

    def _has_changed(self, now: float, used_bytes: int) -> bool:
        """Whether there may be something to give back."""
        if used_bytes > self.limit_bytes:
            return True
        changed = abs(used_bytes - self._bytes_then) > CHANGED_BYTES
        due = changed and now - self._released_at >= RELEASE_INTERVAL_S
        busy = self.is_busy()
        return due and (not busy or used_bytes > MUCH * self.limit_bytes)


def resident_memory(read_file: ReadFile) -> int | None:
    """The resident set of this process, or None if the system does not say."""
    return _kilobytes(read_file, "/proc/self/status", "VmRSS:")


def total_memory(read_file: ReadFile) -> int:
    """The memory of the machine, or the limit of this process's control group."""
    total = _kilobytes(read_file, "/proc/meminfo", "MemTotal:")
    limits = [] if total is None else [total]
    for path in _cgroup_limit_files(read_file):
        text = _read(read_file, path).strip()
        # "max" is version 2's word for no limit; version 1 shows a number beyond any memory.
        if text.isdecimal():
            limits.append(int(text))
    return min(limits, default=TOTAL_UNKNOWN_BYTES)


def _cgroup_limit_files(read_file: ReadFile) -> Iterator[str]:
    """Limits of the process's groups and of all groups around them.

    Inside a container the path of the group may be one of the host, which is not there; the root
    of the hierarchy is then the container's own group.
    """
    for line in _read(read_file, "/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, name = CGROUP, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUP_V1_MEMORY, "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        while group.is_relative_to(root):
            yield str(group / name)
            group = group.parent


def _kilobytes(read_file: ReadFile, path: str, label: str) -> int | None:
    for line in _read(read_file, path).splitlines():
        if line.startswith(label):
            words = line[len(label) :].split()
            return int(words[0]) * 1024 if words and words[0].isdecimal() else None
    return None


def _read(read_file: ReadFile, path: str) -> str:
    try:
        return read_file(path)
    except OSError:
        return ""
