"""Snapshots: what is in them, where they stand, how they end, and that nothing else changes."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from damaged_journal import damage_journal
from pinned_messages import bodies_of, records_of, units_of
from stored_node import EMPTY, INVOICES, NAMES, ORDERS, StoredNode, fill

from warren.core.definitions.definition_table import Change
from warren.core.definitions.records import QueueRecord
from warren.core.ports import Stored, Write
from warren.persist.definitions.metadata_replica import LmdbReplica
from warren.persist.disk.cluster_file import KnownCluster, write_known_cluster
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.check import check
from warren.persist.inspection.dump import dump
from warren.persist.snapshots.pins import LEASE_FILE, Pinned, locked, measure, sweep
from warren.spark_export.errors import OptionRefused, QueueUnknown, SnapshotGone, StoreRefused
from warren.spark_export.snapshot import creation
from warren.spark_export.snapshot import snapshot as snapshots
from warren.spark_export.snapshot.creation import Creation
from warren.spark_export.snapshot.deliveries import UNKNOWN
from warren.spark_export.snapshot.log_links import Linker
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import (
    Snapshot,
    create,
    list_snapshots,
    load_snapshot,
    open_snapshot,
    pins_directory,
    snapshot_path,
)
from warren.spark_export.snapshot.unit import ENTRY, entries_path

ALL = QueueSelector()
HOUR_US = 3_600_000_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoredNode]:
    """One that works, with all that a storage can have."""
    node = fill(tmp_path)
    yield node
    node.die()


def dumped(directory: Path, queue: int) -> dict[int, tuple[int, int, int, bytes]]:
    return {
        at.position: (at.expires_us, at.length, at.enqueued_us, at.body)
        for at in dump(RealFileSystem(), directory, queue)
    }


def pinned(snapshot: Snapshot, queue: int) -> dict[int, tuple[int, int, int, bytes]]:
    units = [unit for unit in units_of(snapshot) if unit.queue_id == queue]
    lengths = {
        row["position"]: (row["expires_us"], row["length"])
        for unit in units
        for row in unit.entries()
    }
    return {
        position: (*map(int, lengths[position]), record.enqueued_us, record.payload)
        for records in records_of(units).values()
        for position, record in records.items()
    }


@pytest.mark.parametrize("end", ["stop", "die"])
def test_a_snapshot_of_a_store_that_stands_still_is_what_the_dump_says(
    tmp_path: Path, end: str
) -> None:
    getattr(fill(tmp_path), end)()
    snapshot = create(tmp_path, ALL)
    assert [(queue.vhost, queue.name, queue.queue_id) for queue in snapshot.queues] == [
        ("/", name, queue_id) for queue_id, name in sorted(NAMES.items())
    ]
    for queue in snapshot.queues:
        wanted = dumped(tmp_path, queue.queue_id)
        assert pinned(snapshot, queue.queue_id) == wanted
        assert queue.rows == len(wanted)
        assert queue.octets == sum(length for _, length, _, _ in wanted.values())
        assert queue.first_position == min(wanted, default=None)
        assert queue.last_position == max(wanted, default=None)
    assert snapshot.damage == 0 and not snapshot.copied
    assert {queue.rows for queue in snapshot.queues} == {180, 25, 0}


def test_a_snapshot_beside_a_node_that_works_is_the_same(tmp_path: Path, node: StoredNode) -> None:
    snapshot = create(tmp_path, ALL)
    for queue in (ORDERS, INVOICES, EMPTY):
        assert pinned(snapshot, queue) == dumped(tmp_path, queue)


def test_what_is_read_back_is_what_was_made(tmp_path: Path, node: StoredNode) -> None:
    made = create(tmp_path, ALL)
    assert open_snapshot(made.directory) == made
    assert list_snapshots(tmp_path) == [made]


def test_only_queues_that_are_meant_are_in_it(tmp_path: Path, node: StoredNode) -> None:
    snapshot = create(tmp_path, QueueSelector("/", ("invoices",)))
    assert [queue.name for queue in snapshot.queues] == ["invoices"]
    assert pinned(snapshot, INVOICES) == dumped(tmp_path, INVOICES)
    with pytest.raises(QueueUnknown, match="near names: 'orders'"):
        create(tmp_path, QueueSelector("/", ("order",)))
    with pytest.raises(QueueUnknown, match="virtual host 'us'"):
        create(tmp_path, QueueSelector("us"))
    assert list_snapshots(tmp_path) == [snapshot]


def test_it_stays_what_it_was_when_the_store_loses_everything(
    tmp_path: Path, node: StoredNode
) -> None:
    wanted = {queue: dumped(tmp_path, queue) for queue in NAMES}
    snapshot = create(tmp_path, ALL)
    for queue in (ORDERS, INVOICES):
        node.remove(queue, 0, 1000)
    for _ in range(3):
        node.publish(b"x" * 70000, EMPTY)
        node.flush()
        node.checkpoint()
    left = {name for name in os.listdir(tmp_path / "store/log")}
    gone = {name for name in os.listdir(snapshot.directory / "log")} - left
    assert len(gone) >= 3
    for queue in NAMES:
        assert pinned(snapshot, queue) == wanted[queue]
    assert measure(pins_directory(tmp_path)).octets > 65536 * 3
    snapshot.release()
    assert measure(pins_directory(tmp_path)) == Pinned(0, 0, 0)


def test_making_one_changes_nothing_else_in_the_directory(tmp_path: Path, node: StoredNode) -> None:
    def seen() -> dict[str, tuple[int, int, int]]:
        return {
            str(path.relative_to(tmp_path)): (
                path.stat().st_ino,
                path.stat().st_size,
                path.stat().st_mtime_ns,
            )
            for path in tmp_path.rglob("*")
            if path.is_file() and "pins" not in path.parts
        }

    before = seen()
    create(tmp_path, ALL)
    assert seen() == before


def test_a_store_with_snapshots_is_whole_and_starts(tmp_path: Path, node: StoredNode) -> None:
    snapshot = create(tmp_path, ALL)
    (pins_directory(tmp_path) / "note").write_text("of somebody")
    node.die()
    report = check(RealFileSystem(), tmp_path, pause=lambda seconds: None)
    assert not report.damage
    wanted = dumped(tmp_path, ORDERS)
    again = StoredNode(tmp_path)
    assert pinned(snapshot, ORDERS) == wanted == dumped(tmp_path, ORDERS)
    again.die()


# Queues


NAMES_TO_TELL_APART = ["/", "0123", "a=b", "ü" * 127 + "x", "date=2026-01-01", "%2F", "\udcff"]


def test_any_name_of_a_queue_is_kept_as_it_is(tmp_path: Path) -> None:
    node = StoredNode(tmp_path)
    for number, name in enumerate(NAMES_TO_TELL_APART):
        record = QueueRecord(False, {}, 0x1000 + 0x100 * number)
        node.metadata.transact([Write(("queue", name, name), record)])
        index = node.storage.open(record.queue_id, durable=True)
        node.queues[record.queue_id] = index
        node.positions[record.queue_id] = index.first_position()
        node.publish(name.encode("utf-8", "surrogateescape"), record.queue_id)
    node.flush()
    snapshot = open_snapshot(create(tmp_path, ALL).directory)
    node.die()
    for name in NAMES_TO_TELL_APART:
        (body,) = bodies_of(snapshot, name, name).values()
        assert body == name.encode("utf-8", "surrogateescape")


def test_levels_of_a_queue_with_priorities_are_told_apart(tmp_path: Path) -> None:
    node = StoredNode(tmp_path)
    for level in (0, 1, 3):
        index = node.storage.open(ORDERS + level, durable=True)
        node.queues[ORDERS + level] = index
        node.positions[ORDERS + level] = index.first_position()
        node.publish(b"level %d" % level, ORDERS + level)
    node.flush()
    snapshot = create(tmp_path, QueueSelector(names=("orders",)))
    node.die()
    assert [(queue.name, queue.queue_id, queue.rows) for queue in snapshot.queues] == [
        ("orders", ORDERS + level, 1) for level in (0, 1, 3)
    ]
    records = [next(iter(records_of([unit]).values())) for unit in units_of(snapshot)]
    bodies = [record.payload for found in records for record in found.values()]
    assert bodies == [b"level 0", b"level 1", b"level 3"]


# State


def test_everything_is_ready_where_no_node_runs(tmp_path: Path) -> None:
    fill(tmp_path).stop()
    for needs_state in (False, True):
        snapshot = create(tmp_path, ALL, needs_state=needs_state)
        assert {queue.unacked for queue in snapshot.queues} == {()}


def test_deliveries_are_unknown_if_a_node_runs_and_does_not_answer(
    tmp_path: Path, node: StoredNode
) -> None:
    snapshot = create(tmp_path, ALL)
    assert {queue.deliveries for queue in snapshot.queues} == {UNKNOWN}
    assert snapshot.unasked is not None and "control.sock is open to" in snapshot.unasked
    assert load_snapshot(snapshot.directory) == snapshot


def test_a_node_that_runs_and_does_not_answer_is_a_reason_to_refuse(
    tmp_path: Path, node: StoredNode
) -> None:
    with pytest.raises(StoreRefused, match="be that user, stop the node, or do without"):
        create(tmp_path, ALL, needs_state=True)
    assert list_snapshots(tmp_path) == []


# Leases


def test_a_lease_runs_out_and_can_be_extended(
    tmp_path: Path, node: StoredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = create(tmp_path, ALL, lease_s=3600)
    assert 0 <= snapshot.expires_us - snapshot.created_us - HOUR_US < 600_000_000
    longer = snapshot.extend(7200)
    assert open_snapshot(snapshot.directory) == longer
    later = time.time() + 3 * 3600
    monkeypatch.setattr(snapshots, "now_us", lambda: int(later * 1e6))
    with pytest.raises(SnapshotGone, match="ran out"):
        open_snapshot(snapshot.directory)
    assert list_snapshots(tmp_path) == [longer]


def test_whose_lease_has_run_out_goes_with_the_next_look(tmp_path: Path, node: StoredNode) -> None:
    short, long = create(tmp_path, ALL, lease_s=60), create(tmp_path, ALL, lease_s=600)
    pins = pins_directory(tmp_path)
    sweep(pins, short.expires_us - 1)
    assert len(list_snapshots(tmp_path)) == 2
    sweep(pins, short.expires_us)
    assert list_snapshots(tmp_path) == [long]
    with pytest.raises(SnapshotGone):
        open_snapshot(short.directory)


def test_release_twice_is_no_error_and_extending_what_is_gone_is(
    tmp_path: Path, node: StoredNode
) -> None:
    snapshot = create(tmp_path, ALL)
    snapshot.release()
    snapshot.release()
    with pytest.raises(SnapshotGone, match="released"):
        snapshot.extend(60)
    with pytest.raises(SnapshotGone, match="released"):
        open_snapshot(snapshot.directory)


def test_one_that_is_released_while_it_is_extended_is_gone(
    tmp_path: Path, node: StoredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = create(tmp_path, ALL)

    @contextmanager
    def locked_and_released(path: Path) -> Iterator[bool]:
        with locked(path) as ours:
            snapshot.release()
            yield ours

    monkeypatch.setattr("warren.spark_export.snapshot.snapshot_file.locked", locked_and_released)
    with pytest.raises(SnapshotGone, match="released"):
        snapshot.extend(60)


def test_what_a_crash_left_goes_with_the_next_snapshot_but_not_what_is_being_made(
    tmp_path: Path, node: StoredNode
) -> None:
    pins = pins_directory(tmp_path)
    left, made = pins / "20260101T000000Z-00000000.new", pins / "20260101T000000Z-00000001.new"
    other = pins / "20260101T000000Z.new"
    for path in (left, made, other):
        (path / "log").mkdir(parents=True)
        (path / "log" / "file").write_bytes(b"x")
    with locked(made) as ours:
        assert ours
        create(tmp_path, ALL)
        assert not left.exists() and made.exists() and other.exists()


def test_one_that_cannot_be_made_leaves_nothing(tmp_path: Path, node: StoredNode) -> None:
    class Full(Linker):
        def put(self, source: Path, target: Path) -> None:
            raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(OSError, match="no space"):
        Creation(tmp_path, ALL, 60, None, False, linker=Full()).run()
    assert os.listdir(pins_directory(tmp_path)) == []


def test_one_that_did_not_survive_a_power_failure_is_not_opened(
    tmp_path: Path, node: StoredNode
) -> None:
    snapshot = create(tmp_path, ALL)
    os.truncate(entries_path(snapshot.directory, ORDERS), 200)
    with pytest.raises(SnapshotGone, match="power failure"):
        open_snapshot(snapshot.directory)
    (snapshot.directory / LEASE_FILE).write_bytes(b"")
    with pytest.raises(SnapshotGone, match="power failure"):
        open_snapshot(snapshot.directory)
    assert list_snapshots(tmp_path) == []
    sweep(pins_directory(tmp_path), 0)
    assert not snapshot.directory.exists()


def test_a_snapshot_of_a_later_version_is_refused(tmp_path: Path, node: StoredNode) -> None:
    snapshot = create(tmp_path, ALL)
    path = snapshot.directory / LEASE_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(StoreRefused, match="format 2"):
        open_snapshot(snapshot.directory)


@pytest.mark.parametrize("present", [False, True])
def test_what_is_no_store_is_refused(tmp_path: Path, present: bool) -> None:
    if present:
        (tmp_path / "thing").write_text("x")
    with pytest.raises(StoreRefused):
        create(tmp_path, ALL)
    with pytest.raises(StoreRefused):
        list_snapshots(tmp_path)


def dump_totals(node: StoredNode) -> list[tuple[int, int]]:
    return [(at, len(dumped(node.directory.path, at))) for at in NAMES]


def test_the_copies_of_a_member_of_a_cluster_are_found(node: StoredNode) -> None:
    """Under the id they have at this node; its own definitions do not count any more."""
    write_known_cluster(node.directory.path, KnownCluster("a cluster", "one@here"))
    replica = LmdbReplica(
        node.directory,
        "one@here",
        call_on_loop=lambda callback: callback(),
        call_later=node.clock.call_later,
        sync_thread=None,
    )
    replica.reset("a cluster")
    mirrored = QueueRecord(False, {}, 0x777, stores={"one@here": ORDERS, "two@here": INVOICES})
    key = ("queue", "/", "mirrored")
    replica.save(7, [Change(key, Stored(key, mirrored, 1))])
    replica.close()
    (orders,) = (at for at in dump_totals(node) if at[0] == ORDERS)
    (queue,) = create(node.directory.path, ALL).queues
    assert (queue.name, queue.queue_id, queue.rows) == ("mirrored", *orders)


# Other places


class NoLinks(Linker):
    """As across file systems."""

    def put(self, source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def test_where_no_links_can_be_made_files_are_copied(
    tmp_path: Path, node: StoredNode, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = {queue: dumped(tmp_path, queue) for queue in NAMES}
    snapshot = Creation(tmp_path, ALL, 60, None, False, linker=NoLinks()).run()
    assert snapshot.copied and open_snapshot(snapshot.directory).copied
    assert "snapshot_copies_files" in caplog.text
    files = list((snapshot.directory / "log").iterdir())
    assert files and all(path.stat().st_nlink == 1 for path in files)
    assert sum(path.stat().st_size for path in files) == snapshot.log_octets
    for queue in NAMES:
        assert pinned(snapshot, queue) == wanted[queue]


def test_a_snapshot_can_stand_in_another_directory(tmp_path: Path) -> None:
    node = fill(tmp_path / "node")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "mine").mkdir(parents=True)
    snapshot = create(tmp_path / "node", ALL, directory=elsewhere)
    assert snapshot.directory.parent == elsewhere
    assert list_snapshots(tmp_path / "node") == []
    assert pinned(snapshot, ORDERS) == dumped(tmp_path / "node", ORDERS)
    assert (elsewhere / "mine").exists()
    (elsewhere / "file").touch()
    with pytest.raises(StoreRefused, match=r"no snapshots can stand in .*file"):
        create(tmp_path / "node", ALL, directory=elsewhere / "file")
    node.die()


def test_where_the_store_cannot_be_written_to_it_stands_in_a_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path / "node").stop()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    writable = creation.writable

    def read_only(directory: Path) -> Path:
        if "store" in directory.parts:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return writable(directory)

    monkeypatch.setattr(creation, "writable", read_only)
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    snapshot = create(tmp_path / "node", ALL)
    assert scratch in snapshot.directory.parents
    assert not pins_directory(tmp_path / "node").exists()
    assert "snapshot_elsewhere" in caplog.text
    assert pinned(snapshot, ORDERS) == dumped(tmp_path / "node", ORDERS)


# Damage


def test_messages_whose_file_is_gone_are_in_it_and_counted(tmp_path: Path) -> None:
    fill(tmp_path).stop()
    rows = {queue.queue_id: queue.rows for queue in create(tmp_path, ALL).queues}
    places = {entry.position: entry.file for entry in dump(RealFileSystem(), tmp_path, ORDERS)}
    victim = min(places.values())
    lost = sum(file == victim for file in places.values())
    for path in (tmp_path / "store/log").glob(f"{victim:08x}.*"):
        path.unlink()
    snapshot = create(tmp_path, ALL)
    assert {queue.queue_id: queue.rows for queue in snapshot.queues} == rows
    assert snapshot.lost == lost > 0 and not snapshot.unreadable
    assert snapshot.damage == lost
    positions = np.load(entries_path(snapshot.directory, ORDERS))["position"]
    assert np.array_equal(positions, np.sort(positions))


def test_damage_in_the_index_is_counted(tmp_path: Path) -> None:
    fill(tmp_path).stop()
    segment = tmp_path / "store/queues" / f"{ORDERS:016x}" / "000004000000.0.idx"
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    snapshot = create(tmp_path, ALL)
    assert not snapshot.lost and not snapshot.unreadable
    harmed = {queue.queue_id: queue.unreadable for queue in snapshot.queues}
    assert harmed.pop(ORDERS) >= 1 and not any(harmed.values())
    assert open_snapshot(snapshot.directory) == snapshot


def test_damage_in_the_journal_is_counted(tmp_path: Path) -> None:
    damage_journal(tmp_path)
    snapshot = create(tmp_path, ALL)
    assert (snapshot.unreadable, snapshot.lost, snapshot.rows) == (1, 0, 9)
    assert open_snapshot(snapshot.directory) == snapshot


def test_entries_are_written_as_the_page_says(tmp_path: Path, node: StoredNode) -> None:
    snapshot = create(tmp_path, ALL)
    entries = np.load(entries_path(snapshot.directory, ORDERS))
    assert entries.dtype == ENTRY
    assert [ENTRY[name].str for name in ENTRY.names or ()] == ["<u8", "<u8", "<u8", "<u4", "<u4"]


@pytest.mark.parametrize("text", ["..", "../x", "/etc", "", "20260131T120000Z-89abcdef.new"])
def test_what_is_no_id_of_a_snapshot_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionRefused, match="is no id of a snapshot"):
        snapshot_path(tmp_path, text)


def test_a_snapshot_knows_where_it_stands_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "node").die()
    monkeypatch.chdir(tmp_path)
    for made in (
        create(Path("node"), ALL),
        create(Path("node"), ALL, directory=Path("elsewhere")),
    ):
        assert made.directory.is_absolute() and open_snapshot(made.directory) == made
