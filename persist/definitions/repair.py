"""Makes a new LMDB file of definitions, from the readable part of the old one and from the copy.

For a node that stands still. The old file is put aside, never changed or deleted. What the new one
gets:

- every definition and note that can be read in the newest state of the old file that has a meta
  page;
- of definitions that are damaged there, what the copy (`second_copy.py`) has of them;
- when pages are damaged, or the file is missing, everything else that is in the copy too, but for
  queues that a note says were deleted. A definition deleted in the last seconds may come back
  so; its queue then has what is left of its messages.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import lmdb

from warren.core.ports import Stored
from warren.persist.definitions.database import (
    DATA_FILE,
    LOCK_FILE,
    MAP_BYTES_FIRST,
    DamagedMetadata,
)
from warren.persist.definitions.deleted_queues import noted_queue, storage_ids
from warren.persist.definitions.lmdb_file import DamagedLmdb, LmdbFile, Meta, Walk
from warren.persist.definitions.metadata import DIRECTORY, decode_definition, shown_key
from warren.persist.definitions.metadata_replica import DIRECTORY as CLUSTER_DIRECTORY
from warren.persist.definitions.second_copy import read_copy
from warren.persist.disk.cluster_file import read_known_cluster
from warren.persist.disk.data_directory import (
    DataDirectory,
    DataDirectoryRefused,
    NotADataDirectory,
    read_identity,
    sync_directory,
)

ASIDE = "damaged"


class Repaired(NamedTuple):
    """The outcome of a repair. `aside` is where the old file is, None when there was none.

    `kept` definitions are from the old file, `taken` from the copy. `damage` says what was wrong,
    `lost` names definitions of which neither has anything that can be read. `complete` is False
    when there may have been more, whose names are lost.
    """

    complete: bool
    aside: Path | None
    kept: int
    taken: list[str]
    lost: list[str]
    damage: list[str]


class _Old:
    """The entries that can be read from the old file."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.definitions: dict[bytes, Stored] = {}
        self.deleted: set[int] = set()
        self.unreadable: list[bytes] = []
        self.damage: list[str] = []
        # Whether there may have been more entries than were found.
        self.incomplete = False


def repair(data_directory: Path) -> Repaired | None:
    """Repair the definitions; None when there is nothing to repair.

    Raises `DataDirectoryRefused`, also while a node runs there; `NewerFormat`; OSError.
    """
    if read_identity(data_directory) is None:
        raise NotADataDirectory(f"{data_directory} is empty: no node has used it")
    with DataDirectory.open(data_directory) as directory:
        if read_known_cluster(data_directory) is not None:
            raise DataDirectoryRefused(
                f"the definitions of this node are in the etcd of its cluster; when"
                f" {data_directory / CLUSTER_DIRECTORY} is damaged, the next start fetches them"
            )
        return _repair(directory)


def _repair(directory: DataDirectory) -> Repaired | None:
    path = directory.subdirectory(DIRECTORY) / DATA_FILE
    old = _read_old(path)
    if not old.damage:
        return None
    copy = read_copy(directory.path, bytes.fromhex(directory.node_id))
    if old.incomplete and not old.entries and not (copy is not None and copy.entries):
        raise DataDirectoryRefused(
            f"nothing can be read of {path}, nor of a copy beside it; restore it from a backup, or"
            " put it aside: the node then starts without definitions, keeps all messages, and"
            " shows them with `warren ctl list_unclaimed_messages`"
        )
    if copy is not None and copy.damage is not None:
        old.damage.append(f"the copy: {copy.damage}")
    taken = _from_copy(old, copy.entries if copy is not None else [])
    lost = [key for key in old.unreadable if key not in taken]
    _write_new(path, {**old.entries, **taken})
    complete = not old.incomplete or (copy is not None and copy.damage is None)
    return Repaired(
        complete,
        _replace(path),
        len(old.definitions),
        [shown_key(key) for key in taken],
        [shown_key(key) for key in lost],
        old.damage,
    )


def _read_old(path: Path) -> _Old:
    old = _Old()
    try:
        file = LmdbFile(path)
    except FileNotFoundError:
        old.incomplete = True
        old.damage.append(f"{path.name} is missing")
        return old
    with file:
        _read_pages(file, old)
    return old


def _read_pages(file: LmdbFile, old: _Old) -> None:
    def damaged(damage: DamagedLmdb) -> None:
        old.incomplete = True
        old.damage.append(str(damage))

    try:
        file.newest()
    except DamagedLmdb as damage:
        damaged(damage)
    state = next((one for one in file.states() if isinstance(one, Meta)), None)
    if state is None:
        return
    walk = Walk(file, state, damaged)
    for key, value in walk.entries(state.main):
        _read_entry(old, key, value)
    if not old.incomplete:
        try:
            walk.check_totals(state.main)
            for key, value in Walk(file, state).entries(state.free):
                walk.check_free(key, value)
        except DamagedLmdb as damage:
            # All entries were found, in spite of this damage.
            old.damage.append(str(damage))


def _read_entry(old: _Old, key: bytes, value: bytes) -> None:
    queue_id = noted_queue(key)
    if queue_id is not None:
        old.deleted.add(queue_id)
        old.entries[key] = value
        return
    try:
        old.definitions[key] = decode_definition(key, value)
    except DamagedMetadata as error:
        old.unreadable.append(key)
        old.damage.append(str(error))
    else:
        old.entries[key] = value


def _from_copy(old: _Old, entries: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The entries that are taken from the copy."""
    taken = {}
    for key, value in entries:
        if key in old.entries or not (old.incomplete or key in old.unreadable):
            continue
        try:
            stored = decode_definition(key, value)
        except DamagedMetadata as error:
            old.damage.append(f"the copy: {error}")
            continue
        if not storage_ids(stored.record) & old.deleted:
            taken[key] = value
    return taken


def _new_path(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _write_new(path: Path, entries: dict[bytes, bytes]) -> None:
    new = _new_path(path)
    new.unlink(missing_ok=True)
    octets = sum(len(key) + len(value) for key, value in entries.items())
    environment = lmdb.open(
        os.fsencode(new),
        subdir=False,
        lock=False,
        map_size=max(MAP_BYTES_FIRST, 4 * octets),
        max_dbs=0,
        mode=0o600,
    )
    try:
        with environment.begin(write=True) as transaction:
            for key, value in sorted(entries.items()):
                transaction.put(key, value)
    finally:
        environment.close()


def _replace(path: Path) -> Path | None:
    """Put the old file aside and the new one in its place."""
    aside = _free_name(path) if path.exists() else None
    if aside is not None:
        try:
            # The old file keeps its name until the new one has it: at no moment is there none.
            os.link(path, aside)
        except OSError:
            os.rename(path, aside)
    os.rename(_new_path(path), path)
    path.with_name(LOCK_FILE).unlink(missing_ok=True)
    sync_directory(path.parent)
    return aside


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{ASIDE}-{number}")).exists():
        number += 1
    return aside
