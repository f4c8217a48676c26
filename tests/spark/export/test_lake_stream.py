"""Streams into Delta and Iceberg tables with `foreachBatch`: each message once, killed or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from exporting import CONTENT_HEADER
from stored_node import ORDERS, StoredNode, fill

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from lake_tables import (
    ICEBERG_NAME,
    choice_of,
    configure_catalog,
    copies,
    files_of,
    read_table,
    start_stream,
)

import warren.spark_export
from warren.mgmt.command_line import warren as command
from warren.spark_export.errors import OptionRefused
from warren.spark_export.export.lake_table import DELTA, ICEBERG
from warren.spark_export.export.table_batches import append_batch, append_to_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

both = pytest.mark.parametrize("kind", [DELTA, ICEBERG])


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    warren.spark_export.register(spark, pushdown=False)
    return spark


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StoredNode]:
    node = fill(tmp_path / "node", CONTENT_HEADER)
    yield node
    node.die()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    configure_catalog(monkeypatch, tmp_path)
    return tmp_path / "table"


@both
def test_a_stream_goes_on_where_it_was_and_another_one_begins_anew(
    session: SparkSession, kind: str, node: StoredNode, place: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def catch_up() -> None:
        data = node.directory.path
        start_stream(session, kind, data, place, checkpoint).awaitTermination()

    catch_up()
    found = copies(read_table(kind, place))
    assert len(found) == 205 and set(found.values()) == {1}
    node.publish(b"later", ORDERS)
    node.flush()
    catch_up()
    found = copies(read_table(kind, place))
    assert len(found) == 206 and set(found.values()) == {1}
    # Another query, with a checkpoint of its own, is another job.
    start_stream(session, kind, node.directory.path, place, tmp_path / "other").awaitTermination()
    assert set(copies(read_table(kind, place)).values()) == {2}


@both
def test_a_batch_that_runs_again_is_not_written_again(
    session: SparkSession, kind: str, node: StoredNode, place: Path
) -> None:
    frame = session.read.format("warren").load(str(node.directory.path))
    for batch, times in ((3, 1), (3, 1), (2, 1), (4, 2)):
        append_batch(frame, choice_of(kind), str(place), "job", batch)
        assert set(copies(read_table(kind, place)).values()) == {times}
        written = {str(path.relative_to(place)) for path in place.glob("vhost=*/**/*.parquet")}
        assert written == files_of(kind, place)
    assert not list(place.rglob("*.new"))


@pytest.mark.parametrize(("kind", "moment"), [(DELTA, "before"), (ICEBERG, "after")])
def test_a_driver_that_is_killed_around_the_transaction_misses_and_repeats_nothing(
    session: SparkSession,
    kind: str,
    moment: str,
    node: StoredNode,
    place: Path,
    tmp_path: Path,
    worker_python: str,
) -> None:
    script = Path(__file__).parents[2] / "support" / "lake_driver.py"
    told = [node.directory.path, place, tmp_path / "checkpoint", moment]
    driver = tmp_path / "driver"
    driver.mkdir()
    arguments = [sys.executable, script, driver, worker_python, kind, *told]
    with (tmp_path / "log").open("wb") as log:
        killed = subprocess.run(
            list(map(str, arguments)),
            cwd=driver,
            stderr=log,
            start_new_session=True,
            env=os.environ,
            check=False,
        )
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert read_table(kind, place).num_rows == (160 if moment == "after" else 80)
    query = start_stream(session, kind, node.directory.path, place, tmp_path / "checkpoint")
    query.awaitTermination()
    found = copies(read_table(kind, place))
    assert len(found) == 205 and set(found.values()) == {1}


@both
def test_the_command_appends_with_spark_and_goes_on(
    session: SparkSession, kind: str, node: StoredNode, place: Path
) -> None:
    table = ("--table", ICEBERG_NAME) if kind == ICEBERG else ()
    run = ("export", "run", str(node.directory.path), str(place), "--format", kind, *table)
    for name, since, rows in (("1", (), 205), ("2", ("--since", "latest"), 206)):
        result = CliRunner().invoke(command, [*run, "--export", name, *since])
        assert result.exit_code == 0, result.output
        found = copies(read_table(kind, place))
        assert len(found) == rows and set(found.values()) == {1}
        node.publish(b"later", ORDERS)
        node.flush()


def test_it_is_for_streams(session: SparkSession, node: StoredNode, place: Path) -> None:
    frame = session.read.format("warren").load(str(node.directory.path))
    with pytest.raises(OptionRefused, match="foreachBatch"):
        append_to_delta(place)(frame, 0)
