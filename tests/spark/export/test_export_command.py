"""`warren export` as people call it, with Spark where it takes that."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from damaged_journal import damage_journal
from exporting import CONTENT_HEADER, export, wish
from stored_node import ORDERS, StoredNode, fill

from warren.backup.errors import ShelfRefused
from warren.core.definitions.records import QueueRecord
from warren.core.ports import Write
from warren.mgmt.command_line import warren
from warren.persist.snapshots.pins import measure
from warren.spark_export import cli, read_export
from warren.spark_export.errors import SnapshotGone, StoreRefused
from warren.spark_export.export.export import Renewal, absolute, begin, run
from warren.spark_export.export.manifest import Manifest, find_manifest
from warren.spark_export.export.spark_job import ExportProgress
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import Snapshot, create, list_snapshots, pins_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoredNode]:
    node = fill(tmp_path / "node", CONTENT_HEADER)
    yield node
    node.die()


def call(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(warren, ["export", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_an_empty_destination_is_not_the_working_directory(tmp_path: Path) -> None:
    for arguments in (("run", tmp_path, ""), ("list", ""), ("verify", "")):
        assert "'DEST': it is empty" in call(*arguments, code=2).output


@pytest.mark.parametrize("option", ["--start", "--end", "--target-file-size"])
def test_a_wrong_value_is_told_by_the_name_that_the_option_has_here(
    option: str, tmp_path: Path
) -> None:
    said = call("run", tmp_path, tmp_path / "out", option, "soon", code=2).output
    assert f"option {option} is 'soon', and may be " in said


def test_an_end_before_the_start_is_told_by_the_names_that_the_options_have_here(
    tmp_path: Path,
) -> None:
    times = ("--start", "2026-02-01", "--end", "2026-01-01")
    said = call("run", tmp_path, tmp_path / "out", *times, code=2).output
    assert "option --start is later than option --end" in said


# Snapshots


def test_snapshots_are_made_listed_extended_and_released(node: StoredNode) -> None:
    store = node.directory.path
    made = call("snapshot", "create", store, "--lease", "15m", "--queue", "orders").output.strip()
    found = json.loads(call("snapshot", "list", store, "--json").output)["snapshots"]
    assert [(one["id"], one["messages"], one["copied"]) for one in found] == [(made, 180, False)]
    assert found[0]["queues"] == [{"vhost": "/", "name": "orders", "messages": 180}]
    assert f"{made}: 180 messages of 1 queues" in call("snapshot", "list", store).output
    call("snapshot", "extend", store, made, "--lease", "2d")
    (longer,) = list_snapshots(store)
    assert longer.expires_us - found[0]["expires_us"] > 47 * 3600 * 1_000_000
    call("snapshot", "release", store, made)
    assert measure(pins_directory(store)).snapshots == 0
    assert "released" in call("snapshot", "release", store, made, code=2).output


def test_a_snapshot_can_be_made_elsewhere(node: StoredNode, tmp_path: Path) -> None:
    arguments = (node.directory.path, "--snapshot-directory", tmp_path / "there")
    made = json.loads(call("snapshot", "create", *arguments, "--json").output)
    assert made["directory"] == str(tmp_path / "there" / made["id"])
    call("snapshot", "release", node.directory.path, made["id"], *arguments[1:])
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("snapshot", "create", "DIR", "--queue", "orderz"), "near names: 'orders'"),
        (("snapshot", "create", "DIR", "--queue", "orders", "--pattern", "o.*"), "exclude"),
        (("snapshot", "create", "DIR/none"), "not a directory"),
        (("snapshot", "create", "DIR", "--lease", "soon"), "no time such as"),
        (("snapshot", "create", "DIR", "--lease", "inf"), "no time such as"),
        (("snapshot", "create", "DIR", "--lease", "1e9d"), "up to ten years"),
        (("snapshot", "create", "DIR", "--state"), "stop the node"),
        (("snapshot", "release", "DIR", "../.."), "neither the id of a snapshot nor"),
        (("verify", "DIR"), "no finished export"),
        (("run", "DIR", "DIR/to", "--export", "a/b"), "letters, digits"),
        (("run", "DIR", "DIR/to", "--start", "soon"), "option --start is 'soon'"),
        (("verify", "s3:bucket/x"), "write s3://... for a URL"),
        (("list", "s3://"), "s3:// names no bucket"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    node: StoredNode, arguments: tuple[str, ...], text: str
) -> None:
    given = [argument.replace("DIR", str(node.directory.path)) for argument in arguments]
    assert text in call(*given, code=2).output


# Exports


def test_what_is_damaged_is_found(node: StoredNode, tmp_path: Path) -> None:
    manifest = export(node.directory.path, tmp_path / "to", "full", wish())
    assert "205 rows, 0 damaged" in call("verify", tmp_path / "to").output
    (tmp_path / "to" / manifest.files[0].path).unlink()
    assert "DAMAGED" in call("verify", tmp_path / "to", code=1).output
    told = json.loads(call("verify", tmp_path / "to", "--json", "--all", code=1).output)
    assert [fault["reason"] for fault in told["faults"]] == ["missing"]
    assert "full: 205 rows" in call("list", tmp_path / "to").output


def test_a_lease_is_renewed_long_before_it_is_over(node: StoredNode) -> None:
    with create(node.directory.path, QueueSelector()) as snapshot:
        renewal = Renewal(snapshot, 90)
        leases = set()
        for now in (100.0, 120.0, 129.9, 130.1, 150.0):
            renewal.look(now)
            (there,) = list_snapshots(node.directory.path)
            leases.add(there.expires_us)
        assert len(leases) == 2
    with pytest.raises(SnapshotGone):
        renewal.look(200.0)


def test_columns_are_printed(tmp_path: Path) -> None:
    assert "body binary" in call("schema").output.splitlines()
    told = json.loads(call("schema", "--headers", "json", "--json").output)
    assert {"name": "headers", "type": "string"} in told


def test_an_export_is_written_by_spark_and_read_as_it_was(
    spark: SparkSession, node: StoredNode, tmp_path: Path
) -> None:
    node.metadata.transact([Write(("queue", "/", "0123"), QueueRecord(False, {}, 0x1000))])
    index = node.storage.open(0x1000, durable=True)
    node.queues[0x1000], node.positions[0x1000] = index, index.first_position()
    node.publish(b"text", 0x1000)
    node.flush()
    store, to = node.directory.path, tmp_path / "to"
    arguments = ("run", store, to, "--target-file-size", "20k", "--progress")
    assert "0123: 1 rows" in call(*arguments, "--export", "1").output
    node.publish(b"later", ORDERS)
    node.flush()
    told = json.loads(call("run", store, to, "--export", "2", "--since", "latest", "--json").output)
    assert (told["rows"], told["since"]) == (1, "1")
    frame = read_export(spark, to)
    assert frame.count() == 207
    (row,) = frame.where("queue = '0123'").collect()
    assert (row.queue, bytes(row.body), row.state) == ("0123", b"text", None)
    assert frame.where("queue = 'orders'").agg({"seq": "max"}).first()[0] == (  # type: ignore[index]
        node.positions[ORDERS] - 1
    )
    assert read_export(spark, to, "1").count() == 206
    assert "2 exports" in call("verify", to).output


def test_progress_is_that_of_this_run_alone(
    spark: SparkSession, node: StoredNode, tmp_path: Path
) -> None:
    told: list[ExportProgress] = []
    for directory in ("first", "second"):
        run(lambda: spark, node.directory.path, tmp_path / directory, "x", wish(), tell=told.append)
    assert all(one.units <= one.units_total for one in told)


def test_an_export_that_runs_keeps_its_snapshot(
    spark: SparkSession, node: StoredNode, tmp_path: Path
) -> None:
    store = node.directory.path
    plan = begin(store, tmp_path / "to", "x", wish())
    assert not isinstance(plan, Manifest)
    nearly_over = plan.snapshot.extend(60)
    kept: list[Snapshot] = []

    def tell(progress: ExportProgress) -> None:
        kept.extend(list_snapshots(store))

    run(lambda: spark, store, tmp_path / "to", "x", wish(lease_s=3600), tell=tell)
    assert kept[0].id == nearly_over.id
    assert kept[0].expires_us > nearly_over.expires_us + 3000 * 10**6


def test_only_files_of_manifests_are_read(
    spark: SparkSession, node: StoredNode, tmp_path: Path
) -> None:
    to = tmp_path / "to"
    manifest = export(node.directory.path, to, "full", wish())
    stray = to / manifest.files[0].path
    stray.with_name("part-of-nobody.parquet").write_bytes(stray.read_bytes())
    assert read_export(spark, to).count() == manifest.rows
    with pytest.raises(StoreRefused, match="no finished export"):
        read_export(spark, tmp_path)
    other = wish(since="full", options=parse_options({"headers": "json"}))
    export(node.directory.path, to, "other", other)
    with pytest.raises(StoreRefused, match="different columns"):
        read_export(spark, to)


def test_an_export_is_read_from_a_directory_whose_name_looks_like_a_pattern(
    spark: SparkSession, node: StoredNode, tmp_path: Path
) -> None:
    to = tmp_path / "of {a,b} [1]*?\\"
    manifest = export(node.directory.path, to, "full", wish())
    assert read_export(spark, to).count() == manifest.rows


def test_an_export_of_nothing_has_the_columns_all_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    StoredNode(tmp_path / "node").stop()
    export(tmp_path / "node", tmp_path / "to", "full", wish())
    frame = read_export(spark, tmp_path / "to")
    assert frame.count() == 0 and "body" in frame.columns


def test_a_damaged_message_ends_a_strict_export_and_another_run_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    node = fill(tmp_path / "node")
    arguments = ("run", tmp_path / "node", tmp_path / "to", "--export", "x", "--mode", "FAILFAST")
    assert re.search(r"Error: message \d+ of queue", call(*arguments, code=1).output)
    with pytest.raises(StoreRefused):
        find_manifest(tmp_path / "to", None)
    assert len(list_snapshots(tmp_path / "node")) == 1
    node.die()


def test_a_place_that_a_task_cannot_write_to_is_told_in_a_line(
    spark: SparkSession, node: StoredNode, tmp_path: Path
) -> None:
    (tmp_path / "to").mkdir()
    in_the_way = tmp_path / "to" / "vhost=%2F"
    in_the_way.write_text("no directory")
    output = call("run", node.directory.path, tmp_path / "to", code=2).output
    assert output.startswith("Error: [Errno") and str(in_the_way) in output
    assert output.count("\n") == 1


def test_a_place_that_cannot_be_read_is_told(spark: SparkSession, tmp_path: Path) -> None:
    damage_journal(tmp_path / "node")
    export(tmp_path / "node", tmp_path / "to", "x", wish())
    told = call("run", tmp_path / "node", tmp_path / "to", "--export", "x").output
    assert "1 places of the store cannot be read" in told
    assert "9 rows in 1 files" in told


# Without the extra


def test_without_the_extra_it_says_what_to_install(node: StoredNode, tmp_path: Path) -> None:
    for missing, *arguments in (
        ["numpy", "snapshot", "list", str(node.directory.path)],
        ["pyarrow", "schema"],
        ["pyspark", "run", str(node.directory.path), str(tmp_path / "to")],
    ):
        program = (
            "import sys; sys.modules[sys.argv[1]] = None\n"
            "from warren.mgmt.command_line import warren\n"
            "warren(['export', *sys.argv[2:]], prog_name='warren')"
        )
        command = [sys.executable, "-P", "-c", program, missing, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 2, ended
        assert (
            f"{missing} is not installed: {sys.executable} -m pip install 'pyspark" in ended.stderr
        )


def test_the_command_is_described_without_the_extra() -> None:
    program = (
        "import sys\n"
        "for name in ('numpy', 'pyarrow', 'pyspark'): sys.modules[name] = None\n"
        "from warren.mgmt.command_line import warren\n"
        "warren(sys.argv[1:], prog_name='warren')"
    )
    for arguments in (["--help"], ["export", "--help"], ["export", "run", "--help"]):
        command = [sys.executable, "-P", "-c", program, *arguments]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_without_java_it_says_so_before_anything_is_done(
    node: StoredNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    output = call("run", node.directory.path, tmp_path / "to", code=2).output
    assert "there is no Java on the path" in output and output.count("\n") == 1
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    output = call("run", node.directory.path, tmp_path / "to", code=2).output
    assert f"there is no Java in JAVA_HOME={tmp_path}" in output
    assert list_snapshots(node.directory.path) == []


def test_a_java_that_ends_at_once_is_told_in_a_line(
    node: StoredNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    # In a process that has no Spark yet.
    command = [sys.executable, "-P", "-m", "warren", "export", "run"]
    command += [str(node.directory.path), str(tmp_path / "to")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("Error"))
    assert "Java 17 or later, could not be started" in line


@pytest.mark.parametrize("table", [(), ("--format", "delta")])
def test_an_export_to_a_url_without_both_slashes_writes_nothing(
    node: StoredNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: tuple[str, ...]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(cli, "started_spark", lambda master: pytest.fail("Spark was started"))
    output = call("run", node.directory.path, "s3:bucket/x", *table, code=2).output
    assert "write s3://... for a URL" in output
    assert list(here.iterdir()) == [] and list_snapshots(node.directory.path) == []
    with pytest.raises(ShelfRefused):
        absolute("hdfs:/x")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--queue", "orderz"), "near names: 'orders'"),
        (("--since", "never"), "never"),
        (("--master", "bogus"), "'bogus' is no master"),
        (("--snapshot", "20260131T120000Z-89abcdef"), "there is no snapshot"),
    ],
)
def test_mistakes_are_told_before_spark_is_started(
    node: StoredNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    text: str,
) -> None:
    (node.directory.path / "store" / "pins").mkdir(exist_ok=True)
    monkeypatch.setattr(cli, "started_spark", lambda master: pytest.fail("Spark was started"))
    assert text in call("run", node.directory.path, tmp_path / "to", *arguments, code=2).output
