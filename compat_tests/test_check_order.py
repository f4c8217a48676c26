"""The fault that the broker reports if there are several: reference 2 and 4."""

from typing import Any

import pytest

from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Order of checks"

REPLY_TO = "amq.rabbitmq.reply-to"

# The order in which RabbitMQ compares the arguments of two declarations.
COMPARED: dict[str, dict[str, Any]] = {
    "classic": {
        "x-expires": 60000,
        "x-message-ttl": 1,
        "x-dead-letter-exchange": "x",
        "x-dead-letter-routing-key": "k",
        "x-max-length": 1,
        "x-max-length-bytes": 1,
        "x-max-priority": 1,
        "x-overflow": "drop-head",
        "x-queue-mode": "lazy",
        "x-queue-version": 1,
        "x-single-active-consumer": True,
        "x-queue-type": "quorum",
        "x-queue-master-locator": "random",
    },
    "quorum": {
        "x-dead-letter-exchange": "x",
        "x-dead-letter-routing-key": "k",
        "x-dead-letter-strategy": "at-most-once",
        "x-expires": 60000,
        "x-max-length": 1,
        "x-max-length-bytes": 1,
        "x-max-in-memory-length": 1,
        "x-max-in-memory-bytes": 1,
        "x-overflow": "drop-head",
        "x-single-active-consumer": True,
        "x-queue-type": "stream",
        "x-quorum-initial-group-size": 1,
        "x-delivery-limit": 1,
        "x-message-ttl": 1,
        "x-queue-leader-locator": "balanced",
    },
    "stream": {
        "x-max-length-bytes": 1,
        "x-queue-type": "classic",
        "x-max-age": "1h",
        "x-stream-max-segment-size-bytes": 1000,
        "x-initial-cluster-size": 1,
        "x-queue-leader-locator": "balanced",
    },
}


@pytest.mark.parametrize("kind", COMPARED)
def test_arguments_are_compared_in_a_fixed_order(ch: RawChannel, names: Names, kind: str) -> None:
    queue = names.new()
    ch.declare(queue, durable=True, arguments={"x-queue-type": kind})
    different = dict(reversed(COMPARED[kind].items()))
    for name in COMPARED[kind]:
        ch.send("queue.declare", queue=queue, durable=True, arguments=different)
        close = ch.expect("channel.close")
        assert f"inequivalent arg '{name}' for queue" in close["reply_text"]
        ch.send("channel.close-ok")
        ch.call("channel.open")
        del different[name]
        different.setdefault("x-queue-type", kind)


def test_arguments_of_other_queue_types_are_refused_in_the_order_given(
    ch: RawChannel, names: Names, vhost: str
) -> None:
    queue = names.new()
    for order in (("x-max-age", "x-initial-cluster-size"), ("x-initial-cluster-size", "x-max-age")):
        ch.refused(
            406,
            f"invalid arg '{order[0]}' for queue '{queue}' in vhost '{vhost}' "
            "of queue type rabbit_classic_queue",
            "queue.declare",
            queue=queue,
            arguments=dict.fromkeys(order, 1),
        )


@pytest.mark.parametrize(
    ("arguments", "named", "reason"),
    [
        (
            {"x-cancel-on-ha-failover": 1, "x-stream-offset": 1, "x-priority": "1"},
            "x-priority",
            ': "expected integer, got longstr"',
        ),
        (
            {"x-stream-offset": 1, "x-cancel-on-ha-failover": 1},
            "x-cancel-on-ha-failover",
            ": {unacceptable_type,signedint}",
        ),
        (
            {"x-stream-offset": 1, "x-cancel-on-ha-failover": True, "x-priority": 1},
            "x-stream-offset",
            " of queue type rabbit_classic_queue",
        ),
    ],
    ids=["priority", "failover", "offset"],
)
def test_values_of_consumer_arguments_are_looked_at_first(
    ch: RawChannel, vhost: str, arguments: dict[str, Any], named: str, reason: str
) -> None:
    queue = ch.own_queue()
    ch.refused(
        406,
        f"invalid arg '{named}' for queue '{queue}' in vhost '{vhost}'{reason}",
        "basic.consume",
        queue=queue,
        arguments=arguments,
    )


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_bad_copies_are_reported_before_a_bad_delivery_mode(ch: RawChannel, header: str) -> None:
    ch.publish(b"m", "nowhere", headers={header: 1}, delivery_mode=3)
    ch.expect_close(
        406,
        f'invalid message: {{unacceptable_type_in_header,"{header}",signedint}}',
        offender=(60, 40),
    )


def test_missing_queue_name_is_reported_before_a_tag_in_use(ch: RawChannel) -> None:
    tag = ch.consume(ch.own_queue())
    other = ch.client.channel()
    other.refused(404, "no previously declared queue", "basic.consume", consumer_tag=tag)


def test_reply_consumer_that_acknowledges_is_reported_before_a_second_one(ch: RawChannel) -> None:
    ch.consume(REPLY_TO, no_ack=True)
    ch.refused(406, "reply consumer cannot acknowledge", "basic.consume", queue=REPLY_TO)
