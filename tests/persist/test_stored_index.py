"""Indexes are read while their files go, and others take their place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from stored_node import ORDERS, StoredNode

from warren.persist.disk.filesystem import RealFile, RealFileSystem
from warren.persist.inspection.store_view import StoreView
from warren.persist.layout.format import FRAME_HEADER_BYTES, SEGMENT_ENTRIES, SEGMENT_HEADER_BYTES

PLACE = Path("store/queues") / f"{ORDERS:016x}"


class ChangingFileSystem(RealFileSystem):
    """`change` happens when the first segment is to be opened."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.change = lambda: None

    def open(self, path: Path, *, writable: bool = True) -> RealFile:
        if path.suffix == ".idx":
            change, self.change = self.change, lambda: None
            change()
        return super().open(path, writable=writable)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoredNode]:
    """Ten messages that a segment has, and five that only the journal has."""
    node = StoredNode(tmp_path)
    for _ in range(10):
        node.publish(b"early", ORDERS)
    node.checkpoint()
    node.flush()
    for _ in range(5):
        node.publish(b"late", ORDERS)
    node.flush()
    yield node
    node.die()


def live(filesystem: RealFileSystem, directory: Path, *, totals: bool) -> list[int]:
    node_id = bytes.fromhex((directory / "identity.json").read_text().split('"')[-2])
    view = StoreView(
        filesystem,
        directory / "store",
        node_id,
        lambda path, harm: pytest.fail(f"{path}: {harm}"),
        totals=totals,
    )
    return [
        start + at
        for start, columns in view.index.entries(ORDERS)
        for at in columns.live(0, len(columns.places))
    ]


@pytest.mark.parametrize("totals", [True, False])
def test_a_segment_is_found_under_a_higher_generation(
    tmp_path: Path, node: StoredNode, totals: bool
) -> None:
    first = node.queues[ORDERS].first_position()
    filesystem = ChangingFileSystem(tmp_path)
    (name,) = os.listdir(tmp_path / PLACE)
    old, new = tmp_path / PLACE / name, tmp_path / PLACE / name.replace(".0.", ".1.")
    filesystem.change = lambda: os.rename(old, new)
    assert live(filesystem, tmp_path, totals=totals) == list(range(first, first + 15))


@pytest.mark.parametrize("totals", [True, False])
def test_what_the_journal_adds_counts_when_the_file_of_a_segment_goes(
    tmp_path: Path, node: StoredNode, totals: bool
) -> None:
    """All that was in the file has been removed, and messages that came later have not."""
    node.remove(ORDERS, 0, 10)
    node.flush()
    first = node.queues[ORDERS].first_position()
    filesystem = ChangingFileSystem(tmp_path)
    (name,) = os.listdir(tmp_path / PLACE)
    filesystem.change = (tmp_path / PLACE / name).unlink
    assert live(filesystem, tmp_path, totals=totals) == list(range(first + 10, first + 15))


def test_a_queue_that_is_deleted_in_turns_has_its_files_until_they_are_over(
    tmp_path: Path,
) -> None:
    node = StoredNode(tmp_path)
    for number in range(3 * SEGMENT_ENTRIES + 10):
        node.publish(b"x", ORDERS)
        if not number % 5000:
            node.flush()
    node.flush()
    node.checkpoint()
    node.flush()
    unloaded = [s for s in node.queues[ORDERS].entries.segments.values() if s.columns is None]
    assert len(unloaded) > 1
    for segment in unloaded:
        segment.has_shared = True
    node.queues[ORDERS].delete()
    for _ in range(50):
        node.flush()
    assert node.storage.lost == 0
    assert node.storage.persistent.live_bytes == 0
    node.die()


@pytest.fixture(scope="module")
def rested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose only segment has one frame; the journal goes on behind it."""
    path = tmp_path_factory.mktemp("rested")
    node = StoredNode(path)
    for _ in range(10):
        node.publish(b"early", ORDERS)
    node.checkpoint()
    node.flush()
    node.publish(b"late", ORDERS)
    node.flush()
    node.stop()
    return path


@pytest.mark.parametrize("bit", [0x01, 0x04])
def test_no_message_is_lost_with_an_octet_of_the_head_of_a_segment(
    rested: Path, tmp_path: Path, bit: int
) -> None:
    """Also where it looks like a frame that a crash has left unfinished."""
    for at in range(SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES):
        directory = tmp_path / str(at)
        shutil.copytree(rested, directory)
        (segment,) = (directory / PLACE).iterdir()
        octets = bytearray(segment.read_bytes())
        octets[at] ^= bit
        segment.write_bytes(octets)
        node = StoredNode(directory)
        there = node.queues[ORDERS].recovered().count
        damaged = node.storage.damaged
        node.die()
        assert (there, damaged > 0) == (11, True), at
