"""Copies records of a log file into a new one; runs in the background thread."""

from __future__ import annotations

from array import array
from pathlib import Path

from warren.persist.disk.filesystem import File, FileSystem
from warren.persist.layout.format import (
    FILE_HEADER_BYTES,
    FileHeader,
    Survivors,
    aligned,
    encode_file_header,
    encode_survivors,
)

COPY_BYTES_MAX = 1 << 20
"""Octets that are read at once: neighbours are copied together."""


def copy_records(
    filesystem: FileSystem,
    old: Path,
    new: Path,
    header: FileHeader,
    before: array[int],
    located: array[int],
    lengths: array[int],
) -> tuple[array[int], int]:
    """Make `new` of the records of `old` at `located`; `before` are their names, ascending.

    Returns where they are in the new file, and its size. The new file is there, whole and
    synced, or not at all. Raises OSError.
    """
    unfinished = new.with_name(new.name + ".new")
    source = filesystem.open(old, writable=False)
    try:
        target = filesystem.create(unfinished)
        try:
            after, size = _copy(source, target, header, before, located, lengths)
            target.sync()
        finally:
            target.close()
    finally:
        source.close()
    filesystem.rename(unfinished, new)
    try:
        filesystem.sync_directory(new.parent)
    except OSError:
        # A recovery that finds the new file takes it for durable, and removes the old one.
        filesystem.remove(new)
        raise
    return after, size


def _copy(
    source: File,
    target: File,
    header: FileHeader,
    before: array[int],
    located: array[int],
    lengths: array[int],
) -> tuple[array[int], int]:
    target.write(0, encode_file_header(header))
    end = FILE_HEADER_BYTES
    after = array("I")
    first = 0
    while first < len(located):
        last = _neighbours(located, lengths, first)
        start = located[first]
        size = aligned(located[last] + lengths[last] - start)
        data = source.read(start, size)
        if len(data) < located[last] + lengths[last] - start:
            raise OSError(f"file ends at {start + len(data)}, before a record that is needed")
        target.write(end, data)
        for at in range(first, last + 1):
            after.append(end + located[at] - start)
        end += size
        first = last + 1
    table = encode_survivors(Survivors(before, after, lengths))
    target.write(end, table)
    return after, end + len(table)


def _neighbours(located: array[int], lengths: array[int], first: int) -> int:
    """The last of the records from `first` on that stand without a gap, up to a size."""
    last = first
    start = located[first]
    while (
        last + 1 < len(located)
        and located[last + 1] == aligned(located[last] + lengths[last])
        and located[last + 1] + lengths[last + 1] - start <= COPY_BYTES_MAX
    ):
        last += 1
    return last
