"""The data directory of a node: its identity, its format, and the lock for one process.

Two files in it are for that:

- `identity.json`: `{"format": 1, "node_id": "<32 hex digits>"}`. The identity of a node is here
  and not in the name of its host, so a data directory can move.
- `lock`: held with flock(2) while a process uses the directory; the kernel lets go of it however
  the process ends.

A directory that is refused is left exactly as it was.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

FORMAT_VERSION = 1
IDENTITY_FILE = "identity.json"
LOCK_FILE = "lock"
CONTROL_SOCKET = "control.sock"
"""The Unix socket at which a node takes requests. The user who can open it may do everything, so
there is no password."""
PROCESSES = "processes"
"""The directory that has the data directories of all processes of a broker except the first, and
their shared definitions."""
UNFINISHED_IDENTITY = f"{IDENTITY_FILE}.new"
# Names that a directory may hold and still count as empty: our own lock and a first start that did
# not get further, and what mkfs leaves in the root of a file system.
NOT_OURS_BUT_HARMLESS = frozenset({LOCK_FILE, UNFINISHED_IDENTITY, "lost+found"})


class DataDirectoryRefused(Exception):
    """The data directory cannot be used; the text says why and what to do."""


class NewerFormat(DataDirectoryRefused):
    """Written by a newer version of Warren."""


class DirectoryInUse(DataDirectoryRefused):
    """Another process has it open."""


class CannotCreate(DataDirectoryRefused):
    """The system does not let us create it."""


class NotADataDirectory(DataDirectoryRefused):
    """Holds something, but no identity file that can be read."""


class DataDirectory:
    """An open data directory; no other process can open it until it is closed.

    `is_new`: no node had used it before.
    """

    def __init__(
        self,
        path: Path,
        node_id: str,
        lock_fd: int,
        created: Sequence[Path] = (),
        *,
        is_new: bool = False,
    ) -> None:
        self.path = path
        self.is_new = is_new
        # The directories there were not before, outermost first.
        self._created = tuple(created)
        self.node_id = node_id
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, path: Path) -> DataDirectory:
        """Open the directory, creating it when it does not exist or is empty.

        Raises `DataDirectoryRefused`, or OSError when the file system does not let us.
        """
        created: list[Path] = []
        if path.exists():
            read_identity(path)
        else:
            created = _missing(path)
            try:
                create_directory(path)
            except OSError as error:
                raise CannotCreate(
                    f"data directory {path} cannot be created: {os.strerror(error.errno or 0)}"
                ) from error
        lock_fd = locked(path)
        try:
            known = read_identity(path)
            node_id = known or _write_identity(path)
        except BaseException:
            _discard(path, created)
            os.close(lock_fd)
            raise
        return cls(path, node_id, lock_fd, created, is_new=known is None)

    def discard_new(self) -> None:
        """After `close`: delete what `open` has created, if it has.

        For a start that came to nothing, and left nothing there that is needed.
        """
        _discard(self.path, self._created)

    def subdirectory(self, name: str) -> Path:
        """A directory inside for one store, created durably when missing."""
        path = self.path / name
        if not path.exists():
            create_directory(path)
        return path

    @property
    def is_in_place(self) -> bool:
        """Whether the directory that was opened is still at its path, and no other process
        has locked it anew. A lock file that was removed does no harm by itself."""
        if not (self.path / IDENTITY_FILE).exists():
            return False
        try:
            there = os.stat(self.path / LOCK_FILE)
        except FileNotFoundError:
            return True
        return os.path.samestat(there, os.fstat(self._lock_fd))

    @property
    def holds_data(self) -> bool:
        """Whether a node has ever put something there, other processes of its broker apart."""
        ours = NOT_OURS_BUT_HARMLESS | {IDENTITY_FILE, "control.sock", PROCESSES}
        return bool(set(os.listdir(self.path)) - ours)

    def begin_anew(self, keep: Collection[str] = ()) -> None:
        """Delete all but the lock and the files to keep, and be another node from now on.

        The old identity goes last: after a crash on the way it can be done again.
        """
        kept = {LOCK_FILE, "lost+found", IDENTITY_FILE, *keep}
        for name in sorted(set(os.listdir(self.path)) - kept):
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        sync_directory(self.path)
        self.node_id = _write_identity(self.path)

    def close(self) -> None:
        """Let others open it."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def is_of_processes(path: Path) -> bool:
    """Whether a broker of several processes has used this data directory."""
    return (path / PROCESSES).is_dir()


def is_of_a_process(path: Path) -> bool:
    """Whether this is the data directory of one process of a broker of several."""
    return is_of_processes(path) or path.absolute().parent.name == PROCESSES


def expect_one_process(path: Path) -> None:
    """Raises `DataDirectoryRefused`."""
    if is_of_processes(path):
        raise DataDirectoryRefused(
            f"data directory {path} is that of a broker with several processes: start it with"
            " `warren server`, which looks after all of them"
        )


def create_directory(path: Path, mode: int = 0o700) -> None:
    """Create a directory, and its parents, so that they are there after a crash.

    Unless `mode` says otherwise only the owner may look inside: definitions hold password hashes.
    """
    for directory in _missing(path):
        directory.mkdir(mode=mode, exist_ok=True)
        sync_directory(directory.parent)
    sync_directory(path)


def _discard(path: Path, created: Sequence[Path]) -> None:
    """Delete the directory if it is the last of those created, and the others that are empty."""
    if created and created[-1] == path:
        shutil.rmtree(path, ignore_errors=True)
        for parent in reversed(created[:-1]):
            with suppress(OSError):
                parent.rmdir()


def _missing(path: Path) -> list[Path]:
    """The directory and those of its parents that do not exist, outermost first."""
    return [*(one for one in reversed(path.parents) if not one.exists()), path]


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes, unfinished: Path | None = None) -> None:
    """Replace a file, as a whole or not at all. Raises OSError.

    Others may do the same at once, unless `unfinished` says what it is called till then.
    """
    if unfinished is None:
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def is_unfinished(name: str) -> bool:
    """Whether a file of this name is one that `write_durably` has not finished."""
    return name.startswith(".") and name.endswith(".new")


def locked(path: Path) -> int:
    fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise DirectoryInUse(
            f"data directory {path} is in use by another process;"
            " stop that node or choose another directory"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_identity(path: Path) -> str | None:
    """The node's identity; None when the directory is still empty. Raises `DataDirectoryRefused`.

    Only reads.
    """
    try:
        text = (path / IDENTITY_FILE).read_bytes()
    except FileNotFoundError:
        _expect_empty(path)
        return None
    except NotADirectoryError:
        raise NotADataDirectory(f"{path} is not a directory") from None
    return _parse_identity(path, text)


def _expect_empty(path: Path) -> None:
    others = sorted(set(os.listdir(path)) - NOT_OURS_BUT_HARMLESS)
    if others:
        raise NotADataDirectory(
            f"{path} has no {IDENTITY_FILE} but holds other files ({others[0]});"
            " choose an empty directory or one a node has used"
        )


def _parse_identity(path: Path, text: bytes) -> str:
    try:
        identity = json.loads(text)
        version, node_id = identity["format"], identity["node_id"]
    except (ValueError, KeyError, TypeError) as error:
        raise NotADataDirectory(f"{path / IDENTITY_FILE} cannot be read: {error!r}") from None
    if type(version) is not int or type(node_id) is not str:
        raise NotADataDirectory(f"{path / IDENTITY_FILE} holds no format number and node id")
    if version > FORMAT_VERSION:
        raise NewerFormat(
            f"data directory {path} has format {version}, this version of Warren reads up to"
            f" {FORMAT_VERSION}; start it with the version that wrote it"
        )
    return node_id


def _write_identity(path: Path) -> str:
    node_id = secrets.token_hex(16)
    text = json.dumps({"format": FORMAT_VERSION, "node_id": node_id}) + "\n"
    write_durably(path / IDENTITY_FILE, text.encode(), path / UNFINISHED_IDENTITY)
    return node_id
