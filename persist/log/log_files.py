"""Which log files a directory holds, and what stands at the beginning and end of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from warren.persist.disk.filesystem import File
from warren.persist.layout.format import Damaged, Survivors, decode_survivors
from warren.persist.log.log_writer import file_name

SURVIVORS_READ_BYTES = 1 << 20
"""So many octets at the end of a combined file mostly contain its table."""


class LogFiles(NamedTuple):
    """The newest generation of every file, by its number; `leftovers` are all other names."""

    newest: dict[int, int]
    leftovers: list[str]


def find_log_files(names: Iterable[str]) -> LogFiles:
    newest: dict[int, int] = {}
    leftovers = []
    for name in names:
        parsed = parse_file_name(name)
        if parsed is None:
            leftovers.append(name)
            continue
        file_id, generation = parsed
        other = newest.get(file_id)
        if other is not None:
            leftovers.append(file_name(file_id, min(other, generation)))
            generation = max(other, generation)
        newest[file_id] = generation
    return LogFiles(dict(sorted(newest.items())), leftovers)


def parse_file_name(name: str) -> tuple[int, int] | None:
    """Number and generation of a log file; None for another file."""
    number, _, rest = name.partition(".")
    generation, _, suffix = rest.partition(".")
    file_id = hexadecimal(number)
    if suffix != "rdq" or len(number) != 8 or file_id is None or not generation.isdecimal():
        return None
    return file_id, int(generation)


def hexadecimal(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


def read_survivors(file: File) -> Survivors:
    """The table of a combined file. Raises `Damaged`, OSError."""
    size = file.size()
    try:
        return decode_survivors(
            file.read(max(0, size - SURVIVORS_READ_BYTES), SURVIVORS_READ_BYTES)
        )
    except Damaged:
        if size <= SURVIVORS_READ_BYTES:
            raise
    return decode_survivors(file.read(0, size))
