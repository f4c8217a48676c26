from __future__ import annotations

from pathlib import Path

import pytest

from warren.spark_export.decode.schema import all_columns, columns, columns_of, spark_schema
from warren.spark_export.errors import OptionRefused
from warren.spark_export.snapshot.options import (
    IN_QUEUE,
    BodyFormat,
    Headers,
    Include,
    Mode,
    Offsets,
    ReadOptions,
    parse_options,
)


def test_every_option_has_its_field() -> None:
    options = parse_options(
        {
            "PATH": "/data",
            "vHost": "/",
            "queues": "orders, invoices",
            "startingOffsets": '{"/": {"orders": 17, "a=b": "latest"}}',
            "endingOffsets": "latest",
            "startingTimestamp": "2026-01-01T01:00:00.5+01:00",
            "endingTimestamp": "1767225600500",
            "columns": '["seq", "body"]',
            "headers": "VARIANT",
            "bodyformat": "string",
            "include": "ready",
            "mode": "failfast",
            "columnNameOfCorruptRecord": "bad",
            "failOnDataLoss": "false",
            "maxPartitionBytes": "64MB",
            "minPartitions": "3",
            "includeMetadata": "TRUE",
            "snapshot": "s1",
            "snapshotDirectory": "/snapshots",
            "filterPushdown": "false",
            "maxOffsetsPerTrigger": "1000",
            "maxBytesPerTrigger": "1g",
            "cursor": "archive",
            "cursorMaxBytes": "10g",
        }
    )
    assert options == ReadOptions(
        path="/data",
        vhost="/",
        queues=("orders", "invoices"),
        starting_offsets=Offsets("earliest", ((("/", "orders"), 17), (("/", "a=b"), "latest"))),
        ending_offsets=Offsets("latest"),
        starting_timestamp_us=1_767_225_600_500_000,
        ending_timestamp_us=1_767_225_600_500_000,
        columns=("seq", "body"),
        headers=Headers.VARIANT,
        body_format=BodyFormat.STRING,
        include=frozenset({Include.READY}),
        mode=Mode.FAILFAST,
        corrupt_column="bad",
        fail_on_data_loss=False,
        max_partition_bytes=64 << 20,
        min_partitions=3,
        include_metadata=True,
        snapshot="s1",
        snapshot_directory="/snapshots",
        filter_pushdown=False,
        max_offsets_per_trigger=1000,
        max_bytes_per_trigger=1 << 30,
        cursor="archive",
        cursor_max_bytes=10 << 30,
    )


def test_without_options_everything_is_read() -> None:
    options = parse_options({})
    assert options.include == IN_QUEUE and options.queues is None
    assert options.mode is Mode.PERMISSIVE and options.fail_on_data_loss
    assert options.starting_offsets.of("/", "x") == "earliest"
    assert options.ending_offsets.of("/", "x") == "latest"
    with pytest.raises(OptionRefused, match="path is missing"):
        _ = options.data_directory


def test_offsets_of_queues() -> None:
    offsets = parse_options({"startingOffsets": '{"v": {"0123": 5}}'}).starting_offsets
    assert offsets.of("v", "0123") == 5
    assert offsets.of("/", "0123") == "earliest"


@pytest.mark.parametrize(
    ("queues", "expected"),
    [('["a,b", "["]', ("a,b", "[")), ("a", ("a",)), ("b,a,b", ("b", "a"))],
)
def test_lists_of_names(queues: str, expected: tuple[str, ...]) -> None:
    assert parse_options({"queues": queues}).queues == expected


def test_one_queue_is_taken_as_it_is_written() -> None:
    assert parse_options({"queue": '["a", b]'}).queues == ('["a", b]',)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"quue": "x"}, "there is no option quue; did you mean queue"),
        ({"failondataloss": "maybe"}, "option failOnDataLoss is 'maybe', and may be true, false"),
        ({"xyzzy": "1"}, "there is no option xyzzy; there are path, vhost"),
        ({"queue": "a", "queues": "b"}, "options queue and queues exclude each other"),
        ({"queue": "a", "queuePattern": "b"}, "options queue and queuePattern exclude"),
        ({"queuePattern": "("}, "a regular expression"),
        ({"queuePattern": r"\p{L}"}, "a regular expression"),
        ({"headers": "list"}, "may be map, json, variant, none"),
        ({"include": "ready,dead"}, "may be ready, unacked"),
        ({"maxPartitionBytes": "0"}, "a number of bytes"),
        ({"minPartitions": "-1"}, "a whole number from 1 on"),
        ({"startingOffsets": "17"}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"/": {"a": -1}}'}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"/": {"a": true}}'}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"/":' * 99999}, "earliest, latest, or JSON"),
        ({"queues": "[" * 99999}, "a JSON list of names"),
        ({"startingTimestamp": "yesterday"}, "a time such as"),
        ({"startingTimestamp": "2026"}, "looks like seconds, a year or a day"),
        ({"endingTimestamp": "1767225600"}, "looks like seconds, a year or a day"),
        ({"startingTimestamp": "1767225600001", "endingTimestamp": "1767225600000"}, "later than"),
        ({"columns": ""}, "names with commas"),
        ({"snapshot": ""}, "not empty"),
        ({"paths": "[]"}, "one path"),
        ({"path": "s3a://bucket/x"}, "begins with s3a://, which cannot be read from"),
        ({"path": "hdfs://name-node/x"}, "a node: warren://, http:// or https://"),
        ({"path": "amqp://user:secret@broker"}, "begins with amqp://, which"),
        ({"path": "warren://node:0"}, "warren://node:0 has no port as it should be"),
        ({"path": "file://other/var/lib/warren"}, "a file of host other"),
        ({"path": "file:///var/lib/warren#2"}, "# as %23"),
        ({"snapshotDirectory": "s3a://bucket/x"}, "not for a URL"),
        ({"leaseSeconds": "0"}, "a whole number from 1 on"),
        ({"leaseSeconds": "400000000"}, "leaseSeconds may be 316224000 at most"),
        ({"leaseSeconds": "60", "snapshot": "s"}, "leaseSeconds is for a snapshot that is taken"),
        ({"leaseSeconds": "60", "cursor": "c"}, "leaseSeconds is for a stream without a cursor"),
    ],
)
def test_mistakes_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionRefused) as refusal:
        parse_options(given)
    assert text in str(refusal.value)


# Columns


def names(**given: str) -> list[str]:
    return [column.name for column in columns(parse_options(given))]


def test_columns_follow_the_options() -> None:
    every = names()
    assert every[:4] == ["vhost", "queue", "seq", "enqueued_at"]
    assert every[-2:] == ["body", "_corrupt_record"] and len(every) == 24
    assert "headers" not in names(headers="none")
    assert "_corrupt_record" not in names(mode="FAILFAST")
    assert names(includeMetadata="true", columnNameOfCorruptRecord="bad")[-6:] == [
        "segment",
        "generation",
        "offset",
        "store_uuid",
        "expires_at",
        "bad",
    ]
    assert names(columns="body,seq") == ["body", "seq"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"columns": "boddy"}, "there is no column boddy; did you mean body"),
        ({"columns": "offset"}, "includeMetadata"),
        ({"columns": "headers", "headers": "none"}, "there is no column headers"),
        ({"columnNameOfCorruptRecord": "body"}, "another column of that name"),
        ({"columnNameOfCorruptRecord": "SEQ"}, "another column of that name"),
    ],
)
def test_columns_that_are_not_there(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionRefused) as refusal:
        names(**given)
    assert text in str(refusal.value)


def test_a_schema_may_be_a_part_in_any_order() -> None:
    options = parse_options({"headers": "json"})
    every = {column.name: column for column in all_columns(options)}
    chosen = (every["headers"], every["seq"]._replace(nullable=False), every["body"])
    assert columns_of(spark_schema(chosen), options) == chosen


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("seq", "string", "column seq is bigint, not string"),
        ("headers", "string", "see the option headers"),
        ("body", "string", "see the option bodyFormat"),
        ("nothing", "string", "there is no column nothing"),
    ],
)
def test_a_schema_of_other_types_is_refused(name: str, kind: str, text: str) -> None:
    from pyspark.sql.types import StructType

    with pytest.raises(OptionRefused) as refusal:
        columns_of(StructType().add(name, kind), parse_options({}))
    assert text in str(refusal.value)


def test_a_column_is_named_once_in_a_schema() -> None:
    from pyspark.sql.types import StructType

    schema = StructType().add("queue", "string").add("queue", "string")
    with pytest.raises(OptionRefused, match="column queue is named twice"):
        columns_of(schema, parse_options({}))


def test_a_column_that_may_be_null_is_not_promised() -> None:
    from pyspark.sql.types import StringType, StructType

    schema = StructType().add("exchange", StringType(), nullable=False)
    with pytest.raises(OptionRefused, match="may be null"):
        columns_of(schema, parse_options({}))


def test_a_path_may_be_a_url_of_a_file() -> None:
    urls = ("file:/var/lib/a%20b", "file:///var/lib/a%20b", "file://localhost/var/lib/a%20b")
    for text in ("/var/lib/a b", *urls):
        assert parse_options({"path": text}).data_directory == Path("/var/lib/a b")
    assert parse_options({"path": "/a://b"}).data_directory == Path("/a:/b")


def test_a_pattern_may_be_any_that_policies_have() -> None:
    for pattern in (r"\Qa.b\E", r"eu\z", "a(?i)b", "[[:alpha:]]+", "(?<name>a)"):
        assert parse_options({"queuePattern": pattern}).queue_pattern == pattern


def test_the_beginning_of_time_is_a_time() -> None:
    assert parse_options({"startingTimestamp": "0"}).starting_timestamp_us == 0
