"""The files of a data directory at one moment, while its node works.

The order matters (docs/storage-format.md, section 8). The checkpoint is read first and last: if it
is the same, no file has gone that it needs. If a later checkpoint was being written, a start
ignores what it has added to segments. Log files before the checkpoint are linked before those from
it on: if such a file is already gone, it holds no live records, and the journal, linked later, says
so. The end of the last file is the moment of the backup. Definitions come after it, so every
message has its queue, unless a note says that the queue was deleted.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from warren.backup.errors import BackupRefused
from warren.persist.definitions.database import DATA_FILE
from warren.persist.definitions.definitions_copy import copied_lmdb
from warren.persist.definitions.metadata import DIRECTORY as METADATA_DIRECTORY
from warren.persist.definitions.metadata_replica import DIRECTORY as REPLICA_DIRECTORY
from warren.persist.disk.card_log import CARDS_FILE, FORMER_DIRECTORY
from warren.persist.disk.cluster_file import FILE as CLUSTER_FILE
from warren.persist.disk.data_directory import IDENTITY_FILE, DataDirectoryRefused, read_identity
from warren.persist.layout.format import Damaged, decode_checkpoint, file_of
from warren.persist.log.log_files import parse_file_name
from warren.persist.recovery.recovery import (
    CHECKPOINT_FILE,
    CLEAN_FILE,
    COUNTS_FILE,
    LOG_DIRECTORY,
    QUEUES_DIRECTORY,
    STORE_DIRECTORY,
)
from warren.persist.snapshots.pins import PINS_DIRECTORY, UNFINISHED, locked

TRIES_MAX = 20
"""Attempts to link all files while no checkpoint is written. The first nearly always succeeds:
checkpoints are written every few seconds at most, and linking takes far less."""

NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)
"""The errors of linking where it is impossible and copying may still be possible."""


class TakenFile(NamedTuple):
    """A file of a moment: its path in a data directory, the file to read it from, and how many of
    its octets count. A file with this path and size that was changed at another time than
    `changed_ns` may have other contents."""

    path: str
    source: Path
    size: int
    changed_ns: int


Link = Callable[[Path, Path], None]


def link_or_copy(source: Path, target: Path) -> None:
    """Link the file, or copy it where linking is impossible. Raises FileNotFoundError, OSError."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        copy(source, target)


def copy(source: Path, target: Path) -> None:
    """Copy a file that may be replaced or written to meanwhile; the copy's time of change is not
    later than its contents. Raises FileNotFoundError, OSError."""
    with source.open("rb") as read, target.open("wb") as written:
        status = os.fstat(read.fileno())
        shutil.copyfileobj(read, written)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


@contextmanager
def moment(
    data_directory: Path,
    *,
    link: Link = link_or_copy,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[list[TakenFile]]:
    """The files of a data directory at one moment; they exist until the end of the block.

    Raises `BackupRefused`, OSError.
    """
    expect_messages(data_directory)
    store = data_directory / STORE_DIRECTORY
    with _scratch(store) as scratch:
        taken = _taken_store(store, scratch, link, pause)
        for path in (Path(IDENTITY_FILE), Path(CLUSTER_FILE)):
            if (data_directory / path).exists():
                taken.append(_copy(data_directory, path, scratch))
        for directory in (METADATA_DIRECTORY, REPLICA_DIRECTORY):
            source = data_directory / directory / DATA_FILE
            if source.exists():
                with copied_lmdb(source, pause) as copy:
                    target = scratch / f"{directory}.mdb"
                    shutil.copyfile(copy, target)
                taken.append(_taken(f"{directory}/{DATA_FILE}", target))
        yield taken


def expect_messages(data_directory: Path) -> None:
    """Raise `BackupRefused` if no node has run in this data directory."""
    try:
        if read_identity(data_directory) is None:
            raise BackupRefused(f"{data_directory} is empty")
    except FileNotFoundError:
        raise BackupRefused(f"{data_directory} does not exist") from None
    except DataDirectoryRefused as refusal:
        raise BackupRefused(str(refusal)) from refusal
    if not (data_directory / STORE_DIRECTORY).is_dir():
        raise BackupRefused(
            f"{data_directory} has no messages and never had: no node has run there"
        )


@contextmanager
def _scratch(store: Path) -> Iterator[Path]:
    """A directory for the links; the node takes it for a snapshot in use, and keeps it."""
    base = store / PINS_DIRECTORY
    base.mkdir(mode=0o700, exist_ok=True)
    while True:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        path = base / f"{stamp}-{token_hex(4)}{UNFINISHED}"
        path.mkdir(mode=0o700)
        with locked(path) as ours:
            if not ours:
                # The node has removed the directory as a leftover before it was locked.
                continue
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)
            return


def _taken_store(
    store: Path, scratch: Path, link: Link, pause: Callable[[float], None]
) -> list[TakenFile]:
    for tries in range(TRIES_MAX):
        before = _read(store / CHECKPOINT_FILE)
        directory = scratch / str(tries)
        directory.mkdir()
        try:
            taken = _link_all(store, directory, before, link)
        except FileNotFoundError:
            taken = []
        if taken and _read(store / CHECKPOINT_FILE) == before:
            return taken
        shutil.rmtree(directory)
        pause(0.05 * tries)
    raise BackupRefused(f"{store} is written to too fast: no moment could be taken of it")


def _link_all(store: Path, scratch: Path, checkpoint: bytes, link: Link) -> list[TakenFile]:
    taken: list[TakenFile] = []
    if checkpoint:
        (scratch / CHECKPOINT_FILE).write_bytes(checkpoint)
        taken.append(_taken(f"{STORE_DIRECTORY}/{CHECKPOINT_FILE}", scratch / CHECKPOINT_FILE))
    for name in (COUNTS_FILE, CLEAN_FILE):
        if (store / name).exists():
            taken.append(_copy(store.parent, Path(STORE_DIRECTORY, name), scratch))
    for directory in (QUEUES_DIRECTORY, FORMER_DIRECTORY):
        for source in sorted((store / directory).glob("**/*")):
            if source.is_file() and not source.name.endswith(".new"):
                taken += _linked(store, source, scratch, link, may_be_gone=True)
    # This file comes after those of earlier versions, which are removed once this one exists.
    taken += _linked(store, store / CARDS_FILE, scratch, copy, may_be_gone=True)
    began = _first_of_journal(checkpoint)
    logs = _log_files(store)
    # A file that its next generation replaces meanwhile is found under another name.
    for source in logs:
        if _number(source) < began:
            taken += _linked(store, source, scratch, link, may_be_gone=True)
    for source in _log_files(store):
        if _number(source) < began and source not in logs:
            taken += _linked(store, source, scratch, link, may_be_gone=True)
    journal = [source for source in _log_files(store) if _number(source) >= began]
    for source in journal[:-1]:
        taken += _linked(store, source, scratch, link, may_be_gone=False)
    # The last file is being written to: its copy is the moment.
    for source in journal[-1:]:
        taken += _linked(store, source, scratch, copy, may_be_gone=False)
    return taken


def _log_files(store: Path) -> list[Path]:
    """The log files in the order of their numbers, so that the end of the last one is read last."""
    paths = (store / LOG_DIRECTORY).iterdir()
    return sorted([path for path in paths if parse_file_name(path.name) is not None])


def _number(path: Path) -> int:
    parsed = parse_file_name(path.name)
    assert parsed is not None
    return parsed[0]


def _first_of_journal(checkpoint: bytes) -> int:
    """The number of the log file that contains the checkpoint's place."""
    if not checkpoint:
        return 0
    try:
        return file_of(decode_checkpoint(checkpoint).place)
    except Damaged:
        # A start ignores the damaged checkpoint and reads the whole journal.
        return 0


def _linked(
    store: Path, source: Path, scratch: Path, link: Link, *, may_be_gone: bool
) -> list[TakenFile]:
    path = source.relative_to(store.parent)
    target = scratch / path
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        link(source, target)
    except FileNotFoundError:
        if may_be_gone:
            return []
        raise
    return [_taken(path.as_posix(), target)]


def _copy(directory: Path, path: Path, scratch: Path) -> TakenFile:
    target = scratch / path.name
    copy(directory / path, target)
    return _taken(path.as_posix(), target)


def _taken(path: str, source: Path) -> TakenFile:
    status = source.stat()
    return TakenFile(path, source, status.st_size, status.st_mtime_ns)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
