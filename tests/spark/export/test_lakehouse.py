"""Exports that are appended to Delta and Iceberg tables: each message once, whatever is killed."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from exporting import CONTENT_HEADER, export, rows_of, wish
from stored_node import ORDERS, StoredNode, fill

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from export_process import ExportProcess
from lake_tables import (
    choice_of,
    configure_catalog,
    copies,
    files_of,
    read_table,
)

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Write
from warren.mgmt.command_line import warren
from warren.spark_export import cli
from warren.spark_export.errors import OptionRefused, TableRefused
from warren.spark_export.export import export as export_module
from warren.spark_export.export.delta_table import address
from warren.spark_export.export.export import alone, begin, finish, tasks
from warren.spark_export.export.export_plan import ExportPlan
from warren.spark_export.export.lake_table import (
    DELTA,
    ICEBERG,
    TableBatch,
    TableChoice,
)
from warren.spark_export.export.lake_tables import open_table
from warren.spark_export.export.manifest import Manifest
from warren.spark_export.export.parquet import export_unit
from warren.spark_export.snapshot.options import parse_options

DAY_S = 86_400

both = pytest.mark.parametrize("kind", [DELTA, ICEBERG])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoredNode]:
    node = fill(tmp_path / "node", CONTENT_HEADER)
    yield node
    node.die()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the table; the catalog is beside it."""
    configure_catalog(monkeypatch, tmp_path)
    return tmp_path / "table"


def export_to(kind: str, node: StoredNode, place: Path, name: str, **fields: Any) -> Manifest:
    return export(node.directory.path, place, name, wish(table=choice_of(kind), **fields))


@both
def test_every_message_is_in_the_table_once_as_it_is_in_the_files(
    kind: str, node: StoredNode, place: Path
) -> None:
    manifest = export_to(kind, node, place, "full")
    table = read_table(kind, place)
    names = [name for name in table.column_names if name != "date"]
    found = sorted(table.select(names).to_pylist(), key=lambda row: (row["queue"], row["seq"]))
    rows = sorted(rows_of(place, [manifest]), key=lambda row: (row["queue"], row["seq"]))
    assert len(found) == manifest.rows == 205
    assert found == rows
    assert files_of(kind, place) == {file.path for file in manifest.files}


AWKWARD = ["/", "0123", "a=b", "x" * 255, "%2F", "ключ "]


@both
def test_tables_are_partitioned_by_queue_and_day(kind: str, tmp_path: Path, place: Path) -> None:
    node = StoredNode(tmp_path / "node", CONTENT_HEADER)
    for number, name in enumerate(AWKWARD):
        record = QueueRecord(False, {}, 0x1000 + 0x100 * number)
        node.metadata.transact([Write(("queue", "/", name), record)])
        index = node.storage.open(record.queue_id, durable=True)
        node.queues[record.queue_id] = index
        node.positions[record.queue_id] = index.first_position()
    for day in range(2):
        for number in range(len(AWKWARD)):
            node.publish(b"day %d" % day, 0x1000 + 0x100 * number)
        node.flush()
        node.clock.set_wall_forward(DAY_S)
    export_to(kind, node, place, "full")
    node.die()
    if kind == DELTA:
        from deltalake import DeltaTable

        parts = DeltaTable(str(place)).partitions()
        found = {(part["queue"], str(part["date"])) for part in parts}
    else:
        from pyiceberg.catalog import load_catalog

        table = load_catalog("lake").load_table("shop.messages")
        found = {
            (part["queue"], part["date"].isoformat())
            for part in table.inspect.partitions().column("partition").to_pylist()
        }
    assert found == {(name, f"2023-11-{14 + day}") for name in AWKWARD for day in range(2)}
    found_rows = {(row["queue"], row["body"]) for row in read_table(kind, place).to_pylist()}
    assert found_rows == {(name, b"day %d" % day) for name in AWKWARD for day in range(2)}


@both
def test_damaged_messages_have_no_day(kind: str, tmp_path: Path, place: Path) -> None:
    # Its headers are none that AMQP has.
    node = fill(tmp_path / "node")
    manifest = export_to(kind, node, place, "full")
    node.die()
    assert manifest.corrupt
    table = read_table(kind, place)
    assert table.num_rows == manifest.rows
    assert table.column("_corrupt_record").null_count == manifest.rows - manifest.corrupt


@both
def test_increments_are_appended_and_nothing_twice(
    kind: str, node: StoredNode, place: Path
) -> None:
    export_to(kind, node, place, "1")
    for number in range(3):
        node.publish(b"later %d" % number, ORDERS)
    node.flush()
    for _ in range(2):
        export_to(kind, node, place, "2", since="1")
    # Nothing has come since.
    assert export_to(kind, node, place, "3", since="2").rows == 0
    found = copies(read_table(kind, place))
    assert len(found) == 208 and set(found.values()) == {1}


def killed_around_the_transaction(kind: str, node: StoredNode, place: Path, name: str) -> None:
    """An increment that has appended its files, and does not come to write that it is finished."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_module, "_settled", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception, match="killed"):
            export_to(kind, node, place, name, since="latest", lease_s=0.001)


@both
def test_an_increment_of_another_name_finishes_the_one_that_was_killed(
    kind: str, node: StoredNode, place: Path
) -> None:
    """As from cron, where each run has a name of its own; the lease of the killed one is over."""
    export_to(kind, node, place, "1")
    node.publish(b"later", ORDERS)
    node.flush()
    killed_around_the_transaction(kind, node, place, "2")
    node.publish(b"latest", ORDERS)
    node.flush()
    assert export_to(kind, node, place, "3", since="latest").since == "2"
    found = copies(read_table(kind, place))
    assert len(found) == 207 and set(found.values()) == {1}
    assert export_to(kind, node, place, "2", since="latest").rows == 1
    assert read_table(kind, place).num_rows == 207


def test_a_full_export_is_not_repeated_after_one_that_was_killed(
    node: StoredNode, place: Path
) -> None:
    export_to(DELTA, node, place, "1")
    killed_around_the_transaction(DELTA, node, place, "2")
    with pytest.raises(OptionRefused, match="export 2 was not finished and is now"):
        export_to(DELTA, node, place, "3")
    assert export_to(DELTA, node, place, "3", since="latest").since == "2"


def test_two_increments_of_one_export_do_not_both_go_to_the_table(
    node: StoredNode, place: Path
) -> None:
    wanted = wish(table=choice_of(DELTA), since="1")
    export_to(DELTA, node, place, "1")
    node.publish(b"later", ORDERS)
    node.flush()
    plan = begin(node.directory.path, place, "2", wanted)
    assert isinstance(plan, ExportPlan)
    files = [file for task in tasks(place, plan) for file in export_unit(task)]
    export_to(DELTA, node, place, "3", since="1")
    with pytest.raises(OptionRefused, match="export 3 went on from 1"):
        finish(place, plan, files, {})
    with pytest.raises(OptionRefused, match="export 3 went on from 1"):
        export_to(DELTA, node, place, "4", since="1")
    assert read_table(DELTA, place).num_rows == 206


def test_no_increment_goes_on_while_another_one_is_being_appended(
    node: StoredNode, place: Path
) -> None:
    export_to(DELTA, node, place, "1")
    killed_around_the_transaction(DELTA, node, place, "2")
    with alone(place, "2"), pytest.raises(OptionRefused, match="export 2 went on from 1"):
        export_to(DELTA, node, place, "3", since="1")


def test_files_of_a_transaction_that_counts_stay_though_its_answer_was_lost(
    node: StoredNode, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Glue: its client sends the request again, and is told of a conflict with itself."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    export_to(ICEBERG, node, place, "1")
    node.publish(b"later", ORDERS)
    node.flush()
    commit = SqlCatalog.commit_table
    commits = []

    def commit_without_answer(self: Any, *arguments: Any, **named: Any) -> Any:
        commits.append(commit(self, *arguments, **named))
        raise CommitFailedException("another transaction came first")

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_without_answer)
    export_to(ICEBERG, node, place, "2", since="1")
    assert len(commits) == 1
    found = copies(read_table(ICEBERG, place))
    assert len(found) == 206 and set(found.values()) == {1}


@pytest.fixture
def snapshot(node: StoredNode) -> Path:
    from warren.spark_export.snapshot.plan import QueueSelector
    from warren.spark_export.snapshot.snapshot import create

    return create(node.directory.path, QueueSelector()).directory


@pytest.mark.parametrize(
    ("kind", "step", "count"),
    [
        (DELTA, "file", 0),
        (ICEBERG, "file", 4),
        (DELTA, "transaction", 0),
        (ICEBERG, "transaction", 0),
        (ICEBERG, "manifest", 0),
        (DELTA, "settled", 0),
    ],
)
def test_an_export_that_is_killed_and_run_again_is_in_the_table_once(
    kind: str, node: StoredNode, place: Path, snapshot: Path, step: str, count: int
) -> None:
    what = (kind, node.directory.path, place, snapshot)
    assert ExportProcess(*what, step, count).wait() == -signal.SIGKILL
    for _ in range(2):
        assert ExportProcess(*what).wait() == 0
    found = copies(read_table(kind, place))
    assert len(found) == 205 and set(found.values()) == {1}


@both
def test_an_export_that_is_killed_at_any_moment_is_in_the_table_once(
    kind: str, node: StoredNode, place: Path, snapshot: Path
) -> None:
    what = (kind, node.directory.path, place, snapshot)
    chance = random.Random(7)
    for _ in range(5):
        killed = ExportProcess(*what)
        killed.wait_until_it_begins()
        # About as long as all of it takes.
        killed.kill_after(chance.uniform(0, 0.4))
    assert ExportProcess(*what).wait() == 0
    found = copies(read_table(kind, place))
    assert len(found) == 205 and set(found.values()) == {1}


# What is refused


@both
def test_columns_that_do_not_fit_are_refused_before_anything_is_written(
    kind: str, node: StoredNode, place: Path
) -> None:
    export_to(kind, node, place, "1")
    with pytest.raises(TableRefused, match="column headers is"):
        export_to(kind, node, place, "2", options=parse_options({"headers": "json"}))
    with pytest.raises(OptionRefused, match="VARIANT"):
        export_to(kind, node, place, "2", options=parse_options({"headers": "variant"}))
    assert not (place / "_staging" / "2").exists()


def test_an_increment_goes_to_the_table_of_its_base(node: StoredNode, place: Path) -> None:
    export(node.directory.path, place, "1", wish())
    with pytest.raises(OptionRefused, match="written to plain files, this one is for delta"):
        export_to(DELTA, node, place, "2", since="latest")


def test_a_table_of_other_partitions_is_refused(node: StoredNode, place: Path) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable

    DeltaTable.create(str(place), pa.schema([("queue", pa.string())]))
    with pytest.raises(TableRefused, match="partitioned by"):
        export_to(DELTA, node, place, "1")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--format", "iceberg"), "needs a name of catalog, namespace and table"),
        (("--format", "iceberg", "--table", "orders"), "needs a name of catalog"),
        (("--format", "iceberg", "--table", "none.shop.orders"), "Iceberg table none.shop.orders"),
        (("--format", "delta", "--table", "a.b.c"), "has no name"),
        (("--table", "a.b.c"), "for --format iceberg"),
        (("--format", "delta", "--body", "json"), "VARIANT"),
    ],
)
def test_mistakes_are_told_before_spark_is_started(
    node: StoredNode,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    text: str,
) -> None:
    monkeypatch.setattr(cli, "started_spark", lambda master: pytest.fail("Spark was started"))
    monkeypatch.setattr(cli, "check_java", lambda: None)
    command = ["export", "run", str(node.directory.path), str(place), *arguments]
    result = CliRunner().invoke(warren, command)
    assert result.exit_code == 2 and text in result.output, result.output


def test_an_error_of_delta_is_told_in_a_line(place: Path) -> None:
    log = place / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("no JSON\n")
    with pytest.raises(TableRefused, match=r"Delta table .*/table: ") as told:
        open_table(choice_of(DELTA), place).has(TableBatch("job", 0))
    assert str(told.value).isprintable() and "start_thread" not in str(told.value)


def test_without_the_library_it_says_what_to_install(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, library in ((DELTA, "deltalake"), (ICEBERG, "pyiceberg")):
        for name in [name for name in sys.modules if name.split(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.delitem(sys.modules, f"warren.spark_export.export.{kind}_table", raising=False)
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(TableRefused, match=f"{library}.* is not installed: .*pip install"):
            open_table(choice_of(kind), place)


def test_a_delta_table_may_be_at_a_url(node: StoredNode, s3_url: str) -> None:
    from deltalake import DeltaTable

    choice = TableChoice(DELTA)
    export(node.directory.path, s3_url, "1", wish(table=choice))
    node.publish(b"later", ORDERS)
    node.flush()
    export(node.directory.path, s3_url, "2", wish(table=choice, since="latest"))
    uri, options = address(s3_url)
    found = copies(DeltaTable(uri, storage_options=options).to_pyarrow_table())
    assert len(found) == 206 and set(found.values()) == {1}


def test_an_iceberg_table_may_be_at_a_url(
    node: StoredNode, s3_url: str, s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files and its metadata; pyiceberg is told where S3 is as its documents say."""
    bucket = s3_url.partition("@")[2].partition("/")[0]
    configure_catalog(
        monkeypatch,
        tmp_path,
        WAREHOUSE=f"s3://{bucket}/warehouse",
        S3__ENDPOINT=f"http://127.0.0.1:{s3_port}",
        S3__ACCESS_KEY_ID="key",
        S3__SECRET_ACCESS_KEY="secret",
        S3__REGION="us-east-1",
    )
    choice = choice_of(ICEBERG)
    export(node.directory.path, s3_url, "1", wish(table=choice))
    node.publish(b"later", ORDERS)
    node.flush()
    export(node.directory.path, s3_url, "2", wish(table=choice, since="latest"))
    found = copies(read_table(ICEBERG, tmp_path))
    assert len(found) == 206 and set(found.values()) == {1}
    assert all(f"s3:/{bucket}/folder/" in path for path in files_of(ICEBERG, tmp_path))
