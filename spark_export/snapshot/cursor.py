"""Taking, listing and ending cursors of streams (`persist/snapshots/cursors.py`)."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from warren.persist.recovery.recovery import STORE_DIRECTORY
from warren.persist.snapshots.cursors import (
    Cursor,
    cursor_path,
    list_cursors,
    read_cursor,
    read_release,
    write_cursor,
)
from warren.persist.snapshots.pins import Held, held_by_cursors, locked, read_early_release, remove
from warren.spark_export.errors import CursorInUse, SnapshotGone, StoreRefused
from warren.spark_export.snapshot.creation import hand_over, read_node_id, snapshots_base
from warren.spark_export.snapshot.snapshot_file import now_us, utc_text

OWNER_WAIT_S: Final = 10.0
"""The time to wait for another stream: a query that was just stopped or killed may still be making
a snapshot."""

OWNER_LOOK_S: Final = 0.1

NOTHING: Final = Held((), 0)


class HeldCursor:
    """A cursor that this process holds until `close`, or until it ends."""

    def __init__(self, pins: Path, name: str, lock: ExitStack) -> None:
        self.name = name
        self._pins = pins
        self._path = cursor_path(pins, name)
        self._lock = lock

    def release_others(self, needed: Collection[str]) -> None:
        """Remove the cursor's snapshots, except those in these directories. Raises OSError."""
        ids = {Path(directory).name for directory in needed}
        for snapshot in held_by_cursors(self._pins).get(self.name, NOTHING).snapshots:
            if snapshot not in ids:
                remove(self._pins / snapshot)

    def why_gone(self, directory: str) -> str | None:
        """Why the cursor's snapshot in this directory is gone; None if no reason was recorded.
        Raises OSError."""
        snapshot = Path(directory).name
        release = read_release(self._path)
        if release is None or snapshot not in release.snapshots:
            gone = self._pins / snapshot
            return str(SnapshotGone.at(gone)) if read_early_release(gone) is not None else None
        return (
            f"cursor {self.name} kept {release.octets} bytes on the disk, its cursorMaxBytes was"
            f" {release.octets_max}, and so its snapshot was released at {utc_text(release.at_us)};"
            " let it keep more, or run the stream more often"
        )

    def close(self) -> None:
        self._lock.close()


def take_cursor(
    data_directory: Path,
    name: str,
    octets_max: int | None,
    directory: Path | None,
    wait_s: float | None = None,
) -> HeldCursor:
    """Take the cursor of this name, or make it; snapshots of a stream that has ended come with it.

    `directory` is where snapshots are kept if not in the store. `wait_s` is how long another stream
    may take to release the cursor, `OWNER_WAIT_S` by default. Raises `CursorInUse` if another
    stream has it, `StoreRefused`, OSError.
    """
    node_id = read_node_id(data_directory).hex()
    store = data_directory / STORE_DIRECTORY
    try:
        pins = snapshots_base(store, directory)
        path = cursor_path(pins, name)
        with ExitStack() as lock:
            _lock(path, lock, OWNER_WAIT_S if wait_s is None else wait_s)
            before = read_cursor(path)
            if before is not None and before.node_id != node_id:
                raise CursorInUse(
                    f"cursor {name} in {pins} is of another node, {before.node_id}; name another"
                )
            ours = Cursor(name, node_id, octets_max, os.getpid(), socket.gethostname(), now_us())
            write_cursor(path, ours)
            hand_over(path, store)
            return HeldCursor(pins, name, lock.pop_all())
    except PermissionError as error:
        raise StoreRefused(f"{error}; only the user who runs the node may read it") from error


class ListedCursor(NamedTuple):
    """A cursor, its snapshots, and whether a stream reads with it now."""

    cursor: Cursor
    held: Held
    in_use: bool


def find_cursors(pins: Path) -> list[ListedCursor]:
    """The cursors whose snapshots are in this directory, by name. Raises OSError."""
    held = held_by_cursors(pins)
    found = []
    for cursor in list_cursors(pins):
        with locked(cursor_path(pins, cursor.name)) as ours:
            found.append(ListedCursor(cursor, held.get(cursor.name, NOTHING), not ours))
    return found


def end_cursor(pins: Path, name: str) -> bool:
    """Remove a cursor and its snapshots; False if it does not exist.

    Raises `CursorInUse` while a stream reads with it, OSError.
    """
    path = cursor_path(pins, name)
    with locked(path) as ours:
        if not path.exists():
            return False
        if not ours:
            raise CursorInUse(_in_use(path, "stop it first"))
        for snapshot in held_by_cursors(pins).get(name, NOTHING).snapshots:
            remove(pins / snapshot)
        shutil.rmtree(path)
    return True


def _lock(path: Path, lock: ExitStack, wait_s: float) -> None:
    """Lock a cursor's directory; made if it is missing. Raises `CursorInUse`, OSError."""
    until = time.monotonic() + wait_s
    while True:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if lock.enter_context(locked(path)):
            return
        # The stack holds no other lock yet.
        lock.close()
        if time.monotonic() >= until:
            raise CursorInUse(_in_use(path, "stop it, or give this one a cursor of its own"))
        time.sleep(OWNER_LOOK_S)


def _in_use(path: Path, advice: str) -> str:
    owner = read_cursor(path)
    whose = ""
    if owner is not None:
        whose = f", process {owner.pid} on {owner.host} since {utc_text(owner.since_us)}"
    return f"another stream reads with cursor {path.name}{whose}; {advice}"
