"""Files of an archive in a place that pyarrow reaches: S3, Google Cloud Storage, Azure, HDFS.

Object stores show an object when all of it was sent; in other file systems a file gets its name
when it is complete. None of them has locks that work everywhere, so only one process at a time may
change such an archive. pyarrow is loaded when the first URL is opened: a broker runs without it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import urlsplit

from warren.backup.errors import ShelfRefused
from warren.backup.shelf import Draft, chunks

if TYPE_CHECKING:
    from pyarrow import fs

OBJECT_STORES = ("s3", "gcs", "abfs")
"""pyarrow's names of the file systems in which a file appears only when it is complete."""


HADOOP_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""The schemes of Hadoop and Spark for which pyarrow has another name."""


@lru_cache(maxsize=16)
def open_url(url: str) -> RemoteShelf:
    """The folder that a URL names; it is cached, as opening it may take requests to its store.

    Raises `ShelfRefused` for a URL that pyarrow cannot open.
    """
    import pyarrow as pa
    from pyarrow import fs

    scheme, separator, rest = url.partition("://")
    try:
        file_system, folder = fs.FileSystem.from_uri(
            HADOOP_SCHEMES.get(scheme, scheme) + separator + rest
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise ShelfRefused(f"{scheme}://...: {error}") from None
    if file_system.type_name in OBJECT_STORES and not folder.strip("/"):
        raise ShelfRefused(f"{scheme}:// names no bucket; {scheme}://bucket/folder does")
    return RemoteShelf(url, file_system, folder)


class RemoteShelf:
    """A folder of a file system. `url` is its place, as `pyarrow.fs.FileSystem.from_uri` reads
    it."""

    def __init__(self, url: str, file_system: fs.FileSystem, folder: str) -> None:
        parts = urlsplit(url)
        self.shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._files = file_system
        self._folder = folder.rstrip("/")

    @property
    def local(self) -> Path | None:
        return None

    def is_inside(self, directory: Path) -> bool:
        if self._files.type_name != "local":
            return False
        return Path(self._folder).resolve().is_relative_to(directory.resolve())

    def is_foreign(self) -> bool:
        return bool(self.names(""))

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def names(self, folder: str) -> list[str]:
        from pyarrow import fs

        chosen = fs.FileSelector(self._path(folder), allow_not_found=True, recursive=True)
        found = [one.path for one in self._files.get_file_info(chosen) if one.is_file]
        return sorted(path.removeprefix(f"{self._folder}/") for path in found)

    def size(self, name: str) -> int | None:
        info = self._files.get_file_info(self._path(name))
        return int(info.size) if info.is_file else None

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        return cast(BinaryIO, self._files.open_input_file(self._path(name)))

    def write(self, name: str, octets: bytes) -> None:
        self.put(name, [octets], parent(name))

    def store(self, name: str, source: Path, size: int) -> str:
        with source.open("rb") as octets:
            return self.put(name, chunks(octets, size, source), parent(name))

    def draft(self, folder: str) -> Draft:
        return RemoteDraft(self, folder)

    def remove(self, name: str) -> None:
        if self.size(name) is not None:
            self._files.delete_file(self._path(name))

    def remove_folder(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            self._files.delete_dir(self._path(folder))

    def put(self, name: str, octets: Iterable[bytes], folder: str) -> str:
        """Write a file of these octets; returns their SHA-256. Where a file is written before it
        gets its name, it is written in this folder. Raises OSError."""
        target = self._path(name)
        direct = self._files.type_name in OBJECT_STORES
        place = target if direct else self._path(f"{folder}/{token_hex(16)}.new".lstrip("/"))
        if not direct:
            for path in (place, target):
                self._files.create_dir(parent(path), recursive=True)
        hashed = hashlib.sha256()
        stream = self._files.open_output_stream(place)
        try:
            for chunk in octets:
                hashed.update(chunk)
                stream.write(chunk)
        except BaseException:
            # Closing makes an object of the octets sent so far.
            stream.close()
            self._files.delete_file(place)
            raise
        stream.close()
        if not direct:
            self._files.move(place, target)
        return hashed.hexdigest()

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}".rstrip("/")


def parent(name: str) -> str:
    return name.rpartition("/")[0]


class RemoteDraft:
    """A draft in the temporary directory (`TMPDIR`). It has no name there, so the system removes it
    when the process ends, however it ends."""

    def __init__(self, shelf: RemoteShelf, folder: str) -> None:
        self.file: BinaryIO = TemporaryFile()
        self._shelf = shelf
        self._folder = folder

    def keep(self, name: str) -> None:
        with self.file:
            size = self.file.seek(0, os.SEEK_END)
            self.file.seek(0)
            self._shelf.put(name, chunks(self.file, size, name), self._folder)

    def discard(self) -> None:
        self.file.close()
