"""Reading through Spark. One data directory for all; what needs no Spark is in other files."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stored_node import INVOICES, ORDERS, StoredNode

import warren.spark_export
from warren.amqp.properties import encode_properties
from warren.core.definitions.records import QueueRecord, VirtualHostRecord
from warren.core.field import Field, Table
from warren.core.messages.message import Envelope, Message
from warren.core.ports import Write
from warren.persist.snapshots.pins import sweep
from warren.spark_export.decode.schema import arrow_schema, columns, spark_schema
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import create, list_snapshots, now_us, pins_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 50
LARGE = 5000
"""Octets: larger messages are shared by queues."""

ODD_NAMES = {0x400: "/", 0x500: "0123", 0x600: "a=b", 0x700: "é" * 127 + "x"}


def publish(
    node: StoredNode,
    body: bytes,
    *queues: int,
    exchange: str = "trade",
    headers: Table | None = None,
    **properties: str | int,
) -> None:
    header = encode_properties(len(body), {"delivery_mode": 2} | properties, headers)
    envelope = Envelope(exchange, "eu.de", header, True, 0, None)
    for at in queues:
        message = Message(envelope, body, node.positions[at], None)
        node.positions[at] += 1
        node.queues[at].write(message, node.confirms, 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Orders 0-49, of exchange `trade` when even; the last five are large, and invoices as well."""
    path = tmp_path_factory.mktemp("store") / "data"
    node = StoredNode(path)
    node.metadata.transact(
        [Write(("queue", "/", name), QueueRecord(False, {}, at)) for at, name in ODD_NAMES.items()]
    )
    node.metadata.transact([Write(("vhost", "without queues"), VirtualHostRecord())])
    for at in ODD_NAMES:
        node.queues[at] = node.storage.open(at, durable=True)
        node.positions[at] = node.queues[at].first_position()
        publish(node, b"odd", at)
    for number in range(COUNT):
        large = number >= COUNT - 5
        body = b'{"n": %d}' % number + bytes(b" " * LARGE if large else b"")
        publish(
            node,
            body,
            *((ORDERS, INVOICES) if large else (ORDERS,)),
            exchange="trade" if number % 2 == 0 else "other",
            headers={"n": Field("I", number), "deep": Field("A", [Field("t", True)])},
            message_id=f"m{number}",
            timestamp=1_767_225_600 + number,
        )
        if number % 10 == 9:
            node.flush()
    node.flush()
    node.stop()
    return path


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> Iterator[None]:
    warren.spark_export.register(spark, pushdown=True)
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def load(spark: SparkSession, path: Path, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("warren").options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load(str(path))


def bodies(frame: DataFrame) -> list[bytes]:
    return [bytes(row.body) for row in frame.orderBy("seq").collect()]


def numbers(frame: DataFrame) -> list[int]:
    return [int(row.message_id[1:]) for row in frame.orderBy("seq").collect()]


def test_counts_of_queues(spark: SparkSession, store: Path) -> None:
    rows = load(spark, store).groupBy("queue").count().collect()
    assert {row.queue: row["count"] for row in rows} == {
        "orders": COUNT,
        "invoices": 5,
        **dict.fromkeys(ODD_NAMES.values(), 1),
    }


def test_every_column_comes(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, queue="orders", includeMetadata="true")
    rows = frame.orderBy("seq").collect()
    assert [row.message_id for row in rows] == [f"m{number}" for number in range(COUNT)]
    row = rows[3].asDict()
    assert row.pop("seq") == rows[0].seq + 3
    assert row.pop("enqueued_at").year >= 1970
    assert row.pop("offset") > 0 and len(row.pop("store_uuid")) == 32
    assert row == {
        "vhost": "/",
        "queue": "orders",
        "exchange": "other",
        "routing_key": "eu.de",
        "redelivered": False,
        "state": "ready",
        "delivery_mode": 2,
        "content_type": None,
        "content_encoding": None,
        "headers": {"n": "3", "deep": "[true]"},
        "priority": None,
        "correlation_id": None,
        "reply_to": None,
        "expiration": None,
        "message_id": "m3",
        "timestamp": datetime.fromtimestamp(1_767_225_603),
        "type": None,
        "user_id": None,
        "app_id": None,
        "cluster_id": None,
        "body": bytearray(b'{"n": 3}'),
        "_corrupt_record": None,
        "segment": 1,
        "generation": 0,
        "expires_at": None,
    }


def test_sql_and_variants(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, queues="orders", headers="variant", bodyFormat="json")
    frame.createOrReplaceTempView("orders")
    (row,) = spark.sql(
        "select sum(variant_get(headers, '$.n', 'int')) as a, sum(try_variant_get(body, '$.n',"
        " 'long')) as b, max(schema_of_variant(headers)) as c, max(to_json(headers)) as d,"
        " count(distinct exchange) as e from orders where timestamp >= timestamp'2026-01-01'"
    ).collect()
    total = sum(range(COUNT))
    assert (row.a, row.b, row.e) == (total, total, 2)
    assert row.c == "OBJECT<deep: ARRAY<BOOLEAN>, n: BIGINT>"
    assert row.d == '{"deep":[true],"n":9}'


def test_a_schema_of_the_user_is_what_is_read(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, "body binary, seq long", queue="invoices")
    assert frame.columns == ["body", "seq"]
    assert [body[:9] for body in bodies(frame)] == [b'{"n": %d}' % at for at in range(45, 50)]


def test_columns_and_texts(spark: SparkSession, store: Path) -> None:
    frame = load(
        spark,
        store,
        queue="orders",
        columns="message_id,body,headers",
        bodyFormat="string",
        headers="json",
    )
    row = frame.where("message_id = 'm7'").collect()[0]
    assert tuple(row) == ("m7", '{"n": 7}', '{"n":7,"deep":[true]}')


def test_odd_names_of_queues(spark: SparkSession, store: Path) -> None:
    rows = load(spark, store, queues=json.dumps([*ODD_NAMES.values()])).collect()
    assert {row.queue: bytes(row.body) for row in rows} == dict.fromkeys(ODD_NAMES.values(), b"odd")


def test_no_messages_and_no_queues(spark: SparkSession, store: Path) -> None:
    assert load(spark, store, queue="empty").collect() == []
    assert load(spark, store, queuePattern="no such .*").count() == 0
    assert load(spark, store, vhost="without queues").count() == 0


def test_offsets_and_times(spark: SparkSession, store: Path) -> None:
    first = load(spark, store, queue="orders").agg({"seq": "min"}).collect()[0][0]
    frame = load(
        spark,
        store,
        queue="orders",
        startingOffsets=json.dumps({"/": {"orders": first + 4}}),
        endingOffsets=json.dumps({"/": {"orders": first + 7}}),
    )
    assert numbers(frame) == [4, 5, 6]
    assert load(spark, store, queue="orders", startingTimestamp="2100-01-01").count() == 0
    assert load(spark, store, queue="orders", endingTimestamp="2100-01-01").count() == COUNT


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_filters_mean_the_same_pushed_down_or_not(
    spark: SparkSession, store: Path, pushdown: str
) -> None:
    frame = load(spark, store, filterPushdown=pushdown)
    first = frame.where("queue = 'orders'").agg({"seq": "min"}).collect()[0][0]
    assert numbers(frame.where(f"queue = 'orders' and seq > {first + 47}")) == [48, 49]
    assert numbers(frame.where(f"queue in ('orders', 'x') and seq <= {first}")) == [0]
    assert frame.where("exchange = 'other' and queue <=> 'orders'").count() == COUNT // 2
    assert frame.where("enqueued_at > timestamp'2100-01-01' or seq is null").count() == 0
    assert frame.where("enqueued_at < timestamp'2100-01-01'").count() == COUNT + 9
    assert frame.where("vhost = 'other'").count() == 0


def test_a_filter_counts_for_the_rows_it_is_applied_to_only(
    spark: SparkSession, store: Path
) -> None:
    """Spark keeps what was pushed down last for all scans of what `load` returned."""
    frame = load(spark, store)
    orders, invoices = (frame.where(f"queue = '{queue}'") for queue in ("orders", "invoices"))
    assert orders.union(invoices).count() == COUNT + 5
    assert invoices.join(orders, "message_id").count() == 5
    assert orders.where("exchange = 'none'").count() == 0
    assert orders.count() == COUNT
    assert frame.count() == COUNT + 9


def test_partitions(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, queue="orders", minPartitions="4")
    assert frame.rdd.getNumPartitions() >= 4
    assert sorted(numbers(frame)) == list(range(COUNT))


def test_a_dataframe_keeps_its_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    node = StoredNode(path)
    publish(node, b"before", ORDERS)
    node.flush()
    frame = load(spark, path)
    publish(node, b"after", ORDERS)
    node.flush()
    node.remove(ORDERS, 0, 1)
    node.flush()
    assert bodies(frame) == [b"before"] and bodies(frame.where("seq > 0")) == [b"before"]
    assert len(list_snapshots(path)) == 1
    assert [bytes(row.body) for row in load(spark, path).collect()] == [b"after"]
    node.stop()


def test_a_snapshot_can_be_named(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    with create(store, QueueSelector(), directory=tmp_path) as snapshot:
        named = {"snapshot": snapshot.id, "snapshotDirectory": str(tmp_path)}
        frame = load(spark, store, queue="invoices", **named)
        assert frame.count() == 5
    with pytest.raises(Exception, match="SnapshotGone"):
        frame.count()


def test_a_snapshot_has_the_lease_that_was_asked_for(spark: SparkSession, store: Path) -> None:
    before = {snapshot.id for snapshot in list_snapshots(store)}
    assert load(spark, store, queue="invoices", leaseSeconds="7200").count() == 5
    (snapshot,) = [one for one in list_snapshots(store) if one.id not in before]
    assert 7190 < (snapshot.expires_us - snapshot.created_us) / 1e6 < 7300
    snapshot.release()


@pytest.mark.slow
def test_a_snapshot_goes_with_the_application_that_took_it(
    spark: SparkSession, worker_python: str, tmp_path: Path
) -> None:
    """Java, and the process that called for Spark, may live on."""
    data = tmp_path / "data"
    node = StoredNode(data)
    publish(node, b"one", ORDERS)
    node.flush()
    node.stop()
    script = str(Path(__file__).parents[2] / "support" / "session_driver.py")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, script, str(data), str(tmp_path), worker_python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=tmp_path,
            text=True,
        )
    assert process.stdin is not None and process.stdout is not None
    with process:
        assert process.stdout.readline() == "1\n", (tmp_path / "log").read_text("utf-8")
        sweep(pins_directory(data), now_us())
        (snapshot,) = list_snapshots(data)
        assert snapshot.owner is not None
        # One that somebody has extended is wanted for its own sake.
        kept = create(data, QueueSelector(), owner=snapshot.owner).extend(60)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "stopped\n"
        deadline = time.monotonic() + 30
        while list_snapshots(data) != [kept]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            sweep(pins_directory(data), now_us())
        process.communicate("\n")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queu": "orders"}, "there is no option queu; did you mean queue"),
        ({"mode": "LENIENT"}, "option mode is 'LENIENT', and may be PERMISSIVE"),
        ({"columns": "bdy"}, "there is no column bdy; did you mean body"),
        ({"queue": "order"}, "near names: 'orders'"),
    ],
)
def test_mistakes_are_refused_at_once(
    spark: SparkSession, store: Path, options: dict[str, str], text: str
) -> None:
    with pytest.raises(Exception, match=r"OptionRefused|QueueUnknown") as caught:
        load(spark, store, **options)
    assert text in str(caught.value)


def spoiled(store: Path) -> Path:
    """Has one octet of message 5 changed."""
    (path,) = (store / "store" / "log").glob("*.rdq")
    data = path.read_bytes()
    assert data.count(b'{"n": 5}') == 1
    path.write_bytes(data.replace(b'{"n": 5}', b'{"n": 6}'))
    return path


def test_damage_in_each_mode(spark: SparkSession, tmp_path: Path) -> None:
    node = StoredNode(tmp_path / "data")
    for number in range(10):
        publish(node, b'{"n": %d}' % number, ORDERS)
    node.flush()
    # Of what is in the journal only, nobody knows that a damaged record was a message.
    node.checkpoint()
    node.stop()
    spoiled(tmp_path / "data")
    rows = load(spark, tmp_path / "data", columnNameOfCorruptRecord="broken").orderBy("seq")
    damaged = [row for row in rows.collect() if row.broken is not None]
    assert len(damaged) == 1 and bytes(damaged[0].broken).endswith(b'{"n": 6}')
    assert damaged[0].body is None and damaged[0].queue == "orders"
    dropped = load(spark, tmp_path / "data", mode="DROPMALFORMED")
    assert dropped.count() == 9 and "_corrupt_record" not in dropped.columns
    with pytest.raises(Exception, match="checksum of the record"):
        load(spark, tmp_path / "data", mode="FAILFAST").collect()


def test_spark_finds_the_source_itself(spark: SparkSession, store: Path) -> None:
    """In a session that nobody registered it in."""
    other = spark.newSession()
    assert other.read.format("warren").load(str(store)).where("queue = 'invoices'").count() == 5
    other.sql(f"create temporary view v using warren options(path '{store}', queue 'empty')")
    assert other.sql("select count(*) from v").collect()[0][0] == 0


def test_filters_are_pushed_down_where_an_option_says_so(spark: SparkSession, store: Path) -> None:
    """Also where the source was not registered; Spark has to be told, too."""
    other = spark.newSession()
    options = {"queue": "orders", "maxPartitionBytes": "1500"}
    first = load(other, store, **options).agg({"seq": "min"}).collect()[0][0]
    partitions = []
    for pushdown in ("false", "true"):
        other.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        few = load(other, store, **options, filterPushdown=pushdown).where(f"seq < {first + 2}")
        assert few.count() == 2
        partitions.append(few.rdd.getNumPartitions())
    assert partitions[0] > partitions[1]
    other.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        load(other, store, filterPushdown="true").count()


def test_several_stores_are_views(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    node = StoredNode(tmp_path / "other")
    publish(node, b"x", ORDERS)
    node.flush()
    node.stop()
    for view, path in (("one", store), ("two", tmp_path / "other")):
        spark.sql(
            f"create or replace temporary view {view} using warren"
            f" options (path '{path}', queue 'orders')"
        )
    both = "select count(*) from (select queue from one union all select queue from two)"
    assert spark.sql(both).collect()[0][0] == COUNT + 1
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"create table t using warren options (path '{store}')")


# Without Spark's help


@pytest.mark.parametrize("headers", ["map", "json", "variant", "none"])
@pytest.mark.parametrize("body", ["binary", "string", "json"])
def test_both_schemas_are_one(headers: str, body: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    options = parse_options(
        {"path": "x", "headers": headers, "bodyFormat": body, "includeMetadata": "true"}
    )
    chosen = columns(options)
    found = arrow_schema(chosen)
    assert found.equals(to_arrow_schema(spark_schema(chosen), timezone="UTC"), check_metadata=True)


MISSING = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pyarrow", "numpy", "pyspark"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import pyspark_warren
assert not hasattr(pyspark_warren, "DefaultSource")
"""


def test_where_parts_are_missing_other_sources_are_found_all_the_same() -> None:
    subprocess.run([sys.executable, "-P", "-c", MISSING], check=True, timeout=60)


def test_importing_the_house_imports_nothing_heavy() -> None:
    code = (
        "import sys, warren.spark_export; "
        "assert not {'pyspark', 'pyarrow', 'numpy', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)
