"""DataFrames, batch and streaming, written by Spark to a real broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from broker_channel import drain, open_channel
from pika.adapters.blocking_connection import BlockingChannel

import warren.spark_export
from warren import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    warren.spark_export.register(spark, pushdown=False)
    return spark


@pytest.fixture
def channel(warren_broker: Broker) -> Iterator[BlockingChannel]:
    with open_channel(warren_broker) as channel:
        yield channel


def write(data: DataFrame, broker: Broker, **options: str) -> None:
    writer = data.write.format("warren").mode("append").option("url", broker.url)
    default = {} if "exchange" in data.columns else {"exchange": ""}
    writer.options(**{**default, **options}).save()


def test_every_property_and_header_arrives_as_it_was(
    session: SparkSession, warren_broker: Broker, channel: BlockingChannel
) -> None:
    channel.exchange_declare("trade", "topic")
    channel.queue_declare("q")
    channel.queue_bind("q", "trade", "eu.*")
    rows = session.sql(
        """
        select 'trade' exchange, 'eu.de' routing_key, 'text/plain' content_type,
               'gzip' content_encoding, cast(1 as smallint) delivery_mode, 9 priority,
               'corr' correlation_id, 'back' reply_to, '60000' expiration, 'my-id' message_id,
               timestamp '2026-01-02 03:04:05.6' timestamp, 'order' type, 'guest' user_id,
               'shop' app_id, 'one' cluster_id, binary('body') body,
               named_struct('t', true, 'b', 1Y, 's', 2S, 'I', 3, 'l', 4L, 'f', float(1),
                   'd', 2D, 'D', 1.25, 'S', 'é', 'x', X'FF', 'T', timestamp '2026-01-01 00:00:00',
                   'A', array('a', 'b'), 'F', map('k', 'v'), 'V', array(cast(null as string)))
                 as headers
        """
    )
    write(rows, warren_broker)
    ((method, properties, body),) = drain(channel, "q")
    assert (method.exchange, method.routing_key, body) == ("trade", "eu.de", b"body")
    headers = properties.headers
    assert {name: getattr(properties, name) for name in vars(properties)} == {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "headers": headers,
        "delivery_mode": 1,
        "priority": 9,
        "correlation_id": "corr",
        "reply_to": "back",
        "expiration": "60000",
        "message_id": "my-id",
        "timestamp": 1767323045,
        "type": "order",
        "user_id": "guest",
        "app_id": "shop",
        "cluster_id": "one",
    }
    # Which letter each has is tested where frames are; pika reads f and d as whole numbers.
    assert {name: str(value) for name, value in headers.items()} == {
        "t": "True",
        "b": "1",
        "s": "2",
        "I": "3",
        "l": "4",
        "f": "1",
        "d": "2",
        "D": "1.25",
        "S": "é",
        "x": r"b'\xff'",
        "T": "2026-01-01 00:00:00+00:00",
        "A": "['a', 'b']",
        "F": "{'k': 'v'}",
        "V": "[None]",
    }


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("map('a', '1', 'n', cast(null as string))", {"a": "1", "n": None}),
        ('\'{"a": 1, "o": {"k": [true]}}\'', {"a": 1, "o": {"k": [True]}}),
        ('parse_json(\'{"a": 1, "o": {"k": [true]}}\')', {"a": 1, "o": {"k": [True]}}),
        ("cast(null as map<string, string>)", None),
    ],
)
def test_headers_are_maps_json_or_variants(
    session: SparkSession,
    warren_broker: Broker,
    channel: BlockingChannel,
    headers: str,
    expected: Any,
) -> None:
    channel.queue_declare("q")
    write(session.sql(f"select 'text' body, {headers} headers"), warren_broker, routingKey="q")
    ((_, properties, body),) = drain(channel, "q")
    assert (properties.headers, body) == (expected, b"text")


def test_all_partitions_are_published_with_ids_that_a_second_run_repeats(
    session: SparkSession, warren_broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("q")
    data = session.range(0, 2000, numPartitions=4).selectExpr("string(id) body")
    write(data, warren_broker, routingKey="q", jobId="nightly")
    first = [(one.message_id, body) for _, one, body in drain(channel, "q")]
    write(data, warren_broker, routingKey="q", jobId="nightly")
    second = [(one.message_id, body) for _, one, body in drain(channel, "q")]
    assert {int(body) for _, body in first} == set(range(2000))
    assert len(set(dict(first))) == 2000
    assert sorted(first) == sorted(second)
    assert dict(first)["nightly-0-3-499"] == b"1999"


def test_a_returned_message_fails_the_job_with_the_reason(
    session: SparkSession, warren_broker: Broker
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"PublishFailed.*row 0 was returned: 312 NO_ROUTE"):
        write(session.sql("select 'x' body"), warren_broker, routingKey="nobody")


def test_what_is_refused_is_refused_on_the_driver(
    session: SparkSession, warren_broker: Broker
) -> None:
    from pyspark.errors import PySparkException

    data = session.sql("select 'x' body, 1 colour")
    with pytest.raises(PySparkException, match=r"OptionRefused.*no part of a message.*colour"):
        write(data, warren_broker, routingKey="q")


class Stream:
    """A query that publishes what is in the files of a directory, one file in each batch."""

    def __init__(self, session: SparkSession, broker: Broker, directory: Path) -> None:
        self._session = session
        self._broker = broker
        self._checkpoint = directory / "checkpoint"
        self._files = directory / "files"
        self._files.mkdir()

    def add_file(self, name: str, bodies: Iterable[int]) -> None:
        text = "".join(f"{body}\n" for body in bodies)
        (self._files / name).write_text(text, encoding="ascii")

    def run(self) -> str:
        """Publish all there is; returns the id of the query."""
        data = self._session.readStream.option("maxFilesPerTrigger", "1").text(str(self._files))
        query = (
            data.withColumnRenamed("value", "body")
            .writeStream.format("warren")
            .option("url", self._broker.url)
            .option("exchange", "")
            .option("routingKey", "q")
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return str(query.id)

    def forget_last_batch(self) -> None:
        """As if the driver had died when the last batch was published and not yet recorded."""
        commits = self._checkpoint / "commits"
        last = max(
            (one for one in commits.iterdir() if one.name.isdigit()), key=lambda one: int(one.name)
        )
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_stream_that_starts_again_publishes_the_same_ids_and_misses_none(
    session: SparkSession, warren_broker: Broker, channel: BlockingChannel, tmp_path: Path
) -> None:
    channel.queue_declare("q")
    stream = Stream(session, warren_broker, tmp_path)
    stream.add_file("a", range(300))
    query_id = stream.run()
    stream.forget_last_batch()
    stream.add_file("b", range(300, 450))
    assert stream.run() == query_id

    found = [(one.message_id, int(body)) for _, one, body in drain(channel, "q")]
    counts = Counter(found)
    assert {body for _, body in counts} == set(range(450))
    # An id stands for one message, whenever it was published.
    assert len({identity for identity, _ in counts}) == len(counts) == 450
    assert {body for (_, body), times in counts.items() if times == 2} == set(range(300))
    assert set(counts.values()) == {1, 2}
    assert {identity[: identity.rindex("-")] for identity, _ in counts} == {
        f"{query_id}-{batch}-0" for batch in range(2)
    }


def test_a_returned_message_fails_the_stream(
    session: SparkSession, warren_broker: Broker, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    stream = Stream(session, warren_broker, tmp_path)
    stream.add_file("a", range(3))
    with pytest.raises(StreamingQueryException, match=r"row 0 was returned: 312 NO_ROUTE"):
        stream.run()
