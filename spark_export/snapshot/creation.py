"""The creation of a snapshot; `snapshot.py` describes how."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warren.core.ports import Key
from warren.persist.definitions.definitions_copy import read_definitions
from warren.persist.disk.data_directory import DataDirectoryRefused
from warren.persist.disk.filesystem import FileSystem, RealFileSystem
from warren.persist.inspection.check import (
    open_store,
    queue_names,
)
from warren.persist.inspection.queue_levels import QueueLevels, read_levels
from warren.persist.layout.format import Harm, NewerStorage
from warren.persist.recovery.recovery import LOG_DIRECTORY as STORE_LOG_DIRECTORY
from warren.persist.recovery.recovery import QUEUES_DIRECTORY as STORE_QUEUES_DIRECTORY
from warren.persist.recovery.recovery import STORE_DIRECTORY
from warren.persist.snapshots.pin_owner import Owner
from warren.persist.snapshots.pins import PINS_DIRECTORY, UNFINISHED, locked, sweep
from warren.spark_export.errors import StoreRefused
from warren.spark_export.snapshot.deliveries import Deliveries, KnownDeliveries, of_stopped
from warren.spark_export.snapshot.entries_view import EntriesView
from warren.spark_export.snapshot.log_links import Linker, LogLinks
from warren.spark_export.snapshot.plan import ChoosesQueues
from warren.spark_export.snapshot.snapshot_file import PinnedQueue, Snapshot, now_us, write_lease
from warren.spark_export.snapshot.unit import (
    ENTRY,
    LOG_DIRECTORY,
    QUEUES_DIRECTORY,
    Entries,
    entries_path,
    load_entries,
)

log = logging.getLogger("warren.spark_export")

SECOND_LOOKS_S = (0.0, 0.05, 0.2, 0.5, 1.0)
"""The pauses before each further look for entries without a record: a removal is in the journal at
once, the removal of a deleted queue's definition only after a commit."""

AGAIN_S = (0.2, 1.0)
"""The pauses before a snapshot that looks damaged is taken again."""

CREATE_TRIES_MAX = 10

NO_WRITING = (errno.EACCES, errno.EPERM, errno.EROFS)


class Creation:
    """The creation of one snapshot.

    `filesystem`, `linker` and `pause` are there for tests that act between two steps.
    """

    def __init__(
        self,
        data_directory: Path,
        selector: ChoosesQueues,
        lease_s: float,
        directory: Path | None,
        needs_state: bool,
        cursor: str | None = None,
        owner: Owner | None = None,
        *,
        filesystem: FileSystem | None = None,
        linker: Linker | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        # Spark's tasks may run in another working directory.
        self._data_directory = data_directory.absolute()
        self._store = self._data_directory / STORE_DIRECTORY
        self._selector = selector
        self._lease_s = lease_s
        self._wanted_directory = directory
        self._needs_state = needs_state
        self._cursor = cursor
        self._owner = owner
        self._filesystem = filesystem or RealFileSystem()
        self._linker = linker or Linker()
        self._pause = pause
        self._harms: set[tuple[Path, int]] = set()
        self._nowhere = 0
        self._levels = QueueLevels()

    def run(self) -> Snapshot:
        node_id = read_node_id(self._data_directory)
        try:
            keys = self._select()
            known = KnownDeliveries(
                self._filesystem, self._data_directory, set(keys), self._needs_state
            )
            with self._directory() as unfinished:
                try:
                    snapshot = self._take_whole(unfinished, node_id, keys, known)
                    hand_over(unfinished, self._store)
                    os.rename(unfinished, snapshot.directory)
                except BaseException:
                    shutil.rmtree(unfinished, ignore_errors=True)
                    raise
        except PermissionError as error:
            raise StoreRefused(f"{error}; only the user who runs the node may read it") from error
        except (DataDirectoryRefused, NewerStorage) as refusal:
            raise StoreRefused(str(refusal)) from refusal
        return snapshot

    def _select(self) -> dict[int, Key]:
        """The selected queues, by their ids."""
        names = queue_names(self._data_directory, self._pause)
        self._levels = read_levels(self._data_directory, pause=self._pause)
        vhosts = []
        if self._selector.vhost is not None:
            stored = read_definitions(self._data_directory, "vhost", pause=self._pause)
            vhosts = [str(at.key[1]) for at in stored]
        chosen = set(self._selector.select(names.values(), vhosts))
        return {queue_id: key for queue_id, key in names.items() if key in chosen}

    # The directory

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        """A new directory, locked so that no other process removes it as a leftover."""
        base = snapshots_base(self._store, self._wanted_directory)
        sweep(base, now_us())
        for _ in range(CREATE_TRIES_MAX):
            stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%dT%H%M%SZ")
            path = base / f"{stamp}-{secrets.token_hex(4)}{UNFINISHED}"
            path.mkdir(mode=0o700)
            with locked(path) as ours:
                # Another process may have removed it as a leftover.
                if ours:
                    yield path
                    return
        raise OSError(f"directories in {base} are removed as soon as they are made")

    # The contents

    def _take_whole(
        self,
        path: Path,
        node_id: bytes,
        keys: dict[int, Key],
        known: KnownDeliveries,
    ) -> Snapshot:
        """Take the snapshot, again if it looks damaged: at a running node, data may be on its way
        to the disk."""
        for pause_s in AGAIN_S if known.running else ():
            snapshot = self._take(path, node_id, keys, known)
            if not snapshot.damage:
                return snapshot
            for name in (LOG_DIRECTORY, QUEUES_DIRECTORY):
                shutil.rmtree(path / name)
            self._harms.clear()
            self._nowhere = 0
            self._pause(pause_s)
        return self._take(path, node_id, keys, known)

    def _take(
        self,
        path: Path,
        node_id: bytes,
        keys: dict[int, Key],
        known: KnownDeliveries,
    ) -> Snapshot:
        created_us = now_us()
        (path / LOG_DIRECTORY).mkdir(mode=0o700)
        (path / QUEUES_DIRECTORY).mkdir(mode=0o700)
        view = self._look(node_id, lambda at: self._levels.queue_of(at) in keys and self._wants(at))
        found = sorted(view.queue_ids | keys.keys())
        counts = {at: _save(path, at, view.entries(at)) for at in found}
        links = LogLinks(
            self._filesystem, self._store / STORE_LOG_DIRECTORY, path / LOG_DIRECTORY, self._linker
        )
        deliveries = self._deliveries(path, known, view, found)
        self._link(path, node_id, links, [at for at in found if counts[at]], known.running)
        unreadable = Counter(self._queue_of(path) for path, _ in self._harms)
        queues = [
            replace(
                _describe(
                    path, at, keys[self._levels.queue_of(at)], deliveries[at], unreadable[at]
                ),
                retained=self._levels.is_retained(at),
            )
            for at in found
        ]
        snapshot = Snapshot(
            id=path.name.removesuffix(UNFINISHED),
            directory=path.with_name(path.name.removesuffix(UNFINISHED)),
            created_us=created_us,
            expires_us=now_us() + int(self._lease_s * 1e6),
            node_id=node_id.hex(),
            # A level without messages is left out, a queue is not.
            queues=tuple(at for at in queues if at.rows or at.queue_id in keys),
            octets=sum(queue.octets for queue in queues),
            log_octets=links.octets,
            copied=links.copied,
            lost=self._nowhere,
            unreadable=sum(self._queue_of(path) not in keys for path, _ in self._harms),
            cursor=self._cursor,
            owner=self._owner,
            unasked=known.unasked,
        )
        write_lease(snapshot, path)
        return snapshot

    def _deliveries(
        self, path: Path, known: KnownDeliveries, view: EntriesView, levels: list[int]
    ) -> dict[int, Deliveries]:
        """What is known about each level; call it when the entries have been read."""
        queue_of, unmarked = self._levels.queue_of, self._levels.unmarked
        if known.running:
            found = {at: known.of_running(at, queue_of(at)) for at in levels}
        elif known.is_stopped_since():
            found = {
                at: of_stopped(
                    at, view.delivered_below, _end(path, at), marked=queue_of(at) not in unmarked
                )
                for at in levels
            }
        else:
            found = dict.fromkeys(levels, Deliveries((), None))
        # A consumer has had what was acknowledged.
        retained = [at for at in levels if self._levels.is_retained(at)]
        return found | {at: Deliveries((), _end(path, at)) for at in retained}

    def _wants(self, level: int) -> bool:
        if self._levels.is_retained(level):
            return self._selector.retained
        return not self._levels.is_hidden(level)

    def _look(self, node_id: bytes, only: Callable[[int], bool]) -> EntriesView:
        return EntriesView(self._filesystem, self._store, node_id, self._harmed, only)

    def _harmed(self, path: Path, harm: Harm) -> None:
        self._harms.add((path, harm.offset))

    def _queue_of(self, path: Path) -> int | None:
        """The queue, with all its levels, to whose index a file belongs; None for other files."""
        if self._store / STORE_QUEUES_DIRECTORY not in path.parents:
            return None
        return self._levels.queue_of(int(path.parent.name, 16))

    def _link(
        self, path: Path, node_id: bytes, links: LogLinks, queue_ids: list[int], running: bool
    ) -> None:
        """Link the log files, and keep only entries whose record exists or is damaged."""
        lost: dict[int, Entries] = {}
        for queue_id in queue_ids:
            entries = load_entries(path, queue_id)
            there = links.pin(entries)
            if not there.all():
                lost[queue_id] = entries[~there]
                _save(path, queue_id, entries[there])
        if lost:
            for queue_id, entries in self._look_again(node_id, links, lost, running).items():
                if len(entries):
                    before = _load(path, queue_id)
                    _save(
                        path, queue_id, np.sort(np.concatenate([before, entries]), order="position")
                    )

    def _look_again(
        self, node_id: bytes, links: LogLinks, lost: dict[int, Entries], running: bool
    ) -> dict[int, Entries]:
        """Look again for entries without a record; returns those that are still in the index.

        Most have been removed meanwhile, and by now the index no longer has them. For others, the
        file with their record was rewritten at that moment.
        """
        found: dict[int, list[Entries]] = {queue_id: [] for queue_id in lost}
        lost = dict(lost)
        for pause_s in SECOND_LOOKS_S if running else SECOND_LOOKS_S[:1]:
            if pause_s:
                self._pause(pause_s)
            view = self._look(node_id, lost.__contains__)
            for queue_id, entries in list(lost.items()):
                entries = entries[_are_in(entries, view.entries(queue_id))]
                there = links.pin(entries)
                found[queue_id].append(entries[there])
                lost[queue_id] = entries[~there]
                if there.all():
                    del lost[queue_id]
            if not lost:
                break
        for queue_id, entries in lost.items():
            self._nowhere += len(entries)
            log.warning("messages_damaged queue=%016x messages=%d", queue_id, len(entries))
            found[queue_id].append(entries)
        return {queue_id: np.concatenate(parts) for queue_id, parts in found.items()}


def _are_in(entries: Entries, others: Entries) -> NDArray[np.bool_]:
    """Which of the entries are in `others` with the same place."""
    if not len(others):
        return np.zeros(len(entries), np.bool_)
    at = np.searchsorted(others["position"], entries["position"])
    at = np.minimum(at, len(others) - 1)
    same: NDArray[np.bool_] = (others["position"][at] == entries["position"]) & (
        others["place"][at] == entries["place"]
    )
    return same


def _save(path: Path, queue_id: int, entries: Entries) -> int:
    """Write the entries of a queue, if there are any; returns their number."""
    file = entries_path(path, queue_id)
    if len(entries):
        # The existing file may be mapped.
        file.unlink(missing_ok=True)
        np.save(file, entries, allow_pickle=False)
    else:
        file.unlink(missing_ok=True)
    return len(entries)


def _load(path: Path, queue_id: int) -> Entries:
    """The entries that `_save` wrote."""
    if not entries_path(path, queue_id).exists():
        return np.empty(0, ENTRY)
    return load_entries(path, queue_id)


def _end(path: Path, queue_id: int) -> int:
    """The position behind the last entry."""
    entries = _load(path, queue_id)
    return int(entries["position"][-1]) + 1 if len(entries) else 0


def _describe(
    path: Path,
    queue_id: int,
    key: Key,
    deliveries: Deliveries,
    unreadable: int,
) -> PinnedQueue:
    entries = _load(path, queue_id)
    rows = len(entries)
    return PinnedQueue(
        vhost=key[0],
        name=key[1],
        queue_id=queue_id,
        rows=rows,
        octets=int(entries["length"].sum(dtype=np.uint64)),
        first_position=int(entries["position"][0]) if rows else None,
        last_position=int(entries["position"][-1]) if rows else None,
        unacked=deliveries.unacked,
        unreadable=unreadable,
        redelivered_below=deliveries.redelivered_below,
    )


def snapshots_base(store: Path, wanted: Path | None) -> Path:
    """The directory for snapshots of a store; made if it is missing.

    Raises `StoreRefused`, OSError.
    """
    if wanted is not None:
        try:
            return writable(wanted.absolute())
        except OSError as error:
            raise StoreRefused(f"no snapshots can stand in {wanted}: {error}") from error
    try:
        return writable(store / PINS_DIRECTORY)
    except OSError as error:
        if error.errno not in NO_WRITING:
            raise
        base = Path(tempfile.gettempdir()) / f"warren-snapshots-{os.geteuid()}"
        writable(base)
        if base.stat().st_uid != os.geteuid():
            raise StoreRefused(f"{base} belongs to another user; name a directory") from None
        log.warning(
            "snapshot_elsewhere directory=%s reason=%r: the node does not count it",
            base,
            str(error),
        )
        return base


def hand_over(path: Path, store: Path) -> None:
    """Give a snapshot that root made to the owner of the store, who must be able to remove it."""
    owner = store.stat()
    if os.geteuid() or not owner.st_uid or store not in path.parents:
        return
    os.chown(path.parent, owner.st_uid, owner.st_gid)
    for directory, _, names in os.walk(path):
        os.chown(directory, owner.st_uid, owner.st_gid)
        if Path(directory).name != LOG_DIRECTORY:
            for name in names:
                os.chown(os.path.join(directory, name), owner.st_uid, owner.st_gid)


def writable(directory: Path) -> Path:
    """Make a directory, with its parents; check that it can be written to. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    return directory


def read_node_id(data_directory: Path) -> bytes:
    """The id of the node. Raises `StoreRefused`, OSError."""
    try:
        return open_store(data_directory)
    except (DataDirectoryRefused, PermissionError) as refusal:
        raise StoreRefused(str(refusal)) from refusal
