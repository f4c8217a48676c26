"""Which calls of the file system the writer of the log makes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from disk import SimulatedDisk

from warren.persist.layout.format import FILE_HEADER_BYTES, FileHeader
from warren.persist.log.log_writer import SMALL_BYTES, FilePiece, LogWriter

LOG = Path("/log")
LARGE = bytes(SMALL_BYTES + 1)


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk(Random(1))
    disk.make_directory(LOG)
    return disk


class Pieces:
    """Has pieces written, one behind the other, to one file."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.writer = LogWriter(disk, LOG, durable=True)
        self._end = FILE_HEADER_BYTES

    def calls_of(self, data: bytes = LARGE) -> list[str]:
        """Write a piece; return the calls that it took, with their offsets."""
        before = len(self.disk.trace)
        header = FileHeader(bytes(16), 1, 0, 0, 0)
        self.writer.write([FilePiece(header, self._end, data, False)])
        self._end += len(data)
        calls = [call.split() for call in self.disk.trace[before:]]
        return [f"{call[0]} {' '.join(call[2:3])}".strip() for call in calls]


def test_a_piece_is_written_and_synced_at_once_when_all_before_it_is_synced(
    disk: SimulatedDisk,
) -> None:
    pieces = Pieces(disk)
    first, second = FILE_HEADER_BYTES, FILE_HEADER_BYTES + len(LARGE)
    assert pieces.calls_of()[-2:] == [f"write {first}", "sync"]
    assert pieces.calls_of() == [f"write {second}", f"sync {second}"]


def test_a_piece_for_which_there_was_no_room_is_written_to_the_same_file(
    disk: SimulatedDisk,
) -> None:
    pieces = Pieces(disk)
    pieces.calls_of()
    disk.full_after(100)
    with pytest.raises(OSError, match="No space"):
        pieces.calls_of()
    disk.free(2 * len(LARGE))
    second = FILE_HEADER_BYTES + len(LARGE)
    assert pieces.calls_of() == [f"write {second}", "sync"]
    assert len(disk.files()) == 1


def test_a_piece_that_may_be_lost_is_written_to_another_file(disk: SimulatedDisk) -> None:
    pieces = Pieces(disk)
    pieces.calls_of()
    disk.fail_sync(1)
    with pytest.raises(OSError):
        pieces.calls_of()
    assert pieces.calls_of()[0].startswith("create")
    assert len(disk.files()) == 2
    third = FILE_HEADER_BYTES + 2 * len(LARGE)
    assert pieces.calls_of() == [f"write {third}", f"sync {third}"]
