"""Cursors: what they keep and for how long, whose they are, and what a killed driver leaves."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from exporting import CONTENT_HEADER
from pyspark.sql.streaming.datasource import ReadMaxRows
from stored_node import EMPTY, ORDERS, StoredNode
from stream_batches import Query

from warren.mgmt.command_line import warren
from warren.persist.snapshots.cursors import cursor_path
from warren.persist.snapshots.pins import Pinned, held_by_cursors, sweep
from warren.spark_export.errors import CursorInUse, DataLost, OptionRefused, SnapshotGone
from warren.spark_export.snapshot import cursor as cursors
from warren.spark_export.snapshot.cursor import take_cursor
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import create, list_snapshots, pins_directory
from warren.spark_export.source.source import MessageStoreSource
from warren.spark_export.source.stores import LocalStore

YEAR_US = 366 * 86400 * 1_000_000
TEN = ReadMaxRows(10)

AGAIN = {"queue": "orders", "cursor": "archive"}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "snapshot_every_s", 0.0)
    monkeypatch.setattr(cursors, "OWNER_WAIT_S", 0.0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoredNode]:
    node = StoredNode(tmp_path, CONTENT_HEADER)
    yield node
    node.die()


@pytest.fixture
def query(tmp_path: Path, node: StoredNode) -> Iterator[Callable[..., Query]]:
    """Makes queries of the cursor `archive`, which end with the test."""
    made = []

    def start(**options: str) -> Query:
        made.append(Query(tmp_path, queue="orders", cursor="archive", **options))
        return made[-1]

    yield start
    for one in made:
        one.reader.stop()


def publish(node: StoredNode, numbers: range) -> None:
    for number in numbers:
        # With 1200 octets a log file is full after some fifty.
        node.publish(b"%01200d" % number, ORDERS)
    node.flush()


def forget(node: StoredNode, numbers: range) -> None:
    """Let the node remove them, and the log files they were in."""
    node.remove(ORDERS, numbers.start, numbers.stop)
    for _ in range(3):
        node.publish(b"x" * 70000, EMPTY)
        node.flush()
        node.checkpoint()


def ids(directory: Path) -> list[str]:
    return [snapshot.id for snapshot in list_snapshots(directory)]


# Retention, and its cap


def test_a_cursor_keeps_what_is_left_of_its_snapshot_for_a_year(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(200))
    reading = query()
    assert reading.batch(TEN) == list(range(10))
    reading.reader.stop()
    forget(node, range(200))
    sweep(pins_directory(tmp_path), int(time.time() * 1e6) + YEAR_US)
    reading.restart(**AGAIN)
    assert reading.batch() == list(range(10, 200))


def test_what_is_read_to_its_end_is_not_kept(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(20))
    reading = query()
    reading.reader.prepareForTriggerAvailableNow()
    assert reading.batch(TEN) == list(range(10))
    assert len(ids(tmp_path)) == 1
    assert reading.batch(TEN) == list(range(10, 20))
    assert reading.batch(TEN) == []
    assert ids(tmp_path) == []


def test_more_than_the_cap_is_released_by_the_node_which_says_so_once(
    tmp_path: Path,
    node: StoredNode,
    query: Callable[..., Query],
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(node, range(200))
    reading = query(cursorMaxBytes="100k")
    assert reading.batch(TEN) == list(range(10))
    pins = node.storage.pins
    pins.check(0.0)
    assert pins.pinned.snapshots == pins.pinned.cursors == 1, "what the store has is for nothing"
    forget(node, range(200))
    kept = held_by_cursors(pins_directory(tmp_path))["archive"].octets
    assert kept > 200_000
    with caplog.at_level(logging.INFO, "warren.storage"):
        pins.check(0.0)
        pins.check(0.0)
    assert pins.pinned == Pinned(0, 0, 1)
    warnings = [at.getMessage() for at in caplog.records if at.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"cursor_released cursor=archive bytes={kept} max_bytes=102400" in warnings[0]


def test_without_a_node_the_next_snapshot_releases_it(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(200))
    query(cursorMaxBytes="100k").batch(TEN)
    forget(node, range(200))
    other = create(tmp_path, QueueSelector(names=("empty",)))
    assert ids(tmp_path) == [other.id]


def test_a_stream_that_finds_its_snapshot_released_says_why_or_goes_on(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(200))
    reading = query(cursorMaxBytes="100k")
    assert reading.batch(TEN) == list(range(10))
    forget(node, range(150))
    node.storage.pins.check(0.0)
    publish(node, range(200, 205))
    options = {**AGAIN, "cursorMaxBytes": "1g"}
    reading.reader.stop()
    reading.restart(**options)
    with pytest.raises(
        DataLost,
        match=r"190 messages .* cursor archive kept [0-9]+ bytes .* cursorMaxBytes was 102400"
        r".* let it keep more.* failOnDataLoss=false",
    ):
        reading.batch(TEN)
    reading.reader.stop()
    reading.restart(**options, failOnDataLoss="false")
    assert reading.batch() == list(range(150, 205))


def test_a_batch_whose_snapshot_was_released_is_lost_or_read_as_far_as_it_is_there(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(200))
    reading = query(cursorMaxBytes="100k")
    end = reading.reader.latestOffset(reading.at, ReadMaxRows(180))
    forget(node, range(150))
    node.storage.pins.check(0.0)
    options = {**AGAIN, "cursorMaxBytes": "1g"}
    reading.reader.stop()
    reading.restart(**options)
    with pytest.raises(DataLost, match=r"a batch was not finished.*cursorMaxBytes was 102400"):
        reading.read(reading.at, end)
    reading.reader.stop()
    reading.restart(**options, failOnDataLoss="false")
    assert reading.read(reading.at, end) == list(range(150, 180))
    reading.at = end
    assert reading.batch() == list(range(180, 200))


def test_a_snapshot_released_after_its_last_message_was_read_is_no_loss(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(200))
    reading = query(cursorMaxBytes="100k")
    assert reading.batch() == list(range(200))
    forget(node, range(200))
    node.storage.pins.check(0.0)
    assert ids(tmp_path) == []
    publish(node, range(200, 203))
    assert reading.batch() == list(range(200, 203))


def test_a_snapshot_that_is_released_while_it_is_read_is_no_end_of_the_data(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(200))
    reading = query(cursorMaxBytes="100k")
    end = reading.reader.latestOffset(reading.at, TEN)
    (partition,) = reading.reader.partitions(reading.at, end)
    forget(node, range(200))
    node.storage.pins.check(0.0)
    with pytest.raises(SnapshotGone):
        list(reading.reader.read(partition))


def test_only_snapshots_are_removed_whatever_the_checkpoint_says(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    reading = query()
    reading.at = {**reading.at, "snapshot": str(other)}
    assert reading.batch() == []
    assert other.exists()


def test_what_two_cursors_keep_counts_for_each(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(200))
    first, second = query(), Query(tmp_path, queue="orders", cursor="other")
    first.batch(TEN)
    second.batch(TEN)
    forget(node, range(200))
    held = held_by_cursors(pins_directory(tmp_path))
    assert held["archive"].octets > 200_000
    assert abs(held["archive"].octets - held["other"].octets) < 1000
    second.reader.stop()


def test_snapshots_of_a_cursor_that_is_gone_go_too(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(20))
    query().batch(TEN)
    path = cursor_path(pins_directory(tmp_path), "archive")
    sweep(pins_directory(tmp_path), 0)
    assert len(ids(tmp_path)) == 1
    path.rename(path.with_name("renamed"))
    sweep(pins_directory(tmp_path), 0)
    assert ids(tmp_path) == []


# One stream at a time


def test_the_second_stream_of_a_cursor_is_refused_until_the_first_ends(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(20))
    first = query()
    assert first.batch(TEN) == list(range(10))
    with pytest.raises(
        CursorInUse, match=r"another stream reads with cursor archive, process [0-9]+ on .*; stop"
    ):
        query()
    first.reader.stop()
    assert query().batch() == list(range(20))


TAKE = """
import sys
from pathlib import Path
from warren.spark_export.snapshot.cursor import take_cursor
held = take_cursor(Path(sys.argv[1]), "archive", None, None)
print("taken", flush=True)
sys.stdin.read()
"""


def test_the_cursor_of_a_stream_that_was_killed_is_taken_over(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    command = [sys.executable, "-P", "-c", TAKE, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        with pytest.raises(CursorInUse, match=f"process {process.pid} on"):
            query()
        process.send_signal(signal.SIGKILL)
    assert query().batch() == []


def test_in_a_directory_of_several_nodes_a_cursor_is_of_one(tmp_path: Path) -> None:
    nodes = [StoredNode(tmp_path / name, CONTENT_HEADER) for name in "ab"]
    shared = tmp_path / "snapshots"
    take_cursor(tmp_path / "a", "archive", None, shared).close()
    with pytest.raises(CursorInUse, match="is of another node"):
        take_cursor(tmp_path / "b", "archive", None, shared)
    take_cursor(tmp_path / "a", "archive", None, shared).close()
    for one in nodes:
        one.die()


# What a killed driver leaves


def test_a_snapshot_that_no_offset_names_is_released_when_the_stream_is_back(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(20))
    reading = query()
    assert reading.batch(TEN) == list(range(10))
    (named,) = ids(tmp_path)
    # As if another one had been taken, and the driver killed before that was in the checkpoint.
    selector = QueueSelector()
    create(tmp_path, selector, cursor="archive")
    of_others = create(tmp_path, selector)
    reading.reader.stop()
    reading.restart(**AGAIN)
    reading.reader.prepareForTriggerAvailableNow()
    assert reading.batch(TEN) == list(range(10, 20))
    left = ids(tmp_path)
    assert named in left and of_others.id in left
    assert len(left) == 3, "the third is for what comes next"


def test_the_batch_that_is_to_be_run_again_keeps_its_snapshot(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(20))
    reading = query()
    end = reading.reader.latestOffset(reading.at, TEN)
    create(tmp_path, QueueSelector(), cursor="archive")
    forget(node, range(20))
    reading.reader.stop()
    reading.restart(**AGAIN)
    # So does Spark when its first batch was not finished.
    assert reading.reader.initialOffset() == reading.at
    assert reading.read(reading.at, end) == list(range(10))
    assert [str(at.directory) for at in list_snapshots(tmp_path)] == [end["snapshot"]]
    reading.at = end
    assert reading.batch() == list(range(10, 20))


def test_a_stream_that_begins_anew_releases_what_the_one_before_had(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(20))
    before = query()
    before.batch(TEN)
    before.reader.stop()
    old = ids(tmp_path)
    assert query().batch(TEN) == list(range(10))
    assert len(ids(tmp_path)) == 1 and ids(tmp_path) != old


def test_the_first_batch_begins_again_where_it_began(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(20))
    reading = query(startingOffsets="latest")
    publish(node, range(20, 30))
    end = reading.reader.latestOffset(reading.at, TEN)
    publish(node, range(30, 40))
    reading.reader.stop()
    reading.restart(**AGAIN, startingOffsets="latest")
    # Spark has not kept it.
    anew = reading.reader.initialOffset()
    assert anew != reading.at
    assert reading.read(anew, end) == list(range(20, 30))


# The command line


def call(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(warren, ["export", "snapshot", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_cursors_are_listed_and_ended(
    tmp_path: Path, node: StoredNode, query: Callable[..., Query]
) -> None:
    publish(node, range(200))
    reading = query(cursorMaxBytes="1g")
    reading.batch(TEN)
    forget(node, range(200))
    (snapshot,) = ids(tmp_path)
    listed = call("list", tmp_path).output
    assert f"{snapshot}: 200 messages of 1 queues" in listed
    assert "of cursor archive\n" in listed
    found = json.loads(call("list", tmp_path, "--json").output)
    (cursor,) = found["cursors"]
    assert cursor["kept_bytes"] > 200_000
    assert (
        f"cursor archive: keeps {cursor['kept_bytes']} bytes of at most {1 << 30} with"
        " 1 snapshots, in use"
    ) in listed
    assert cursor["name"] == "archive" and cursor["max_bytes"] == 1 << 30 and cursor["in_use"]
    assert cursor["snapshots"] == [snapshot]
    assert [(at["cursor"], at["expires_us"]) for at in found["snapshots"]] == [("archive", None)]
    assert "has no lease" in call("extend", tmp_path, snapshot, code=2).output
    assert "stop it first" in call("release", tmp_path, "archive", code=2).output
    reading.reader.stop()
    assert "not in use" in call("list", tmp_path).output
    call("release", tmp_path, "archive")
    assert json.loads(call("list", tmp_path, "--json").output) == {"snapshots": [], "cursors": []}
    assert "there is no cursor archive" in call("release", tmp_path, "archive", code=2).output


# Options


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "ä", "20260131T120000Z-89abcdef", "a" * 101]
)
def test_names_that_no_cursor_has_are_refused(name: str) -> None:
    with pytest.raises(OptionRefused, match=r"option cursor is .*letters, digits"):
        parse_options({"cursor": name})


def test_options_of_cursors() -> None:
    options = parse_options({"cursor": "hourly-archive_2.eu", "cursorMaxBytes": "10g"})
    assert options.cursor == "hourly-archive_2.eu"
    assert options.cursor_max_bytes == 10 << 30
    with pytest.raises(OptionRefused, match="name a cursor too"):
        parse_options({"cursorMaxBytes": "10g"})


def test_a_batch_has_no_cursor(tmp_path: Path, node: StoredNode) -> None:
    source = MessageStoreSource({"path": str(tmp_path), "cursor": "archive"})
    with pytest.raises(OptionRefused, match="option cursor is for streams"):
        source.reader(source.schema())
    assert ids(tmp_path) == []
