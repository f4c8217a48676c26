"""Damage that is no row of any queue: FAILFAST ends a query for it, others tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from damaged_journal import damage_journal
from exporting import export, rows_of, wish
from stored_node import ORDERS, fill

from warren.spark_export.errors import RecordDamaged
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import Snapshot, create, list_snapshots


@pytest.fixture
def store(tmp_path: Path) -> Path:
    damage_journal(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def snapshot(store: Path) -> Iterator[Snapshot]:
    with create(store, QueueSelector()) as snapshot:
        yield snapshot


def planned(snapshot: Snapshot, **options: str) -> int:
    """How many rows a batch has."""
    from warren.spark_export.snapshot.filters import EVERYTHING
    from warren.spark_export.source.source import plan

    return sum(unit.rows for unit in plan(snapshot, parse_options(options), EVERYTHING))


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_a_batch_tells_of_it_once(
    snapshot: Snapshot, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert planned(snapshot, mode=mode) == 9
    assert [record.message for record in caplog.records] == [
        f"store_unreadable snapshot={snapshot.name} places=1: messages that were there are no rows"
    ]


def test_a_strict_batch_is_refused(snapshot: Snapshot) -> None:
    with pytest.raises(RecordDamaged, match="1 places of the index and the journal"):
        planned(snapshot, mode="FAILFAST")


def test_damage_in_the_index_of_another_queue_is_nothing_to_a_batch(tmp_path: Path) -> None:
    fill(tmp_path).stop()
    segment = tmp_path / "store/queues" / f"{ORDERS:016x}" / "000004000000.0.idx"
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    with create(tmp_path, QueueSelector()) as snapshot:
        assert planned(snapshot, mode="FAILFAST", queue="invoices") == 25
        with pytest.raises(RecordDamaged):
            planned(snapshot, mode="FAILFAST", queue="orders")


def test_an_export_says_it_and_a_strict_one_does_not_begin(store: Path, tmp_path: Path) -> None:
    manifest = export(store, tmp_path / "to", "full", wish())
    assert (manifest.rows, manifest.corrupt, manifest.unreadable) == (9, 0, 1)
    assert len(rows_of(tmp_path / "to", [manifest])) == 9
    strict = parse_options({"mode": "FAILFAST"})
    with pytest.raises(RecordDamaged):
        export(store, tmp_path / "strict", "full", wish(options=strict))
    assert not (tmp_path / "strict").exists() and list_snapshots(store) == []
