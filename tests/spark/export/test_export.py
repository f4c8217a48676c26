"""Exports: what they write and where, when they count, and that they can be done again."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from exporting import CONTENT_HEADER, export, rows_of, wish
from pyarrow.fs import FileSelector, FileSystem
from stored_node import NAMES, ORDERS, StoredNode

from warren.backup.shelf import DirectoryShelf
from warren.core.definitions.records import QueueRecord
from warren.core.ports import Write
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.dump import dump
from warren.spark_export.errors import (
    DataLost,
    OptionRefused,
    QueueUnknown,
    RecordDamaged,
    SnapshotGone,
    SparkRefused,
    StoreRefused,
)
from warren.spark_export.export import parquet
from warren.spark_export.export.export import alone, begin, finish, tasks
from warren.spark_export.export.manifest import (
    ExportedFile,
    Manifest,
    chain,
    find_manifest,
    list_manifests,
    partition_directory,
    read_manifest,
    shelf_of,
    verify,
    write_manifest,
)
from warren.spark_export.export.spark_job import deal, export_share, write_tasks
from warren.spark_export.snapshot import creation
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import create, list_snapshots

DAY_S = 86_400


def files_in(directory: Path) -> dict[str, int]:
    """Everything below, with the time it was written."""
    return {
        str(path.relative_to(directory)): path.stat().st_mtime_ns
        for path in directory.rglob("*")
        if path.is_file()
    }


def digests(manifest: Manifest) -> set[tuple[str, str]]:
    return {(file.path, file.sha256) for file in manifest.files}


def test_every_message_is_in_it_once(store: Path, destination: Path) -> None:
    manifest = export(store, destination, "full", wish())
    rows = rows_of(destination, [manifest])
    found = {(row["queue"], row["seq"]): (row["body"], row["enqueued_at"]) for row in rows}
    wanted = {
        (name, at.position): (at.body, datetime.fromtimestamp(at.enqueued_us // 10**6, UTC))
        for queue, name in NAMES.items()
        for at in dump(RealFileSystem(), store, queue)
    }
    assert len(rows) == len(found) == manifest.rows == 205
    assert {key: (body, at.replace(microsecond=0)) for key, (body, at) in found.items()} == wanted
    assert [(one.vhost, one.queue, one.rows, one.corrupt) for one in manifest.queues()] == [
        ("/", "orders", 180, 0),
        ("/", "invoices", 25, 0),
    ]


def test_files_stand_in_directories_by_queue_and_date_under_names_that_say_what_is_in_them(
    store: Path, destination: Path
) -> None:
    manifest = export(store, destination, "full", wish())
    assert len(manifest.files) > 5
    for file in manifest.files:
        directory, _, name = file.path.rpartition("/")
        assert directory == f"vhost=%2F/queue={file.queue}/date=2023-11-14"
        seqs = pq.ParquetFile(destination / file.path).read(["seq"])["seq"].to_pylist()
        assert (file.first_seq, file.last_seq, file.rows) == (seqs[0], seqs[-1], len(seqs))
        start = f"part-{file.queue_id}-{file.first_seq}-{file.last_seq}-{manifest.node_id[:8]}-"
        assert name.startswith(start)
        assert (destination / file.path).stat().st_size == file.bytes
    assert (destination / "_SUCCESS").exists()
    assert set(os.listdir(destination)) == {"_SUCCESS", "_manifests", "_staging", "vhost=%2F"}
    assert os.listdir(destination / "_staging") == []
    assert read_manifest(destination, "full") == manifest
    assert list_snapshots(store) == []


def test_messages_of_two_days_are_in_two_directories(node: StoredNode, destination: Path) -> None:
    for day in range(2):
        node.publish(b"day %d" % day, ORDERS)
        node.flush()
        node.clock.set_wall_forward(DAY_S)
    manifest = export(node.directory.path, destination, "full", wish())
    assert [(file.date, file.rows) for file in manifest.files] == [
        ("2023-11-14", 1),
        ("2023-11-15", 1),
    ]
    found = {
        row["body"]: row["enqueued_at"].date().isoformat()
        for row in rows_of(destination, [manifest])
    }
    assert found == {b"day 0": "2023-11-14", b"day 1": "2023-11-15"}


AWKWARD = ["/", "0123", "a=b", "ü" * 127 + "x", "x" * 255, "2026-01-01", "%2F", "..", "ключ "]


def test_any_name_of_a_queue_is_kept_as_it_is(node: StoredNode, destination: Path) -> None:
    for number, name in enumerate(AWKWARD):
        record = QueueRecord(False, {}, 0x1000 + 0x100 * number)
        node.metadata.transact([Write(("queue", name, name), record)])
        index = node.storage.open(record.queue_id, durable=True)
        node.queues[record.queue_id] = index
        node.positions[record.queue_id] = index.first_position()
        node.publish(name.encode(), record.queue_id)
    node.flush()
    manifest = export(node.directory.path, destination, "full", wish())
    rows = rows_of(destination, [manifest])
    assert sorted((row["vhost"], row["queue"], row["body"].decode()) for row in rows) == sorted(
        (name, name, name) for name in AWKWARD
    )
    assert not list(verify(destination, manifest))


def test_directories_of_long_names_are_short_and_different() -> None:
    names = ["ü" * 127 + "x", "ü" * 127 + "y", "ü" * 126 + "xyz"]
    paths = {partition_directory("/", name, None) for name in names}
    assert len(paths) == 3
    for path in paths:
        assert all(len(part.encode()) <= 255 for part in path.split("/"))
    assert partition_directory("a/b", "c=d", None).startswith("vhost=a%2Fb/queue=c%3Dd/date=__")


def test_an_export_that_is_whole_is_left_as_it_is(store: Path, destination: Path) -> None:
    manifest = export(store, destination, "full", wish())
    before = files_in(destination)
    assert export(store, destination, "full", wish()) == manifest
    assert files_in(destination) == before


class Killed(Exception):
    """In place of the end of a process."""


@pytest.mark.parametrize("after", [0, 1, 5])
def test_an_export_that_failed_goes_on_where_it_was(
    store: Path, destination: Path, after: int
) -> None:
    done = []

    def fail(task: object) -> None:
        if len(done) == after:
            raise Killed
        done.append(task)

    with pytest.raises(Killed):
        export(store, destination, "full", wish(), fail)
    with pytest.raises(StoreRefused, match="no finished export"):
        find_manifest(destination, None)
    written = {name: at for name, at in files_in(destination).items() if name.endswith(".parquet")}
    assert len(written) == after
    manifest = export(store, destination, "full", wish())
    assert manifest.rows == 205
    assert written.items() <= files_in(destination).items()
    assert not list(verify(destination, manifest))
    assert list_snapshots(store) == []


PROGRAM = """
import os, signal, sys
from pathlib import Path
sys.path += sys.argv[1:3]
from exporting import export, wish
from warren.spark_export.export import parquet
store, destination, snapshot = Path(sys.argv[3]), sys.argv[4], Path(sys.argv[5])
units = int(sys.argv[6])
started = []
close = parquet.ParquetFile.close
def end(self):
    started.append(self)
    if len(started) > units:
        self._write_group()
        os.kill(os.getpid(), signal.SIGKILL)
    return close(self)
parquet.ParquetFile.close = end
export(store, destination, "full", wish(snapshot=snapshot))
"""


@pytest.mark.parametrize("place", ["directory", "s3"])
@pytest.mark.parametrize("units", [0, 3])
def test_an_export_that_was_killed_and_run_again_has_the_same_files(
    store: Path, tmp_path: Path, units: int, place: str, request: pytest.FixtureRequest
) -> None:
    killed = tmp_path / "killed" if place == "directory" else request.getfixturevalue("s3_url")
    snapshot = create(store, QueueSelector())
    wanted = export(store, tmp_path / "whole", "full", wish(snapshot=snapshot.directory))
    tests = Path(__file__).parents[2]
    command = [
        sys.executable,
        "-P",
        "-c",
        PROGRAM,
        str(tests / "support"),
        str(tests / "simulation"),
    ]
    arguments = [store, killed, snapshot.directory, units]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    ended = subprocess.run([*command, *map(str, arguments)], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert list(temporary.iterdir()) == []
    again = export(store, killed, "full", wish(snapshot=snapshot.directory))
    assert digests(again) == digests(wanted)
    assert not list(verify(killed, again))
    names = {name for name in shelf_of(killed).names("") if not name.startswith("_")}
    assert names == {file.path for file in again.files}
    # Who brings a snapshot keeps it.
    assert list_snapshots(store) == [snapshot]
    snapshot.release()


KILLED_WHILE_SENDING = """
import os, signal, sys
from pathlib import Path
sys.path += sys.argv[1:3]
from exporting import export, wish
from warren.backup import remote_shelf
def one_chunk(octets, size, shown):
    yield octets.read(1)
    os.kill(os.getpid(), signal.SIGKILL)
remote_shelf.chunks = one_chunk
export(Path(sys.argv[3]), sys.argv[4], "full", wish(snapshot=Path(sys.argv[5])))
"""


def test_a_file_that_was_not_sent_to_its_end_goes_with_the_staging_folder(
    store: Path, destination: Path
) -> None:
    """At a URL of a file system, where files are written before they get their names."""
    url = f"file://{destination}"
    snapshot = create(store, QueueSelector())
    tests = Path(__file__).parents[2]
    command = [sys.executable, "-P", "-c", KILLED_WHILE_SENDING]
    arguments = [tests / "support", tests / "simulation", store, url, snapshot.directory]
    ended = subprocess.run([*command, *map(str, arguments)], check=False)
    assert ended.returncode == -signal.SIGKILL
    manifest = export(store, url, "full", wish(snapshot=snapshot.directory))
    names = {name for name in shelf_of(url).names("") if not name.startswith("_")}
    assert names == {file.path for file in manifest.files}
    assert shelf_of(url).names("_staging") == []
    snapshot.release()


@pytest.mark.parametrize("arrives", [True, False])
def test_an_export_whose_plan_was_written_without_an_answer_goes_on(
    store: Path, destination: Path, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    write = DirectoryShelf.write

    def write_without_answer(shelf: DirectoryShelf, name: str, octets: bytes) -> None:
        if arrives:
            write(shelf, name, octets)
        raise OSError("no answer")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no answer"):
        patched.setattr(DirectoryShelf, "write", write_without_answer)
        begin(store, destination, "full", wish())
    kept = list_snapshots(store)
    assert len(kept) == arrives
    manifest = export(store, destination, "full", wish())
    assert manifest.rows == 205
    assert not arrives or kept[0].id == manifest.snapshot
    assert list_snapshots(store) == []


def test_an_export_at_a_url_is_verified_and_goes_on(node: StoredNode, s3_url: str) -> None:
    for number in range(3):
        node.publish(b"%d" % number, ORDERS)
    node.flush()
    first = export(node.directory.path, s3_url, "1", wish())
    node.publish(b"3", ORDERS)
    node.flush()
    second = export(node.directory.path, s3_url, "2", wish(since="latest"))
    assert (first.rows, second.rows) == (3, 1)
    links = chain(s3_url, find_manifest(s3_url, None))
    assert links == [first, second] == list_manifests(s3_url)
    assert not [fault for link in links for fault in verify(s3_url, link)]
    shelf = shelf_of(s3_url)
    shelf.remove(first.files[0].path)
    octets = shelf.read(second.files[0].path)
    shelf.write(second.files[0].path, octets[:-1] + b"x")
    assert [fault.reason for link in links for fault in verify(s3_url, link)] == [
        "missing",
        "its SHA-256 is another one",
    ]


def test_no_folder_of_a_finished_export_stays_at_a_url(store: Path, s3_url: str) -> None:
    """In S3 an empty folder is an object whose name ends in a slash."""
    export(store, s3_url, "full", wish())
    files, folder = FileSystem.from_uri(s3_url)
    assert files.get_file_info(FileSelector(f"{folder}/_staging", recursive=True)) == []
    shelf_of(s3_url).remove_folder("_staging/full")


def test_what_a_kill_behind_the_manifest_left_is_settled_by_the_next_run(
    store: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_die(destination: Path, manifest: Manifest) -> None:
        write_manifest(destination, manifest)
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("warren.spark_export.export.export.write_manifest", write_and_die)
        export(store, destination, "full", wish())
    assert list_snapshots(store)
    manifest = export(store, destination, "full", wish())
    assert manifest.rows == 205
    assert list_snapshots(store) == []
    assert (destination / "_SUCCESS").exists()
    assert os.listdir(destination / "_staging") == []


def test_what_was_begun_with_other_options_is_not_gone_on_with(
    store: Path, destination: Path
) -> None:
    plan = begin(store, destination, "full", wish())
    assert not isinstance(plan, Manifest)
    for other in (
        wish(codec="snappy"),
        wish(options=parse_options({"headers": "json"})),
        wish(selector=QueueSelector("/")),
    ):
        with pytest.raises(OptionRefused, match="begun with other options"):
            begin(store, destination, "full", other)
    assert begin(store, destination, "full", wish()) == plan
    plan.snapshot.release()
    with pytest.raises(SnapshotGone, match="cannot be finished"):
        begin(store, destination, "full", wish())


def test_a_file_of_a_unit_that_went_is_written_again(store: Path, destination: Path) -> None:
    def lose(task: object) -> None:
        for path in destination.rglob("part-*"):
            path.unlink()

    seen = []

    def fail(task: object) -> None:
        seen.append(task)
        if len(seen) == 4:
            lose(task)
            raise Killed

    with pytest.raises(Killed):
        export(store, destination, "full", wish(), fail)
    manifest = export(store, destination, "full", wish())
    assert not list(verify(destination, manifest)) and manifest.rows == 205


def test_files_that_are_not_what_was_written_are_found(store: Path, destination: Path) -> None:
    manifest = export(store, destination, "full", wish())
    assert list(verify(destination, manifest)) == []
    flipped, short, gone = (destination / file.path for file in manifest.files[:3])
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    short.write_bytes(short.read_bytes()[:-1])
    gone.unlink()
    reasons = [(fault.path, fault.reason) for fault in verify(destination, manifest)]
    assert reasons == [
        (manifest.files[0].path, "its SHA-256 is another one"),
        (
            manifest.files[1].path,
            f"{manifest.files[1].bytes - 1} bytes, {manifest.files[1].bytes} were written",
        ),
        (manifest.files[2].path, "missing"),
    ]


def test_a_time_leaves_out_what_is_not_of_it(node: StoredNode, destination: Path) -> None:
    for day in range(3):
        node.publish(b"day %d" % day, ORDERS)
        node.flush()
        node.clock.set_wall_forward(DAY_S)
    times = {"startingTimestamp": "2023-11-15", "endingTimestamp": "2023-11-16"}
    manifest = export(node.directory.path, destination, "day", wish(options=parse_options(times)))
    assert [row["body"] for row in rows_of(destination, [manifest])] == [b"day 1"]


def test_a_destination_in_the_data_directory_is_refused(node: StoredNode, tmp_path: Path) -> None:
    store = node.directory.path
    (tmp_path / "link").symlink_to(store)
    for inside in (store, store / "store", store / "archive", tmp_path / "link" / "archive"):
        with pytest.raises(OptionRefused, match="in the data directory"):
            export(store, inside, "full", wish())
    assert not (store / "archive").exists() and list_snapshots(store) == []


def test_an_export_is_written_by_one_process_at_once(store: Path, destination: Path) -> None:
    with (
        alone(destination, "full"),
        pytest.raises(StoreRefused, match="full is being written"),
        alone(destination, "full"),
    ):
        raise AssertionError("two are alone")
    with alone(destination, "full"), alone(destination, "other"):
        export(store, destination, "full", wish())
    assert [one.export for one in list_manifests(destination)] == ["full"]
    assert list((destination / "_staging").iterdir()) == []


def test_a_task_that_runs_twice_at_once_does_no_harm(
    store: Path, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On another machine a process may have the same id.
    monkeypatch.setattr(os, "getpid", lambda: 7)
    plan = begin(store, destination, "full", wish())
    assert not isinstance(plan, Manifest)
    first, *others = tasks(destination, plan)
    close_file = parquet.ParquetFile.close
    twins: list[list[ExportedFile]] = []

    def close_beside_a_twin(self: parquet.ParquetFile) -> parquet.Written:
        if not twins:
            twins.append([])
            twins.append(parquet.export_unit(first))
        return close_file(self)

    monkeypatch.setattr(parquet.ParquetFile, "close", close_beside_a_twin)
    assert parquet.export_unit(first) == twins[1]
    files = export_share([first, *others])
    manifest = finish(destination, plan, files, {})
    assert manifest.rows == 205 and not list(verify(destination, manifest))


def test_shares_of_tasks_are_alike(store: Path, destination: Path) -> None:
    plan = begin(store, destination, "full", wish())
    assert not isinstance(plan, Manifest)
    work = tasks(destination, plan)
    shares = deal(work, 3)
    assert sorted(task.name for share in shares for task in share) == [task.name for task in work]
    octets = [sum(task.unit.octets for task in share) for share in shares]
    largest = max(task.unit.octets for task in work)
    assert len(shares) == 3 and max(octets) - min(octets) <= 2 * largest
    assert len(deal(work[:2], 3)) == 2
    assert len(export_share(shares[0])) == len(shares[0])
    plan.snapshot.release()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "ü", "x" * 101])
def test_a_name_that_is_no_name_of_a_file_is_refused(
    store: Path, destination: Path, name: str
) -> None:
    with pytest.raises(OptionRefused):
        export(store, destination, name, wish())
    assert not destination.exists()


def test_a_virtual_host_that_a_given_snapshot_does_not_have_is_refused(
    store: Path, destination: Path
) -> None:
    with create(store, QueueSelector()) as snapshot, pytest.raises(QueueUnknown, match="'us'"):
        wanted = wish(selector=QueueSelector("us"), snapshot=snapshot.directory)
        export(store, destination, "full", wanted)


def test_nothing_is_left_of_an_export_that_cannot_begin(
    node: StoredNode, destination: Path
) -> None:
    with pytest.raises(QueueUnknown):
        export(
            node.directory.path, destination, "full", wish(selector=QueueSelector(names=("no",)))
        )
    assert not destination.exists() and list_snapshots(node.directory.path) == []


def test_damaged_messages_are_counted_or_end_the_export(
    node: StoredNode, destination: Path
) -> None:
    for number in range(10):
        node.publish(b"%d" % number * 100, ORDERS)
    node.flush()
    store = node.directory.path
    (path,) = (store / "store/log").iterdir()
    data = bytearray(path.read_bytes())
    at = data.index(b"4" * 100)
    # What the snapshot reads of the journal is gone with it, so the index must have it.
    node.checkpoint()
    node.flush()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    manifest = export(store, destination, "full", wish())
    assert (manifest.rows, manifest.corrupt) == (10, 1)
    assert [(file.date, file.corrupt) for file in manifest.files] == [
        ("2023-11-14", 0),
        (None, 1),
    ]
    strict = parse_options({"mode": "FAILFAST"})
    with pytest.raises(RecordDamaged):
        export(store, destination, "strict", wish(options=strict))
    lenient = parse_options({"mode": "DROPMALFORMED"})
    assert export(store, destination, "lenient", wish(options=lenient)).rows == 9


@pytest.mark.parametrize("with_headers", [(False,), (True, False)])
def test_variants_may_be_null(
    node: StoredNode, destination: Path, with_headers: tuple[bool, ...]
) -> None:
    """Of messages without headers, of bodies that are no JSON, and of damaged messages."""
    table = b"\0\0\0\x04\x01at\x01"
    for has_table in with_headers:
        header = struct.pack(">HHQH", 60, 0, 0, 0x3000) + table + b"\2"
        node.header = header if has_table else CONTENT_HEADER
        for body in (b'{"n": 1}', b"no JSON", b"to be damaged"):
            node.publish(body, ORDERS)
    node.flush()
    node.checkpoint()
    (path,) = (node.directory.path / "store/log").iterdir()
    path.write_bytes(path.read_bytes().replace(b"to be damaged", b"to be DAMAGED"))
    options = parse_options({"headers": "variant", "bodyFormat": "json"})
    manifest = export(node.directory.path, destination, "full", wish(options=options))
    rows = sorted(rows_of(destination, [manifest]), key=lambda row: row["seq"])
    headers = [has_table and at < 2 for has_table in with_headers for at in range(3)]
    assert [row["headers"] is not None for row in rows] == headers
    assert [row["body"] is not None for row in rows] == [True, False, False] * len(with_headers)


def test_an_export_of_less_than_there_was_has_to_be_allowed(
    node: StoredNode, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is on its way to the disk that were worth another look.
    monkeypatch.setattr(creation, "AGAIN_S", ())
    monkeypatch.setattr(creation, "SECOND_LOOKS_S", (0.0,))
    for number in range(10):
        node.publish(b"%d" % number * 100, ORDERS)
    node.flush()
    node.checkpoint()
    node.flush()
    node.publish(b"next", ORDERS)
    node.flush()
    store = node.directory.path
    first, *_ = sorted((store / "store/log").iterdir())
    first.unlink()
    with pytest.raises(DataLost, match=r"is gone.* --allow-data-loss\) such"):
        export(store, destination, "full", wish())
    allowed = parse_options({"failOnDataLoss": "false"})
    assert export(store, destination, "less", wish(options=allowed)).rows < 11


class ConnectSession:
    """As far as a session of Spark Connect says what it has not."""

    @property
    def sparkContext(self) -> None:
        from pyspark.errors import PySparkAttributeError

        names = {"attr_name": "sparkContext"}
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters=names
        )


def test_a_session_of_spark_connect_is_refused() -> None:
    session: Any = ConnectSession()
    with pytest.raises(SparkRefused, match="Spark Connect, which has no SparkContext"):
        write_tasks(session, [], None, lambda progress: None)
