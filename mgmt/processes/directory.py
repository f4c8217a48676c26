"""The directory that the processes of a broker share, locked against other brokers."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from warren.persist.disk.data_directory import (
    IDENTITY_FILE,
    PROCESSES,
    DataDirectory,
    DataDirectoryRefused,
    DirectoryInUse,
    create_directory,
    is_of_processes,
    locked,
)

STORE = "definitions"
LEFT_OVER_S = 5.0
"""Time for processes to end whose supervisor was killed."""
POLL_S = 0.02


class ProcessesDirectory:
    """The shared directory. `open` locks it if it exists, otherwise `create` does.

    `close` unlocks it. `first` is the data directory of the first process, which opens it itself.
    """

    def __init__(self, path: Path, lock_fd: int, first: DataDirectory, is_new: bool) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self.first = first
        self._is_new = is_new

    @classmethod
    def open(cls, data_dir: Path) -> ProcessesDirectory:
        """Lock the directory of the processes in `data_dir`, if it exists.

        Of what is missing, this creates `data_dir` only; `create` makes the rest. Raises
        `DataDirectoryRefused`, OSError.
        """
        path = data_dir / PROCESSES
        is_new = not is_of_processes(data_dir)
        lock_fd = -1 if is_new else _locked(path, data_dir)
        try:
            first = _free(data_dir, 0.0 if is_new else LEFT_OVER_S)
            for other in largest_first(path):
                if (path / str(other) / "lock").exists():
                    _free(path / str(other), LEFT_OVER_S)
        except BaseException:
            if lock_fd >= 0:
                os.close(lock_fd)
            raise
        return cls(path, lock_fd, first, is_new)

    def expect_definitions(self) -> None:
        """Raise `DataDirectoryRefused` if processes were here, as the definitions that they shared
        are missing."""
        if not self._is_new:
            raise DataDirectoryRefused(
                f"{self.path / STORE} is missing, which has the definitions that the processes of"
                f" the broker in {self.path.parent} share. Put it back, or make an empty directory"
                " of that name, to have them from the first process's copy; or set"
                " cluster_formation.etcd.endpoints.1 if the broker belongs to a cluster"
            )

    def without_data(self, count: int) -> list[int]:
        """The numbers of the processes from 2 to `count` whose directory is new or missing.

        The first process is not among them, as it has the data directory itself.
        """
        numbers = range(2, count + 1)
        return [n for n in numbers if not (self.path / str(n) / IDENTITY_FILE).exists()]

    def create(self) -> None:
        """Create and lock the directory, unless `open` has locked it.

        Raises `DataDirectoryRefused`, OSError.
        """
        if self._lock_fd < 0:
            create_directory(self.path)
            self._lock_fd = _locked(self.path, self.path.parent)

    def discard_new(self) -> None:
        """Remove the directories created by a start that failed before anything was stored."""
        if self._is_new and self._lock_fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
        self.first.discard_new()

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def largest_first(path: Path) -> list[int]:
    """The numbers of the processes that have a directory there, the largest first."""
    names = os.listdir(path) if path.is_dir() else []
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def _locked(path: Path, data_dir: Path) -> int:
    try:
        return locked(path)
    except DirectoryInUse:
        raise DirectoryInUse(
            f"data directory {data_dir} is in use by another process;"
            " stop that node or choose another directory"
        ) from None


def _free(path: Path, patience_s: float) -> DataDirectory:
    """The data directory, once no process has it open. Raises `DataDirectoryRefused`, OSError."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            directory = DataDirectory.open(path)
        except DirectoryInUse:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_S)
        else:
            directory.close()
            return directory
