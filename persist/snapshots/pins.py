"""The snapshots that stand in a node's store, `store/pins/<id>`: until when, and what they hold.

Other processes make snapshots (`spark_export/snapshot/snapshot.py`) and read them; the node only
removes pins that are not wanted any more: whose lease has run out, whose maker's process has ended
(`pin_owner.py`), whose cursor (`cursors.py`) has ended or keeps more than it may. A snapshot has
hard links to log files, so what the node removes stays on the disk until the last of them goes.
When all snapshots together keep more than they may the oldest go first; `released/ID` says so to
those who read them.

A directory is a snapshot once its name does not end in `.new`: it is renamed when it is whole, and
renamed back before it is removed. Its file `snapshot.json` says until when it is wanted, or which
cursor it is of. Who works on a directory that is not whole holds a lock on it (flock on the
directory itself, which writes nothing); one without a lock was left by a process that has ended.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from warren.core.log_line import log_event
from warren.persist.disk.group_commit import Job
from warren.persist.snapshots import cursors
from warren.persist.snapshots.cursors import Release, cursor_path, list_cursors, note_release
from warren.persist.snapshots.pin_owner import Owner, decode_owner, has_ended

log = logging.getLogger("warren.storage")

PINS_DIRECTORY = "pins"
"""In the directory of the store."""

RELEASED_DIRECTORY = "released"
"""In the directory of the snapshots: a small file for each that was released early."""
RELEASED_KEPT_S = 24 * 3600.0

LEASE_FILE = "snapshot.json"
UNFINISHED = ".new"
NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}(\.new)?")
"""The name of a snapshot: when it was begun, and a random number. Other names are left alone."""

LOOK_EVERY_S = 30.0
"""A lease is for minutes or hours."""

NO_LIMIT = 1 << 63


class Pinned(NamedTuple):
    """How many snapshots and cursors there are, and the octets that are on the disk for the sake
    of snapshots alone."""

    snapshots: int
    octets: int
    cursors: int


class Held(NamedTuple):
    """The snapshots of a cursor, their ids, and the octets that the store would not have without
    snapshots: of this cursor, whether or not others keep them too."""

    snapshots: tuple[str, ...]
    octets: int


class Lease(NamedTuple):
    """Until when a snapshot is wanted, in microseconds since 1970, for which process, and since
    when; where a cursor is named that says how long instead."""

    expires_us: int
    cursor: str | None
    owner: Owner | None = None
    created_us: int = 0


NO_LEASE = Lease(0, None)


class EarlyRelease(NamedTuple):
    """Why a snapshot is gone: all together kept `octets` when `octets_max` were allowed."""

    at_us: int
    octets: int
    octets_max: int


class Pins:
    """Watches over the snapshots of a node that runs; `run` hands a job to its thread.

    `pinned` is what the last look found, `released` counts those that went because all together
    kept more than `octets_max` says.
    """

    def __init__(
        self,
        directory: Path,
        run: Callable[[Job], None],
        wall_time: Callable[[], float],
        octets_max: Callable[[], int] = lambda: NO_LIMIT,
    ) -> None:
        self.pinned = Pinned(0, 0, 0)
        self.released = 0
        self.octets_max = octets_max
        self._directory = directory
        self._run = run
        self._wall_time = wall_time
        self._unreadable = ""

    def check(self, now: float) -> float:
        """Look in the background; returns after how many seconds to look again."""
        now_us = int(self._wall_time() * 1e6)
        self._run(lambda: self._look(now_us))
        return LOOK_EVERY_S

    def _look(self, now_us: int) -> None:
        try:
            sweep(self._directory, now_us)
            self.released += keep_within(self._directory, now_us, self.octets_max())
            self.pinned = measure(self._directory)
        except OSError as error:
            self._report(str(error))
        else:
            self._unreadable = ""

    def _report(self, error: str) -> None:
        """Log an error of the directory once, not at each look."""
        if error != self._unreadable:
            self._unreadable = error
            log_event(
                log, logging.WARNING, "snapshots_unreadable", path=self._directory, error=error
            )


def sweep(directory: Path, now_us: int) -> None:
    """Remove snapshots that are wanted no longer, and what was never finished. Raises OSError.

    One that cannot be read or removed is only logged: another user may have made it.
    """
    for path in _directories(directory):
        _sweep_one(path, partial(_is_wanted, path, now_us))
    _sweep_cursors(directory, now_us)
    _forget_released(directory, now_us)


def keep_within(directory: Path, now_us: int, octets_max: int) -> int:
    """Release the oldest snapshots until all keep no more than this; returns how many.

    Those of cursors as well. Raises OSError; one that cannot be removed is only logged.
    """
    released = 0
    paths = [path for path in _directories(directory) if not is_unfinished(path)]
    paths.sort(key=_created_us)
    while paths:
        octets = measure(directory).octets
        if octets <= octets_max:
            break
        oldest = paths.pop(0)
        log_event(
            log,
            logging.WARNING,
            "snapshot_released",
            path=oldest,
            reason="all snapshots together keep more than snapshot_limit",
            bytes=octets,
            max_bytes=octets_max,
        )
        _note_early_release(oldest, EarlyRelease(now_us, octets, octets_max))
        _sweep_one(oldest, lambda: False)
        released += 1
    return released


def read_early_release(snapshot: Path) -> EarlyRelease | None:
    """Why a snapshot that stood here is gone; None when it was not released early."""
    try:
        at_us, octets, octets_max = json.loads(_release_note(snapshot).read_text("utf-8"))
        return EarlyRelease(int(at_us), int(octets), int(octets_max))
    except (OSError, ValueError, TypeError):
        return None


def _created_us(path: Path) -> int:
    """When a snapshot was begun; long ago when it cannot be read."""
    try:
        return read_lease(path).created_us
    except OSError:
        return 0


def _note_early_release(snapshot: Path, release: EarlyRelease) -> None:
    """No error: a disk that is full is a reason to go on."""
    note = _release_note(snapshot)
    try:
        note.parent.mkdir(mode=0o700, exist_ok=True)
        note.write_text(json.dumps(release), "utf-8")
    except OSError as error:
        log_event(log, logging.WARNING, "release_not_noted", path=note, error=error)


def _release_note(snapshot: Path) -> Path:
    return snapshot.parent / RELEASED_DIRECTORY / snapshot.name


def _forget_released(directory: Path, now_us: int) -> None:
    """Remove notes that will not be asked for any more."""
    try:
        with os.scandir(directory / RELEASED_DIRECTORY) as notes:
            for note in notes:
                if note.stat().st_mtime < now_us / 1e6 - RELEASED_KEPT_S:
                    os.unlink(note.path)
    except FileNotFoundError:
        return


def _sweep_one(path: Path, is_wanted: Callable[[], bool]) -> None:
    try:
        if is_wanted():
            return
        with locked(path) as ours:
            # The lease may have been extended while the lock was free.
            if not ours or is_wanted():
                return
            remove(path)
    except OSError as error:
        log_event(log, logging.WARNING, "snapshot_remains", path=path, error=error)
    else:
        log_event(log, logging.INFO, "snapshot_removed", path=path)


def _is_wanted(path: Path, now_us: int) -> bool:
    if is_unfinished(path):
        return False
    lease = read_lease(path)
    if lease.cursor is None:
        ended = lease.owner is not None and has_ended(lease.owner)
        return lease.expires_us > now_us and not ended
    return cursor_path(path.parent, lease.cursor).is_dir()


def _sweep_cursors(directory: Path, now_us: int) -> None:
    """Take their snapshots from cursors that keep more than they may."""
    limits = {at.name: at.octets_max for at in list_cursors(directory)}
    if not any(limits.values()):
        return
    for name, held in held_by_cursors(directory).items():
        most = limits.get(name)
        if most is not None and held.octets > most:
            note_release(
                cursor_path(directory, name), Release(now_us, held.octets, most, held.snapshots)
            )
            for snapshot in held.snapshots:
                _sweep_one(directory / snapshot, lambda: False)


def measure(directory: Path) -> Pinned:
    """Measure the pins that there are now. Raises OSError.

    A file that is in several snapshots counts once, and one that the store has as well does not.
    """
    paths = _directories(directory)
    octets = sum(file.octets for file in _unshared_files(paths))
    snapshots = sum(not is_unfinished(path) for path in paths)
    return Pinned(snapshots, octets, len(list_cursors(directory)))


def held_by_cursors(directory: Path) -> dict[str, Held]:
    """Return the snapshots that are held by cursors, by the names of these. Raises OSError."""
    paths = _directories(directory)
    cursor_of = {
        path: cursor
        for path in paths
        if not is_unfinished(path) and (cursor := _cursor_of(path)) is not None
    }
    octets: dict[str, int] = dict.fromkeys(cursor_of.values(), 0)
    for file in _unshared_files(paths):
        for cursor in {cursor_of[path] for path in file.snapshots if path in cursor_of}:
            octets[cursor] += file.octets
    snapshots: dict[str, list[str]] = defaultdict(list)
    for path, cursor in cursor_of.items():
        snapshots[cursor].append(path.name)
    return {name: Held(tuple(snapshots[name]), octets[name]) for name in octets}


def _cursor_of(path: Path) -> str | None:
    """Return the cursor of a snapshot; None without one, or if it is unreadable (`sweep` logs
    that)."""
    try:
        return read_lease(path).cursor
    except OSError:
        return None


@dataclass
class _PinnedFile:
    octets: int
    links: int = 0
    snapshots: set[Path] = field(default_factory=set)


def _unshared_files(paths: list[Path]) -> list[_PinnedFile]:
    """Return the files in these snapshots that have no link outside of them."""
    found: dict[tuple[int, int], _PinnedFile] = {}
    of_others = set()
    for path in paths:
        for status in _files(path):
            key = (status.st_dev, status.st_ino)
            file = found.setdefault(key, _PinnedFile(status.st_size))
            file.links += 1
            file.snapshots.add(path)
            if file.links < status.st_nlink:
                of_others.add(key)
            else:
                of_others.discard(key)
    return [file for key, file in found.items() if key not in of_others]


def remove(path: Path) -> None:
    """Remove a snapshot, or what was to become one; none that is there no more. Raises OSError.

    Who opens it finds all of it, or nothing. Others may be removing it, too: a reader that releases
    it, and the sweep of another one or of the node, which finds it unfinished.
    """
    if not is_unfinished(path):
        unfinished = path.with_name(path.name + UNFINISHED)
        try:
            os.rename(path, unfinished)
        except FileNotFoundError:
            return
        path = unfinished
    while path.exists():
        with suppress(FileNotFoundError):
            shutil.rmtree(path)


def is_unfinished(path: Path) -> bool:
    return path.name.endswith(UNFINISHED)


def read_lease(path: Path) -> Lease:
    """The lease of a snapshot; one long over where the file does not say. Raises OSError."""
    try:
        fields = json.loads((path / LEASE_FILE).read_text("utf-8"))
        until, cursor = fields["expires_us"], fields.get("cursor")
        created = int(fields.get("created_us", 0))
    except FileNotFoundError:
        return NO_LEASE
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # The snapshot is of no use any more: its file was not synced when the power went.
        return NO_LEASE
    if not isinstance(until, int):
        return NO_LEASE
    if cursor is not None and not (isinstance(cursor, str) and cursors.NAME.fullmatch(cursor)):
        return NO_LEASE
    return Lease(until, cursor, decode_owner(fields.get("owner")), created)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a directory; False when another process does, or there is none."""
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
    """Whether the directory was neither renamed nor removed before it was locked."""
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
