"""Files of entries are files of numpy's, and read as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from warren.spark_export.errors import SnapshotGone
from warren.spark_export.snapshot.unit import (
    ENTRY,
    QUEUES_DIRECTORY,
    READ_ENTRIES_MAX,
    entries_path,
    load_entries,
)


@pytest.mark.parametrize("count", [1, 9, 10, READ_ENTRIES_MAX, READ_ENTRIES_MAX + 1])
def test_entries_are_what_numpy_wrote(tmp_path: Path, count: int) -> None:
    (tmp_path / QUEUES_DIRECTORY).mkdir()
    entries = np.frombuffer(np.random.default_rng(count).bytes(count * ENTRY.itemsize), ENTRY)
    np.save(entries_path(tmp_path, 7), entries)
    found = load_entries(tmp_path, 7)
    assert found.dtype == ENTRY and np.array_equal(found, entries)
    assert isinstance(found, np.memmap) == (count > READ_ENTRIES_MAX)


def test_what_is_cut_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / QUEUES_DIRECTORY).mkdir()
    path = entries_path(tmp_path, 7)
    np.save(path, np.zeros(3, ENTRY))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OSError, match="is not whole"):
        load_entries(tmp_path, 7)
    np.save(path, np.zeros(3, np.int64))
    with pytest.raises(OSError, match="no entries as this version knows them"):
        load_entries(tmp_path, 7)
    path.unlink()
    with pytest.raises(SnapshotGone, match=f"no snapshot at {tmp_path}"):
        load_entries(tmp_path, 7)


def test_a_directory_that_nobody_sees_here_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SnapshotGone, match=r"sees no directory .*warren://.*snapshotDirectory"):
        load_entries(tmp_path / "elsewhere" / "pins" / "20260131T120000Z-89abcdef", 7)
    (tmp_path / "pins").mkdir()
    with pytest.raises(SnapshotGone, match="it was released, or its lease ran out"):
        load_entries(tmp_path / "pins" / "20260131T120000Z-89abcdef", 7)
