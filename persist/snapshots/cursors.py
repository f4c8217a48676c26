"""Cursors: names under which streams keep snapshots, `store/pins/cursors/NAME`.

A snapshot that names a cursor stands as long as that cursor does, whether its stream runs or not,
and at most until what it keeps is more than the cursor may keep. Who reads a stream holds the lock
of the directory of its cursor, so that no two do, and one that was killed is in no other's way.

- `cursor.json` is written by the stream: what the cursor may keep, and whose it is;
- `released.json` by who took its snapshots away, for the stream that comes back.
"""

from __future__ import annotations

import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from warren.core.log_line import log_event
from warren.persist.disk.data_directory import write_durably

log = logging.getLogger("warren.storage")

CURSORS_DIRECTORY = "cursors"
"""In the directory of the snapshots."""

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")

CURSOR_FILE = "cursor.json"
RELEASE_FILE = "released.json"


@dataclass(frozen=True)
class Cursor:
    """`octets_max` is None where it may keep everything. `pid`, `host` and `since_us` tell of the
    stream that has it, or had it last; `node_id` as 32 hex digits, whose messages it reads."""

    name: str
    node_id: str
    octets_max: int | None
    pid: int
    host: str
    since_us: int


@dataclass(frozen=True)
class Release:
    """Why snapshots of a cursor are gone: they kept `octets`, which is more than `octets_max`."""

    at_us: int
    octets: int
    octets_max: int
    snapshots: tuple[str, ...]


def cursor_path(pins: Path, name: str) -> Path:
    return pins / CURSORS_DIRECTORY / name


def read_cursor(path: Path) -> Cursor | None:
    """Return a cursor; None if there is none, or power went while it was written. Raises
    OSError."""
    fields = _read(path / CURSOR_FILE)
    try:
        octets_max = fields["octets_max"]
        return Cursor(
            name=path.name,
            node_id=str(fields["node_id"]),
            octets_max=None if octets_max is None else int(octets_max),
            pid=int(fields["pid"]),
            host=str(fields["host"]),
            since_us=int(fields["since_us"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def write_cursor(path: Path, cursor: Cursor) -> None:
    """Write a cursor, whose directory must be there. Raises OSError."""
    _write(path / CURSOR_FILE, asdict(cursor))


def read_release(path: Path) -> Release | None:
    """The last one; None when nothing was taken away. Raises OSError."""
    fields = _read(path / RELEASE_FILE)
    try:
        return Release(
            at_us=int(fields["at_us"]),
            octets=int(fields["octets"]),
            octets_max=int(fields["octets_max"]),
            snapshots=tuple(map(str, fields["snapshots"])),
        )
    except (KeyError, TypeError, ValueError):
        return None


def note_release(path: Path, release: Release) -> None:
    """Tell the log and the stream of a release. A disk that is full raises no error: it is a reason
    to go on."""
    log_event(
        log,
        logging.WARNING,
        "cursor_released",
        cursor=path.name,
        bytes=release.octets,
        max_bytes=release.octets_max,
        snapshots=len(release.snapshots),
        reason="it kept more than cursorMaxBytes",
    )
    try:
        _write(path / RELEASE_FILE, asdict(release))
    except OSError as error:
        log_event(log, logging.WARNING, "cursor_unwritable", path=path, error=error)


def list_cursors(pins: Path) -> list[Cursor]:
    """The cursors whose snapshots stand in this directory, by name. Raises OSError."""
    try:
        names = sorted(os.listdir(pins / CURSORS_DIRECTORY))
    except FileNotFoundError:
        return []
    found = [read_cursor(cursor_path(pins, name)) for name in names if NAME.fullmatch(name)]
    return [cursor for cursor in found if cursor is not None]


def _read(path: Path) -> Any:
    """Read a file; None when it does not exist, or cannot be understood. Raises OSError."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _write(path: Path, fields: dict[str, Any]) -> None:
    """Write a file and sync it: a cursor and its limit outlive the stream, and a crash."""
    write_durably(path, json.dumps(fields).encode())
