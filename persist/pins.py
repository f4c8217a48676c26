"""The snapshots that stand in a node's store, `store/pins/<id>`: until when, and what they hold.

A snapshot is made by somebody else (`spark_export/snapshot.py`) and read by others; the node only
removes what nobody wants any more. A snapshot has hard links to log files, so what the node
removes stays on the disk until the last of them goes.

A directory is a snapshot once its name does not end in `.new`: it is renamed when it is whole, and
renamed back before it is removed. Its file `snapshot.json` says until when it is wanted. Who works
on a directory that is not whole holds a lock on it (flock on the directory itself, which writes
nothing); one without a lock was left by a process that has ended.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from warren.core.log_line import log_event
from warren.persist.group_commit import Job

log = logging.getLogger("warren.storage")

PINS_DIRECTORY = "pins"
"""Of the store."""

LEASE_FILE = "snapshot.json"
UNFINISHED = ".new"
NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}(\.new)?")
"""Of a snapshot: when it was begun, and a random number. Nothing else is touched."""

LOOK_EVERY_S = 30.0
"""A lease is for minutes or hours."""


class Pinned(NamedTuple):
    """How many snapshots there are, and the octets that are on the disk for their sake alone."""

    snapshots: int
    octets: int


class Pins:
    """Watches over the snapshots of a node that runs; `run` hands a job to its thread.

    `pinned` is what the last look found.
    """

    def __init__(
        self,
        directory: Path,
        run: Callable[[Job], None],
        wall_time: Callable[[], float],
    ) -> None:
        self.pinned = Pinned(0, 0)
        self._directory = directory
        self._run = run
        self._wall_time = wall_time

    def check(self, now: float) -> float:
        """Look in the background; returns after how many seconds to look again."""
        now_us = int(self._wall_time() * 1e6)
        self._run(lambda: self._look(now_us))
        return LOOK_EVERY_S

    def _look(self, now_us: int) -> None:
        try:
            sweep(self._directory, now_us)
            self.pinned = measure(self._directory)
        except OSError as error:
            log_event(
                log, logging.WARNING, "snapshots_unreadable", path=self._directory, error=error
            )


def sweep(directory: Path, now_us: int) -> None:
    """Remove snapshots whose lease has run out, and what was never finished. Raises OSError.

    One that cannot be removed is only logged: another user may have made it.
    """
    for path in _directories(directory):
        try:
            removed = _sweep_one(path, now_us)
        except OSError as error:
            log_event(log, logging.WARNING, "snapshot_remains", path=path, error=error)
        else:
            if removed:
                log_event(log, logging.INFO, "snapshot_removed", path=path)


def _sweep_one(path: Path, now_us: int) -> bool:
    if not is_unfinished(path) and lease_until(path) > now_us:
        return False
    with locked(path) as ours:
        # It may have been extended while nobody held it.
        if not ours or (not is_unfinished(path) and lease_until(path) > now_us):
            return False
        remove(path)
        return True


def measure(directory: Path) -> Pinned:
    """What there is now. Raises OSError.

    A file that is in several snapshots counts once, and one that the store has as well does not.
    """
    links: dict[tuple[int, int], tuple[int, os.stat_result]] = {}
    snapshots = 0
    for path in _directories(directory):
        snapshots += not is_unfinished(path)
        for file in _files(path):
            key = (file.st_dev, file.st_ino)
            links[key] = (links.get(key, (0, file))[0] + 1, file)
    octets = sum(file.st_size for count, file in links.values() if count >= file.st_nlink)
    return Pinned(snapshots, octets)


def remove(path: Path) -> None:
    """Remove a snapshot, or what was to become one; none that is there no more. Raises OSError.

    Who opens it finds all of it, or nothing.
    """
    if not is_unfinished(path):
        unfinished = path.with_name(path.name + UNFINISHED)
        try:
            os.rename(path, unfinished)
        except FileNotFoundError:
            return
        path = unfinished
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        if path.exists():
            raise


def is_unfinished(path: Path) -> bool:
    return path.name.endswith(UNFINISHED)


def lease_until(path: Path) -> int:
    """Until when a snapshot is wanted, in microseconds since 1970; 0 when it does not say."""
    try:
        until = json.loads((path / LEASE_FILE).read_text("utf-8"))["expires_us"]
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError):
        # Of no use to anybody: it was not synced when the power went.
        return 0
    return until if isinstance(until, int) else 0


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a directory; False when somebody else does, or there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _try_lock(fd) and _is_there(path, fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_there(path: Path, fd: int) -> bool:
    """Whether it was neither renamed nor removed before it was locked."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _directories(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return sorted(
                Path(at.path)
                for at in entries
                if NAME.fullmatch(at.name) and at.is_dir(follow_symlinks=False)
            )
    except FileNotFoundError:
        return []


def _files(path: Path) -> Iterator[os.stat_result]:
    """All files below; those that go meanwhile are passed over."""
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                yield os.lstat(os.path.join(directory, name))
            except FileNotFoundError:
                continue
