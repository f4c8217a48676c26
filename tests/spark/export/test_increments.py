"""Exports of what came since an earlier one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from exporting import export, rows_of, wish
from stored_node import ORDERS, StoredNode

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Write
from warren.spark_export.errors import (
    OptionRefused,
    StoreRefused,
)
from warren.spark_export.export.export import begin
from warren.spark_export.export.manifest import (
    Manifest,
    chain,
    find_manifest,
    list_manifests,
    manifest_name,
    read_manifest,
    write_manifest,
)
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import create, list_snapshots


def test_an_increment_that_was_begun_goes_on_with_the_base_it_had(
    store: Path, destination: Path
) -> None:
    for name in ("1", "2"):
        export(store, destination, name, wish())
    plan = begin(store, destination, "more", wish(since="1"))
    assert not isinstance(plan, Manifest)
    for since in ("2", None):
        with pytest.raises(OptionRefused, match="begun with other options"):
            begin(store, destination, "more", wish(since=since))
    for since in ("1", "latest"):
        assert begin(store, destination, "more", wish(since=since)) == plan
    full = begin(store, destination, "full", wish())
    assert not isinstance(full, Manifest)
    with pytest.raises(OptionRefused, match="begun with other options"):
        begin(store, destination, "full", wish(since="latest"))
    for one in (plan, full):
        one.snapshot.release()


def test_increments_have_what_came_since_and_nothing_twice(
    node: StoredNode, destination: Path
) -> None:
    store = node.directory.path
    bodies = []

    def publish(count: int) -> None:
        for _ in range(count):
            bodies.append(b"%d" % len(bodies))
            node.publish(bodies[-1], ORDERS)
        node.flush()

    publish(50)
    export(store, destination, "1", wish())
    publish(7)
    node.remove(ORDERS, 0, 10)
    node.flush()
    second = export(store, destination, "2", wish(since="latest"))
    assert (second.since, second.rows) == ("1", 7)
    nothing = export(store, destination, "3", wish(since="2"))
    assert (nothing.since, nothing.rows, nothing.files) == ("2", 0, ())
    node.remove(ORDERS, 0, 57)
    publish(3)
    last = export(store, destination, "4", wish(since="latest"))
    assert last.rows == 3
    links = chain(destination, find_manifest(destination, None))
    assert [link.export for link in links] == ["1", "2", "3", "4"]
    assert [row["body"] for row in rows_of(destination, links)] == bodies
    assert [one.export for one in list_manifests(destination)] == ["1", "2", "3", "4"]


def test_an_increment_from_an_older_snapshot_lets_nothing_come_twice(
    node: StoredNode, destination: Path
) -> None:
    store = node.directory.path
    node.publish(b"first", ORDERS)
    node.flush()
    older = create(store, QueueSelector())
    node.publish(b"second", ORDERS)
    node.flush()
    export(store, destination, "1", wish())
    assert export(store, destination, "2", wish(since="1", snapshot=older.directory)).rows == 0
    assert export(store, destination, "3", wish(since="2")).rows == 0
    older.release()


def test_exports_that_are_each_others_base_have_no_beginning(
    store: Path, destination: Path
) -> None:
    manifest = export(store, destination, "1", wish())
    for name, since in (("1", "3"), ("2", "1"), ("3", "2")):
        write_manifest(destination, replace(manifest, export=name, since=since))
    with pytest.raises(StoreRefused, match="3 has no beginning"):
        chain(destination, read_manifest(destination, "3"))


def test_the_latest_export_is_behind_its_base_whatever_the_clock_says(
    store: Path, destination: Path
) -> None:
    manifest = export(store, destination, "1", wish())
    back_us = manifest.finished_us - 10**15
    for name, since, finished_us in (("3", "2", back_us), ("2", "1", back_us), ("4", "3", 0)):
        another = replace(manifest, export=name, since=since, finished_us=finished_us)
        write_manifest(destination, another)
    assert [one.export for one in list_manifests(destination)] == ["1", "2", "3", "4"]
    assert find_manifest(destination, None).export == "4"


def test_the_latest_export_is_the_one_finished_last_whatever_the_clock_says(
    store: Path, destination: Path
) -> None:
    for name in ("1", "2"):
        manifest = export(store, destination, name, wish())
        # As if the clock had been years ahead.
        write_manifest(destination, replace(manifest, finished_us=manifest.finished_us + 10**15))
    last = export(store, destination, "3", wish())
    assert [one.export for one in list_manifests(destination)] == ["1", "2", "3"]
    assert find_manifest(destination, None) == last


def test_exports_of_before_there_were_numbers_come_first(store: Path, destination: Path) -> None:
    manifest = export(store, destination, "old", wish())
    write_manifest(destination, replace(manifest, finished_us=manifest.finished_us + 10**15))
    path = destination / manifest_name("old")
    fields = json.loads(path.read_text())
    del fields["number"]
    path.write_text(json.dumps(fields))
    damaged = destination / manifest_name("damaged")
    damaged.write_text("{")
    export(store, destination, "new", wish())
    damaged.unlink()
    assert [(one.export, one.number) for one in list_manifests(destination)] == [
        ("old", 0),
        ("new", 1),
    ]


def test_a_queue_that_was_made_since_is_in_the_increment(
    node: StoredNode, destination: Path
) -> None:
    store = node.directory.path
    node.publish(b"first", ORDERS)
    node.flush()
    export(store, destination, "1", wish())
    # The same name, another queue: positions of the one say nothing about the other.
    node.metadata.transact([Write(("queue", "/", "orders"), QueueRecord(False, {}, 0x900))])
    index = node.storage.open(0x900, durable=True)
    node.queues[0x900], node.positions[0x900] = index, index.first_position()
    node.publish(b"second", 0x900)
    node.flush()
    manifest = export(store, destination, "2", wish(since="1"))
    assert [row["body"] for row in rows_of(destination, [manifest])] == [b"second"]


def test_increments_go_on_with_the_same_node_and_not_with_a_time(
    store: Path, node: StoredNode, destination: Path
) -> None:
    export(store, destination, "1", wish())
    with pytest.raises(StoreRefused, match="not of"):
        export(node.directory.path, destination, "2", wish(since="1"))
    timed = parse_options({"endingTimestamp": "2030-01-01"})
    with pytest.raises(OptionRefused, match="exclude each other"):
        export(store, destination, "2", wish(since="1", options=timed))
    export(store, destination, "timed", wish(options=timed))
    with pytest.raises(OptionRefused, match="certain time"):
        export(store, destination, "2", wish(since="timed"))
    with pytest.raises(StoreRefused, match="no export 'x'"):
        export(store, destination, "2", wish(since="x"))
    assert list_snapshots(store) == list_snapshots(node.directory.path) == []
