"""Reading a log whose end is not what it was."""

from __future__ import annotations

from pathlib import Path

from stored_node import ORDERS, StoredNode, fill

from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.dump import dump
from warren.persist.layout.format import FILE_HEADER_BYTES, OFFSET_MASK, decode_checkpoint
from warren.persist.log.log_reader import Scan

LAST = "store/log/00000007.0.rdq"
SMALL = 700


def test_a_file_shorter_than_the_checkpoint_is_harmed_and_not_torn(tmp_path: Path) -> None:
    fill(tmp_path).die()
    place = decode_checkpoint((tmp_path / "store/checkpoint").read_bytes()).place
    size = (place & OFFSET_MASK) - 100
    path = tmp_path / LAST
    path.write_bytes(path.read_bytes()[:size])
    file = RealFileSystem().open(path, writable=False)
    scan = Scan(file, 7, place & OFFSET_MASK, complete=False)
    assert list(scan.records()) == []
    assert [(at.offset, at.size) for at in scan.harm] == [(size, 100)]
    assert scan.torn == 0
    file.close()
    StoredNode(tmp_path).stop()
    assert path.stat().st_size == size


def test_after_a_clean_stop_only_the_damaged_record_of_the_last_batch_is_lost(
    tmp_path: Path,
) -> None:
    node = StoredNode(tmp_path)
    for number in range(3):
        node.publish(b"%d" % number * SMALL, ORDERS)
    node.stop()
    path = tmp_path / "store/log/00000001.0.rdq"
    data = bytearray(path.read_bytes())
    data[data.index(b"1" * SMALL) + 100] ^= 1
    path.write_bytes(data)
    assert data[FILE_HEADER_BYTES : FILE_HEADER_BYTES + 4] == b"BTCH"
    again = StoredNode(tmp_path)
    assert again.queues[ORDERS].recovered().count == 2
    assert again.storage.damaged == 1
    again.stop()
    bodies = [at.body for at in dump(RealFileSystem(), tmp_path, ORDERS)]
    assert bodies == [b"0" * SMALL, b"2" * SMALL]
