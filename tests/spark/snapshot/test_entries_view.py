"""The index as arrays is the index as `warren.persist` reads it, whatever state a store is in."""

from __future__ import annotations

from array import array
from pathlib import Path
from random import Random

import numpy as np
import pytest
from store_history import History
from stored_node import INVOICES, ORDERS

from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.check import open_store
from warren.persist.inspection.store_view import StoreView
from warren.persist.layout.format import BATCH_HEADER_BYTES, FILE_HEADER_BYTES, Harm, SegmentChange
from warren.persist.layout.segment import Columns
from warren.persist.log.log_writer import file_name
from warren.persist.recovery.recovery import STORE_DIRECTORY
from warren.spark_export.snapshot import entries_view
from warren.spark_export.snapshot.entries_view import ArrayColumns, EntriesView
from warren.spark_export.snapshot.journal_entries import Removed, last_removals

FILESYSTEM = RealFileSystem()
SEEDS = 25
ACTS = 150
FLIPS = 40

Found = dict[int, list[tuple[int, ...]]]


def by_records(data_directory: Path) -> Found:
    """As `warren.persist` has it."""
    store = data_directory / STORE_DIRECTORY
    node_id = open_store(data_directory)
    index = StoreView(FILESYSTEM, store, node_id, ignore, totals=False).index
    found: Found = {}
    for queue_id in (ORDERS, INVOICES):
        found[queue_id] = [
            (start + at, place, columns.expires[at], columns.lengths[at], columns.sizes[at])
            for start, columns in index.entries(queue_id)
            for at, place in enumerate(columns.places)
            if place
        ]
    return found


def by_arrays(data_directory: Path) -> tuple[Found, list[tuple[str, Harm]]]:
    told: list[tuple[str, Harm]] = []
    view = EntriesView(
        FILESYSTEM,
        data_directory / STORE_DIRECTORY,
        open_store(data_directory),
        lambda path, harm: told.append((path.name, harm)),
        lambda queue_id: True,
    )
    return {at: view.entries(at).tolist() for at in (ORDERS, INVOICES)}, told


def ignore(path: Path, harm: Harm) -> None:
    """What is damaged is compared by what is left."""


def history(path: Path, seed: int) -> History:
    node = History(path, seed)
    for _ in range(ACTS):
        node.act()
    return node


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_readings_find_the_same_entries(tmp_path: Path, seed: int) -> None:
    node = history(tmp_path, seed)
    assert by_arrays(tmp_path) == (by_records(tmp_path), [])
    if seed % 2:
        node.node.die()
    else:
        node.node.stop()
    assert by_arrays(tmp_path) == (by_records(tmp_path), [])


@pytest.mark.parametrize("seed", range(3))
def test_both_readings_find_the_same_in_a_damaged_store(tmp_path: Path, seed: int) -> None:
    history(tmp_path, seed).node.die()
    random = Random(seed)
    files = sorted((tmp_path / STORE_DIRECTORY).rglob("*.rdq"))
    files += sorted((tmp_path / STORE_DIRECTORY).rglob("*.idx"))
    for _ in range(FLIPS):
        path = random.choice(files)
        whole = path.read_bytes()
        data = bytearray(whole)
        if random.random() < 0.2:
            del data[random.randrange(len(data)) :]
        else:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        assert by_arrays(tmp_path)[0] == by_records(tmp_path), path
        path.write_bytes(whole)


def test_whole_files_are_not_read_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(tmp_path, 1).node.die()

    def refused(*arguments: object, **named: object) -> None:
        raise AssertionError("a file that is whole was read record by record")

    monkeypatch.setattr(entries_view, "scan_journal_file", refused)
    monkeypatch.setattr(Columns, "set_each", refused)
    # A batch that is being written is nothing to stop at either.
    last = max((tmp_path / STORE_DIRECTORY / "log").glob("*.rdq"))
    expected = by_arrays(tmp_path)
    batch = last.read_bytes()[FILE_HEADER_BYTES : FILE_HEADER_BYTES + BATCH_HEADER_BYTES - 5]
    with last.open("ab") as file:
        file.write(batch)
    assert by_arrays(tmp_path) == expected


def test_what_is_damaged_in_the_journal_is_told(tmp_path: Path) -> None:
    node = history(tmp_path, 2).node
    node.checkpoint()
    node.flush()
    for number in range(20):
        node.publish(b"%d" % number * 10, ORDERS)
        node.flush()
    expected = by_records(tmp_path)[ORDERS]
    place = expected[-10][1]
    node.die()
    path = tmp_path / STORE_DIRECTORY / "log" / file_name(place >> 32, 0)
    data = bytearray(path.read_bytes())
    data[(place & 0xFFFFFFFF) + 100] ^= 1
    path.write_bytes(data)
    found, told = by_arrays(tmp_path)
    assert found[ORDERS] == expected[:-10] + expected[-9:]
    ((name, harm),) = told
    assert (name, harm.reason) == (path.name, "checksum of the record")


def test_ranges_that_overlap_count_in_the_order_of_the_journal() -> None:
    spans = np.array([(5, 9), (0, 6), (8, 8)], [("start", "<u8"), ("end", "<u8")])
    removed = Removed(np.zeros(3, np.uint64), np.array([10, 20, 30], np.uint64), spans)
    positions = np.arange(10, dtype=np.uint64)
    assert last_removals(positions, removed).tolist() == [20] * 6 + [10] * 3 + [0]


def test_entries_with_gaps_are_taken_as_one_by_one() -> None:
    frame = SegmentChange(
        0, 1, array("H", [3, 9, 4]), array("Q", [1, 2, 3]), array("Q", [4, 5, 6]),
        array("I", [7, 8, 9]), array("I", [10, 11, 12]), array("H", [9, 10]),
    )  # fmt: skip
    plain, quick = Columns(), ArrayColumns()
    for columns in (plain, quick):
        columns.apply(frame)
    for name in Columns.__slots__:
        assert getattr(plain, name) == getattr(quick, name)
