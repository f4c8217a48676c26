"""Quorum queues: declared, declared again, purged, deleted (quorum queue reference 1 and 5)."""

from typing import Any

import pytest

from warren.compat_tests.names import Names
from warren.compat_tests.quorum import QUORUM, contents, fill, quorum_queue, take
from warren.compat_tests.raw_client import RawChannel, RawClient

AREA = "Quorum queues: declaration"


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
    told = f"invalid property '{fault}' for queue '{queue}' in vhost '{vhost}'"
    ch.refused(406, told, "queue.declare", queue=queue, arguments=QUORUM, **fields)


@pytest.mark.parametrize("durable", [True, False])
def test_name_is_the_clients(ch: RawChannel, durable: bool) -> None:
    told = "Cannot declare a server-named queue for type rabbit_quorum_queue"
    ch.refused(406, told, "queue.declare", queue="", durable=durable, arguments=QUORUM)


def test_unknown_type(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = names.new()
    told = (
        f"invalid arg 'x-queue-type' for queue '{queue}' in vhost '{vhost}': "
        "\"unsupported queue type 'zzz'\""
    )
    arguments = {"x-queue-type": "zzz"}
    ch.refused(406, told, "queue.declare", queue=queue, durable=True, arguments=arguments)


@pytest.mark.parametrize(
    ("key", "value", "detail"),
    [
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", "a", '"expected integer, got longstr"'),
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length", "a", '"expected integer, got longstr"'),
        ("x-max-length-bytes", -5, "{value_negative,-5}"),
        ("x-max-in-memory-length", -1, "{value_negative,-1}"),
        ("x-max-in-memory-bytes", "a", '"expected integer, got longstr"'),
        ("x-expires", 0, "{value_zero,0}"),
        ("x-overflow", "spill", "invalid_overflow"),
        ("x-dead-letter-strategy", "never", "invalid_dlx_strategy"),
        ("x-dead-letter-strategy", 4, "{unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
        ("x-quorum-initial-group-size", 0, "{value_zero,0}"),
        ("x-quorum-initial-group-size", "a", '"expected integer, got longstr"'),
        ("x-queue-leader-locator", "far", "invalid_queue_locator_arg"),
        ("x-queue-leader-locator", 3, "{unacceptable_type,signedint}"),
        ("x-single-active-consumer", "yes", "{unacceptable_type,longstr}"),
    ],
    ids=str,
)
def test_value_that_is_not_valid(
    ch: RawChannel, names: Names, vhost: str, key: str, value: Any, detail: str
) -> None:
    queue = names.new()
    told = f"invalid arg '{key}' for queue '{queue}' in vhost '{vhost}': {detail}"
    arguments = {**QUORUM, key: value}
    ch.refused(406, told, "queue.declare", queue=queue, durable=True, arguments=arguments)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x-max-priority", 3),
        ("x-queue-mode", "lazy"),
        ("x-queue-mode", "zzz"),
        ("x-queue-version", 2),
        ("x-queue-master-locator", "random"),
        ("x-max-age", "1D"),
        ("x-initial-cluster-size", 1),
        ("x-stream-max-segment-size-bytes", 5),
    ],
)
def test_argument_of_other_types(
    ch: RawChannel, names: Names, vhost: str, key: str, value: Any
) -> None:
    queue = names.new()
    told = (
        f"invalid arg '{key}' for queue '{queue}' in vhost '{vhost}'"
        " of queue type rabbit_quorum_queue"
    )
    arguments = {**QUORUM, key: value}
    ch.refused(406, told, "queue.declare", queue=queue, durable=True, arguments=arguments)


def test_value_is_looked_at_before_what_it_cannot_have(
    ch: RawChannel, names: Names, vhost: str
) -> None:
    queue = names.new()
    told = (
        f"invalid arg 'x-max-length' for queue '{queue}' in vhost '{vhost}': {{value_negative,-1}}"
    )
    arguments = {**QUORUM, "x-max-length": -1, "x-max-priority": 3}
    ch.refused(406, told, "queue.declare", queue=queue, auto_delete=True, arguments=arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-delivery-limit": -1},
        {"x-delivery-limit": "many"},
        {"x-overflow": "reject-publish-dlx"},
        {"x-max-in-memory-length": 3, "x-max-in-memory-bytes": 3},
        {"x-dead-letter-exchange": "cf-nothing", "x-dead-letter-strategy": "at-least-once"},
        {"x-quorum-initial-group-size": 5},
        {"x-queue-leader-locator": "random"},
        {"x-queue-leader-locator": "least-leaders"},
        {"x-single-active-consumer": True},
        {"x-foo": 1, "x-ha-policy": "all"},
    ],
    ids=str,
)
def test_argument_it_can_have(ch: RawChannel, names: Names, arguments: dict[str, Any]) -> None:
    queue = names.new()
    ch.declare(queue, durable=True, arguments={**QUORUM, **arguments})
    ch.declare(queue, durable=True, arguments={**QUORUM, **arguments})


def inequivalent(key: str, queue: str, vhost: str, received: str, current: str) -> str:
    return (
        f"inequivalent arg '{key}' for queue '{queue}' in vhost '{vhost}': "
        f"received {received} but current is {current}"
    )


def test_declared_again_as_another_type(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = quorum_queue(ch, names)
    told = inequivalent("x-queue-type", queue, vhost, "'classic'", "'quorum'")
    classic = {"x-queue-type": "classic"}
    ch.refused(406, told, "queue.declare", queue=queue, durable=True, arguments=classic)
    value = "the value 'quorum' of type 'longstr'"
    told = inequivalent("x-queue-type", queue, vhost, "none", value)
    ch.refused(406, told, "queue.declare", queue=queue, durable=True)
    untyped = names.new()
    ch.declare(untyped, durable=True)
    told = inequivalent("x-queue-type", untyped, vhost, value, "none")
    ch.refused(406, told, "queue.declare", queue=untyped, durable=True, arguments=QUORUM)


@pytest.mark.parametrize(
    ("key", "current", "shown"),
    [("x-queue-type", "quorum", "'quorum'"), ("x-delivery-limit", 3, "'3'")],
)
def test_declared_again_with_void(
    ch: RawChannel, names: Names, vhost: str, key: str, current: Any, shown: str
) -> None:
    queue = names.new()
    arguments = {**QUORUM, key: current}
    ch.declare(queue, durable=True, arguments=arguments)
    told = inequivalent(key, queue, vhost, "none", shown)
    ch.refused(
        406, told, "queue.declare", queue=queue, durable=True, arguments={**arguments, key: None}
    )


def test_durability_is_compared_before_arguments(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = quorum_queue(ch, names)
    told = inequivalent("durable", queue, vhost, "'false'", "'true'")
    ch.refused(406, told, "queue.declare", queue=queue, arguments={"x-max-length": 1})
    told = inequivalent("auto_delete", queue, vhost, "'true'", "'false'")
    ch.refused(406, told, "queue.declare", queue=queue, durable=True, auto_delete=True)


def test_declared_again_as_exclusive(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = quorum_queue(ch, names)
    told = (
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. It could be "
        "originally declared on another connection or the exclusive property value does not match "
        "that of the original declaration."
    )
    fields = {"durable": True, "exclusive": True, "arguments": QUORUM}
    ch.refused(405, told, "queue.declare", queue=queue, **fields)


@pytest.mark.parametrize(
    ("key", "value", "received"),
    [
        ("x-delivery-limit", 3, "the value '3' of type 'signedint'"),
        ("x-max-length", 3, "the value '3' of type 'signedint'"),
        ("x-quorum-initial-group-size", 1, "the value '1' of type 'signedint'"),
        ("x-queue-leader-locator", "balanced", "the value 'balanced' of type 'longstr'"),
    ],
)
def test_declared_again_with_an_argument_more(
    ch: RawChannel, names: Names, vhost: str, key: str, value: Any, received: str
) -> None:
    queue = quorum_queue(ch, names)
    told = inequivalent(key, queue, vhost, received, "none")
    arguments = {**QUORUM, key: value}
    ch.refused(406, told, "queue.declare", queue=queue, durable=True, arguments=arguments)


@pytest.mark.parametrize(("key", "value"), [("x-foo", 1), ("x-max-priority", 3)])
def test_declared_again_with_an_argument_nobody_compares(
    ch: RawChannel, names: Names, key: str, value: Any
) -> None:
    queue = quorum_queue(ch, names)
    ch.declare(queue, durable=True, arguments={**QUORUM, key: value})


def test_purge_takes_what_is_ready(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 3)
    (tag,) = take(ch, queue, 1)
    assert ch.call("queue.purge", queue=queue)["message_count"] == 2
    assert ch.ready(queue) == 0
    ch.nack(tag)
    assert contents(ch, queue, 1) == [b"0"]


def test_purge_takes_what_was_returned(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names, x_delivery_limit=5)
    fill(ch, queue, 2)
    (tag,) = take(ch, queue, 1)
    ch.nack(tag)
    ch.becomes_ready(queue, 2)
    assert ch.call("queue.purge", queue=queue)["message_count"] == 2
    assert ch.ready(queue) == 0


def test_delete_counts_what_is_ready(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 3)
    take(ch, queue, 1)
    assert ch.call("queue.delete", queue=queue)["message_count"] == 2
    assert not ch.queue_exists(queue)
    assert ch.call("queue.delete", queue=queue)["message_count"] == 0


@pytest.mark.parametrize("condition", ["if-unused", "if-empty"])
def test_delete_on_a_condition(
    client: RawClient, ch: RawChannel, names: Names, vhost: str, condition: str
) -> None:
    flag = {condition.replace("-", "_"): True}
    ch.call("queue.delete", queue=names.new(), **flag)
    queue = quorum_queue(ch, names)
    ch.send("queue.delete", queue=queue, **flag)
    client.expect_close(
        540,
        f"cannot delete queue '{queue}' in vhost '{vhost}'. queue.delete operations with "
        f"{condition} flag set are not supported by quorum queues",
    )
