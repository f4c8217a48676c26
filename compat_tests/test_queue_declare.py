"""Declaring queues, equivalence and the arguments of classic queues: reference 4.1 and 4.2."""

import re
from typing import Any

import pytest

from warren.compat_tests.factory import Raw
from warren.compat_tests.field_table import Typed
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Queues: declaration"

TEN_YEARS_MS = 315_360_000_000


def locked(queue: str, vhost: str) -> str:
    return (
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. "
        "It could be originally declared on another connection or the exclusive property value "
        "does not match that of the original declaration."
    )


def test_server_named_queue_gets_a_name_of_its_own(ch: RawChannel) -> None:
    one, two = ch.own_queue(), ch.own_queue()
    assert one != two
    for name in (one, two):
        assert re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", name)


def test_declare_ok_tells_name_and_counts(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    assert ch.declare(queue).fields == {"queue": queue, "message_count": 0, "consumer_count": 0}
    ch.publish(b"m", queue)
    ch.ping()
    assert ch.declare(queue).fields == {"queue": queue, "message_count": 1, "consumer_count": 0}


def test_message_count_is_of_ready_messages_only(ch: RawChannel, queue: str) -> None:
    for _ in range(3):
        ch.publish(b"m", queue)
    ch.got(queue, no_ack=False)
    assert ch.declare(queue)["message_count"] == 2


def test_consumer_count_is_of_all_channels(ch: RawChannel, queue: str) -> None:
    ch.consume(queue)
    other = ch.client.channel()
    other.consume(queue)
    assert other.consumers(queue) == 2


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("auto_delete", [False, True])
def test_queue_may_be_declared_twice_alike(
    ch: RawChannel, names: Names, durable: bool, auto_delete: bool
) -> None:
    queue = names.new()
    for _ in range(2):
        ch.declare(queue, durable=durable, auto_delete=auto_delete)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"durable": True}, "'durable' for {}: received 'true' but current is 'false'"),
        ({"auto_delete": True}, "'auto_delete' for {}: received 'true' but current is 'false'"),
        (
            {"durable": True, "auto_delete": True},
            "'durable' for {}: received 'true' but current is 'false'",
        ),
        (
            {"auto_delete": True, "arguments": {"x-max-length": 1}},
            "'auto_delete' for {}: received 'true' but current is 'false'",
        ),
        (
            {"arguments": {"x-max-length": Typed("s", 5)}},
            "'x-max-length' for {}: received the value '5' of type 'short' but current is none",
        ),
        (
            {"arguments": {"x-overflow": "drop-head"}},
            "'x-overflow' for {}: received the value 'drop-head' of type 'longstr' "
            "but current is none",
        ),
    ],
    ids=["durable", "auto-delete", "durable first", "auto-delete first", "number", "string"],
)
def test_declaring_differently_is_refused(
    ch: RawChannel, names: Names, vhost: str, change: dict[str, object], text: str
) -> None:
    queue = names.new()
    ch.declare(queue)
    ch.refused(
        406,
        "inequivalent arg " + text.format(f"queue '{queue}' in vhost '{vhost}'"),
        "queue.declare",
        queue=queue,
        **change,
    )


def test_arguments_on_both_sides_show_only_their_values(
    ch: RawChannel, names: Names, vhost: str
) -> None:
    queue = names.new()
    ch.declare(queue, arguments={"x-max-length": 5})
    where = f"'x-max-length' for queue '{queue}' in vhost '{vhost}'"
    ch.refused(
        406,
        f"inequivalent arg {where}: received '6' but current is '5'",
        "queue.declare",
        queue=queue,
        arguments={"x-max-length": 6},
    )
    ch.refused(
        406,
        f"inequivalent arg {where}: received none but current is the value '5' of type 'signedint'",
        "queue.declare",
        queue=queue,
    )


@pytest.mark.parametrize("code", ["b", "B", "s", "u", "I", "i", "l", "L"])
def test_integer_types_are_interchangeable(ch: RawChannel, names: Names, code: str) -> None:
    queue = names.new()
    ch.declare(queue, arguments={"x-max-length": Typed("s", 5)})
    ch.declare(queue, arguments={"x-max-length": Typed(code, 5)})


def test_classic_queue_type_is_the_same_as_none(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    ch.declare(queue)
    ch.declare(queue, arguments={"x-queue-type": "classic"})


@pytest.mark.parametrize("key", ["x-foo", "x-ha-policy", "foo"])
def test_unknown_arguments_are_ignored(ch: RawChannel, names: Names, key: str) -> None:
    queue = names.new()
    ch.declare(queue, arguments={key: "one"})
    ch.declare(queue, arguments={key: 2})
    ch.declare(queue)


def test_reserved_prefix_is_refused_for_new_queues(ch: RawChannel) -> None:
    ch.refused(
        403,
        "queue name 'amq.cf-none' contains reserved prefix 'amq.*'",
        "queue.declare",
        queue="amq.cf-none",
    )


def test_server_named_queue_may_only_be_declared_again_passively(ch: RawChannel) -> None:
    queue = ch.own_queue()
    assert ch.declare(queue, passive=True)["queue"] == queue
    ch.refused(
        403,
        f"queue name '{queue}' contains reserved prefix 'amq.*'",
        "queue.declare",
        queue=queue,
        exclusive=True,
    )


def test_passive_declare_compares_nothing(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    ch.declare(queue)
    ch.declare(
        queue, passive=True, durable=True, auto_delete=True, arguments={"x-max-length": "nonsense"}
    )


def test_passive_declare_of_a_missing_queue_is_not_found(
    ch: RawChannel, names: Names, vhost: str
) -> None:
    queue = names.new()
    text = f"no queue '{queue}' in vhost '{vhost}'"
    ch.send("queue.declare", queue=queue, passive=True)
    ch.expect_close(404, text, offender=(50, 10))


def test_passive_declare_does_not_expand_the_empty_name(ch: RawChannel, vhost: str) -> None:
    ch.own_queue()
    ch.refused(404, f"no queue '' in vhost '{vhost}'", "queue.declare", passive=True)


def test_line_ends_are_stripped_from_names(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    assert ch.declare(queue[:3] + "\r\n" + queue[3:])["queue"] == queue


@pytest.mark.parametrize("method", ["basic.get", "basic.consume", "queue.purge"])
def test_line_ends_stay_in_names_of_queues_that_are_read(
    ch: RawChannel, names: Names, vhost: str, method: str
) -> None:
    queue = names.new()
    ch.declare(queue)
    for name in (f"{queue}\r\n", "\n"):
        ch.refused(404, f"no queue '{name}' in vhost '{vhost}'", method, queue=name)


def test_line_ends_stay_in_names_of_exchanges_that_are_published_to(
    ch: RawChannel, vhost: str
) -> None:
    ch.publish(b"m", exchange="amq.\nfanout")
    ch.expect_close(404, f"no exchange 'amq.\nfanout' in vhost '{vhost}'")


def test_name_of_line_ends_is_not_the_last_queue(ch: RawChannel, vhost: str) -> None:
    queue = ch.own_queue()
    missing = f"no queue '' in vhost '{vhost}'"
    ch.call("queue.delete", queue="\n")
    ch.refused(404, missing, "queue.bind", queue="\n", exchange="amq.direct")
    assert ch.ready(queue) == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "true' of type 'bool"),
        (None, "undefined' of type 'void"),
        (1000.0, "1.0e3' of type 'double"),
        (100.0, "100.0' of type 'double"),
        (0.00001, "1.0e-5' of type 'double"),
        (Typed("D", (1, 15)), "{1,15}' of type 'decimal"),
        (Typed("x", b"ab"), "ab' of type 'binary"),
        ([1, "a"], "[{signedint,1},{longstr,<<\"a\">>}]' of type 'array"),
        ({"a": 1.5}, "[{<<\"a\">>,double,1.5}]' of type 'table"),
    ],
    ids=str,
)
def test_values_of_all_types_are_shown(
    ch: RawChannel, queue: str, vhost: str, value: object, shown: str
) -> None:
    ch.refused(
        406,
        f"inequivalent arg 'x-max-length' for queue '{queue}' in vhost '{vhost}': "
        f"received the value '{shown}' but current is none",
        "queue.declare",
        queue=queue,
        arguments={"x-max-length": value},
    )


@pytest.mark.parametrize("suffix", [" with spaces", "/$%&", "-ünïcödé", "."])
def test_names_may_have_any_characters(ch: RawChannel, names: Names, suffix: str) -> None:
    queue = names.new() + suffix
    ch.declare(queue, exclusive=True)
    ch.publish(b"m", queue)
    ch.got(queue, b"m")


def test_names_have_up_to_255_bytes(ch: RawChannel, names: Names) -> None:
    queue = names.new().ljust(255, "x")
    assert ch.declare(queue, exclusive=True)["queue"] == queue
    ch.publish(b"m", queue)
    ch.got(queue, b"m")


def test_exclusive_queue_is_locked_for_other_connections(
    raw: Raw, ch: RawChannel, names: Names, vhost: str
) -> None:
    queue = names.new()
    raw().channel().declare(queue, exclusive=True)
    text = locked(queue, vhost)
    ch.refused(405, text, "queue.declare", queue=queue, exclusive=True)
    ch.refused(405, text, "queue.declare", queue=queue)
    ch.refused(405, text, "queue.declare", queue=queue, passive=True)
    ch.refused(405, text, "basic.get", queue=queue)
    ch.refused(405, text, "basic.consume", queue=queue)
    ch.refused(405, text, "queue.purge", queue=queue)
    ch.refused(405, text, "queue.delete", queue=queue)


def test_exclusive_queue_takes_messages_of_other_connections(
    raw: Raw, ch: RawChannel, names: Names
) -> None:
    queue = names.new()
    owner = raw().channel()
    owner.declare(queue, exclusive=True)
    ch.publish(b"m", queue)
    # In a cluster the message may have to go to another node first.
    (message,) = owner.arriving(queue, 1)
    assert message.body == b"m"


def test_exclusive_queue_serves_every_channel_of_its_connection(
    ch: RawChannel, names: Names
) -> None:
    queue = names.new()
    ch.declare(queue, exclusive=True)
    other = ch.client.channel()
    other.declare(queue, exclusive=True)
    other.consume(queue)


def test_exclusive_queue_is_not_durable(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    ch.declare(queue, exclusive=True, durable=True)
    ch.declare(queue, exclusive=True)


def test_owner_must_keep_saying_exclusive(ch: RawChannel, names: Names, vhost: str) -> None:
    exclusive, shared = names.new(), names.new()
    ch.declare(exclusive, exclusive=True)
    ch.declare(shared)
    ch.refused(405, locked(exclusive, vhost), "queue.declare", queue=exclusive)
    ch.refused(405, locked(shared, vhost), "queue.declare", queue=shared, exclusive=True)


GOOD_ARGUMENTS: list[dict[str, object]] = [
    {"x-expires": 60000},
    {"x-expires": TEN_YEARS_MS},
    {"x-message-ttl": 0},
    {"x-message-ttl": TEN_YEARS_MS},
    {"x-max-length": 0},
    {"x-max-length-bytes": 2**40},
    {"x-overflow": "drop-head"},
    {"x-overflow": "reject-publish"},
    {"x-overflow": "reject-publish-dlx"},
    {"x-dead-letter-exchange": "cf-no-such-exchange"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": ""},
    {"x-max-priority": 0},
    {"x-max-priority": Typed("B", 5)},
    {"x-queue-mode": "default"},
    {"x-queue-mode": "lazy"},
    {"x-queue-version": 1},
    {"x-queue-version": 2},
    {"x-single-active-consumer": True},
    {"x-single-active-consumer": False},
    {"x-queue-type": "classic"},
    {"x-queue-master-locator": "client-local"},
]


@pytest.mark.parametrize("arguments", GOOD_ARGUMENTS, ids=str)
def test_argument_is_accepted(ch: RawChannel, names: Names, arguments: dict[str, object]) -> None:
    queue = names.new()
    for _ in range(2):
        ch.declare(queue, arguments=arguments)


BAD_ARGUMENTS: list[tuple[str, object, str]] = [
    ("x-expires", 0, "{value_zero,0}"),
    ("x-expires", -1, "{value_negative,-1}"),
    ("x-expires", TEN_YEARS_MS + 1, f"{{value_too_large,{TEN_YEARS_MS + 1}}}"),
    ("x-expires", "10", '"expected integer, got longstr"'),
    ("x-message-ttl", -1, "{value_negative,-1}"),
    ("x-message-ttl", TEN_YEARS_MS + 1, f"{{value_too_large,{TEN_YEARS_MS + 1}}}"),
    ("x-message-ttl", "10", '"expected integer, got longstr"'),
    ("x-message-ttl", 1.5, '"expected integer, got double"'),
    ("x-message-ttl", Typed("f", 1.0), '"expected integer, got float"'),
    ("x-message-ttl", True, '"expected integer, got bool"'),
    ("x-max-length", -5, "{value_negative,-5}"),
    ("x-max-length", "5", '"expected integer, got longstr"'),
    ("x-max-length", None, '"expected integer, got void"'),
    ("x-max-length", {"a": 1}, '"expected integer, got table"'),
    ("x-max-length", [1], '"expected integer, got array"'),
    ("x-max-length", Typed("T", 5), '"expected integer, got timestamp"'),
    ("x-max-length", Typed("D", (0, 5)), '"expected integer, got decimal"'),
    ("x-max-length", Typed("x", b"5"), '"expected integer, got binary"'),
    ("x-max-length-bytes", -1, "{value_negative,-1}"),
    ("x-max-length-bytes", True, '"expected integer, got bool"'),
    ("x-overflow", "reject", "invalid_overflow"),
    ("x-overflow", Typed("b", 1), "{unacceptable_type,byte}"),
    ("x-dead-letter-routing-key", "key", "routing_key_but_no_dlx_defined"),
    ("x-max-priority", 256, "{max_value_exceeded,256}"),
    ("x-max-priority", -1, "{value_negative,-1}"),
    ("x-max-priority", "5", '"expected integer, got longstr"'),
    ("x-queue-mode", "foo", "\"unsupported queue mode 'foo'\""),
    ("x-queue-mode", Typed("b", 1), "{unacceptable_type,byte}"),
    ("x-queue-version", 3, "\"unsupported queue version '3'\""),
    ("x-single-active-consumer", "true", "{unacceptable_type,longstr}"),
    ("x-queue-type", "foo", "\"unsupported queue type 'foo'\""),
    ("x-queue-type", Typed("b", 1), "{unacceptable_type,byte}"),
    ("x-queue-type", ["quorum"], "{unacceptable_type,array}"),
    ("x-queue-type", {"quorum": 1}, "{unacceptable_type,table}"),
]


@pytest.mark.parametrize(
    ("key", "value", "reason"), BAD_ARGUMENTS, ids=[f"{bad[0]}={bad[1]}" for bad in BAD_ARGUMENTS]
)
def test_bad_argument_is_refused(
    ch: RawChannel, names: Names, vhost: str, key: str, value: object, reason: str
) -> None:
    queue = names.new()
    ch.refused(
        406,
        f"invalid arg '{key}' for queue '{queue}' in vhost '{vhost}': {reason}",
        "queue.declare",
        queue=queue,
        arguments={key: value},
    )
    assert not ch.queue_exists(queue)


def test_dead_letter_exchange_must_be_a_name(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = names.new()
    ch.refused(
        406,
        f"invalid type 'byte' for arg 'x-dead-letter-exchange' in queue '{queue}' "
        f"in vhost '{vhost}'",
        "queue.declare",
        queue=queue,
        arguments={"x-dead-letter-exchange": Typed("b", 1)},
    )


def test_dead_letter_routing_key_must_be_a_string(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = names.new()
    ch.refused(
        406,
        f"invalid arg 'x-dead-letter-routing-key' for queue '{queue}' in vhost '{vhost}': "
        "{unacceptable_type,short}",
        "queue.declare",
        queue=queue,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": Typed("s", 1)},
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x-max-age", "1D"),
        ("x-initial-cluster-size", 1),
        ("x-quorum-initial-group-size", 1),
        ("x-queue-leader-locator", "balanced"),
        ("x-dead-letter-strategy", "at-most-once"),
        ("x-max-in-memory-length", 5),
        ("x-max-in-memory-bytes", 5),
        ("x-stream-max-segment-size-bytes", 5),
    ],
)
def test_arguments_of_other_queue_types_are_refused(
    ch: RawChannel, names: Names, vhost: str, key: str, value: object
) -> None:
    queue = names.new()
    ch.refused(
        406,
        f"invalid arg '{key}' for queue '{queue}' in vhost '{vhost}' "
        "of queue type rabbit_classic_queue",
        "queue.declare",
        queue=queue,
        arguments={key: value},
    )


def offered_type(raw: Raw, names: Names, type: str) -> None:
    """Skips the test if the broker has no queues of that type."""
    channel = raw().channel()
    queue = names.new()
    channel.send("queue.declare", queue=queue, durable=True, arguments={"x-queue-type": type})
    if channel.next_method().name == "channel.close":
        pytest.skip(f"the broker has no {type} queues")
    channel.call("queue.delete", queue=queue)


@pytest.mark.parametrize("type", ["quorum", "stream"])
@pytest.mark.parametrize(
    ("fields", "property"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
    ],
    ids=["transient", "auto-delete", "exclusive"],
)
def test_replicated_queues_of_other_types_are_durable_and_shared(
    ch: RawChannel,
    raw: Raw,
    names: Names,
    vhost: str,
    type: str,
    fields: dict[str, Any],
    property: str,
) -> None:
    offered_type(raw, names, type)
    queue = names.new()
    ch.refused(
        406,
        f"invalid property '{property}' for queue '{queue}' in vhost '{vhost}'",
        "queue.declare",
        queue=queue,
        arguments={"x-queue-type": type},
        **fields,
    )


@pytest.mark.parametrize("type", ["quorum", "stream"])
def test_replicated_queues_of_other_types_are_named_by_the_client(
    ch: RawChannel, raw: Raw, names: Names, type: str
) -> None:
    offered_type(raw, names, type)
    ch.refused(
        406,
        f"Cannot declare a server-named queue for type rabbit_{type}_queue",
        "queue.declare",
        durable=True,
        arguments={"x-queue-type": type},
    )


def test_queue_with_all_options_works_in_an_ordinary_client(channel: Any, names: Names) -> None:
    queue = names.new()
    arguments = {"x-max-length": 10, "x-message-ttl": 60000, "x-max-priority": 3}
    channel.queue_declare(queue, durable=True, auto_delete=True, arguments=arguments)
    channel.basic_publish("", queue, b"m")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"m"
