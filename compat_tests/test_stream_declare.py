"""Streams: declared, declared again, deleted, and what is refused (stream reference)."""

from typing import Any

import pytest

from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.streams import STREAM, described, fill, read, read_from, stream

AREA = "Streams: declaration"


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"auto_delete": True}, "auto-delete"),
        ({"auto_delete": True, "exclusive": True}, "auto-delete"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({}, "non-durable"),
    ],
    ids=str,
)
def test_property_it_cannot_have(
    ch: RawChannel, names: Names, vhost: str, fields: dict[str, Any], fault: str
) -> None:
    queue = names.new()
    told = f"invalid property '{fault}' for {described(queue, vhost)}"
    ch.refused(406, told, "queue.declare", queue=queue, arguments=STREAM, **fields)


def test_name_is_the_clients(ch: RawChannel) -> None:
    told = "Cannot declare a server-named queue for type rabbit_stream_queue"
    ch.refused(406, told, "queue.declare", queue="", durable=True, arguments=STREAM)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("x-max-length-bytes", -1, "{value_negative,-1}"),
        ("x-max-length-bytes", "a", '"expected integer, got longstr"'),
        ("x-max-age", "7d", "invalid_max_age"),
        ("x-max-age", "10", "invalid_max_age"),
        ("x-max-age", "0s", "invalid_max_age"),
        ("x-max-age", "1w", "invalid_max_age"),
        ("x-max-age", "1.5h", "invalid_max_age"),
        ("x-max-age", "1 D", "invalid_max_age"),
        ("x-max-age", 10, "{unacceptable_type,signedint}"),
        ("x-stream-max-segment-size-bytes", -1, "{value_negative,-1}"),
        ("x-initial-cluster-size", 0, "{value_zero,0}"),
        ("x-initial-cluster-size", -1, "{value_negative,-1}"),
        ("x-queue-leader-locator", "zzz", "invalid_queue_locator_arg"),
    ],
    ids=str,
)
def test_value_that_is_refused(
    ch: RawChannel, names: Names, vhost: str, key: str, value: Any, reason: str
) -> None:
    queue = names.new()
    told = f"invalid arg '{key}' for {described(queue, vhost)}: {reason}"
    arguments = {**STREAM, key: value}
    ch.refused(406, told, "queue.declare", queue=queue, durable=True, arguments=arguments)


def test_segment_that_is_too_large(ch: RawChannel, names: Names) -> None:
    told = "Exceeded max value for x-stream-max-segment-size-bytes"
    arguments = {**STREAM, "x-stream-max-segment-size-bytes": 3_000_000_001}
    ch.refused(406, told, "queue.declare", queue=names.new(), durable=True, arguments=arguments)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x-message-ttl", 1000),
        ("x-expires", 1000),
        ("x-dead-letter-exchange", "amq.direct"),
        ("x-dead-letter-routing-key", "k"),
        ("x-dead-letter-strategy", "at-least-once"),
        ("x-max-length", 10),
        ("x-overflow", "drop-head"),
        ("x-max-priority", 5),
        ("x-queue-mode", "lazy"),
        ("x-queue-version", 1),
        ("x-single-active-consumer", False),
        ("x-delivery-limit", 5),
        ("x-max-in-memory-length", 5),
        ("x-quorum-initial-group-size", 3),
        ("x-queue-master-locator", "client-local"),
    ],
    ids=str,
)
def test_argument_of_other_types(
    ch: RawChannel, names: Names, vhost: str, key: str, value: Any
) -> None:
    queue = names.new()
    told = f"invalid arg '{key}' for {described(queue, vhost)} of queue type rabbit_stream_queue"
    arguments = {**STREAM, key: value}
    ch.refused(406, told, "queue.declare", queue=queue, durable=True, arguments=arguments)


@pytest.mark.parametrize("period", ["1Y", "1M", "1D", "1h", "1m", "1s"])
def test_periods(ch: RawChannel, names: Names, period: str) -> None:
    stream(ch, names, x_max_age=period)


@pytest.mark.parametrize(
    ("first", "second", "key", "told"),
    [
        ({"x-max-age": "1D"}, {"x-max-age": "2D"}, "x-max-age", "'2D' but current is '1D'"),
        (
            {"x-max-length-bytes": 100000},
            {},
            "x-max-length-bytes",
            "none but current is the value '100000' of type 'signedint'",
        ),
        (
            {},
            {"x-max-length-bytes": 1000},
            "x-max-length-bytes",
            "the value '1000' of type 'signedint' but current is none",
        ),
        ({}, {"x-queue-type": "quorum"}, "x-queue-type", "'quorum' but current is 'stream'"),
    ],
    ids=str,
)
def test_declared_otherwise(
    ch: RawChannel,
    names: Names,
    vhost: str,
    first: dict[str, Any],
    second: dict[str, Any],
    key: str,
    told: str,
) -> None:
    queue = names.new()
    ch.declare(queue, durable=True, arguments={**STREAM, **first})
    ch.declare(queue, durable=True, arguments={**STREAM, **first, "x-foo": 1})
    told = f"inequivalent arg '{key}' for {described(queue, vhost)}: received {told}"
    arguments = {**STREAM, **second}
    ch.refused(406, told, "queue.declare", queue=queue, durable=True, arguments=arguments)


def test_get(client: RawClient, ch: RawChannel, names: Names, vhost: str) -> None:
    queue = stream(ch, names)
    ch.send("basic.get", queue=queue)
    told = f"basic.get not supported by stream queues {described(queue, vhost)}"
    client.expect_close(540, told)


def test_purge(client: RawClient, ch: RawChannel, names: Names, vhost: str) -> None:
    queue = stream(ch, names)
    ch.send("queue.purge", queue=queue)
    told = f"queue.purge not supported by stream queues {described(queue, vhost)}"
    client.expect_close(540, told)


def test_deleted_on_no_condition_and_begins_anew(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 3)
    tag = read_from(ch, queue, "first")
    read(ch, 3)
    other = ch.client.channel()
    gone = other.call("queue.delete", queue=queue, if_unused=True, if_empty=True)
    assert gone["message_count"] == 0
    assert ch.expect("basic.cancel")["consumer_tag"] == tag
    ch.declare(queue, durable=True, arguments=STREAM)
    fill(ch, queue, 1, first=7)
    read_from(ch, queue, "first")
    delivery = ch.delivery(b"7")
    assert delivery.properties["headers"]["x-stream-offset"] == 0
