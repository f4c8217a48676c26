"""Publishing: reference 5.3 and the passthrough of properties in 0."""

from typing import Any

import pytest

from warren.compat_tests.field_table import Typed
from warren.compat_tests.methods import encode_header
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel
from warren.compat_tests.raw_connection import BODY, HEADER

AREA = "Publishing"

PUBLISH = (60, 40)

ALL_PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "identity",
    "headers": {"a": 1},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "correlation",
    "reply_to": "somewhere",
    "expiration": "60000",
    "message_id": "id",
    "timestamp": 2**63 + 5,
    "type": "kind",
    "app_id": "suite",
    "cluster_id": "cluster",
}

# Every type of field table value, nested once.
ALL_TYPES: dict[str, Any] = {
    "string": Typed("S", "text"),
    "bytes": Typed("S", b"\xff\x00"),
    "table": Typed("F", {"z": Typed("s", 1), "a": Typed("l", 2)}),
    "array": Typed("A", [Typed("b", -1), Typed("S", "x"), Typed("F", {})]),
    "int": Typed("I", -5),
    "unsigned int": Typed("i", 2**32 - 1),
    "decimal": Typed("D", (2, 314)),
    "byte": Typed("b", -128),
    "unsigned byte": Typed("B", 255),
    "short": Typed("s", -32768),
    "unsigned short": Typed("u", 65535),
    "long": Typed("l", -(2**63)),
    "float": Typed("f", 1.5),
    "double": Typed("d", 2.5),
    "timestamp": Typed("T", 1234567890),
    "binary": Typed("x", b"\x00\x01"),
    "void": Typed("V", None),
    "false": Typed("t", False),
}


def test_all_properties_arrive_as_sent(ch: RawChannel) -> None:
    queue = ch.own_queue()
    properties = {**ALL_PROPERTIES, "user_id": ch.client.broker.user}
    ch.publish(b"m", queue, **properties)
    assert ch.got(queue).properties == properties


def test_absent_properties_stay_absent(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.publish(b"m", queue)
    message = ch.got(queue)
    assert message.properties == {}
    assert message.property_bytes == b"\x00\x00"


def test_property_bytes_are_forwarded_untouched(ch: RawChannel) -> None:
    queue = ch.own_queue()
    header = encode_header({"headers": ALL_TYPES, "delivery_mode": 1, "message_id": "i"}, 1)
    for take in ("get", "consume"):
        ch.send("basic.publish", routing_key=queue)
        ch.client.send_frame(HEADER, ch.number, header)
        ch.client.send_frame(BODY, ch.number, b"m")
        ch.ping()
        if take == "consume":
            ch.consume(queue)
            message = ch.delivery()
        else:
            message = ch.got(queue)
        assert message.property_bytes == header[12:]


def test_lowest_bits_of_the_property_flags_are_ignored(ch: RawChannel) -> None:
    """One says that further flags follow, which no client sends; none is looked for."""
    queue = ch.own_queue()
    header = encode_header({"headers": {"a": 1}, "priority": 3}, 1)
    for bits in (1, 2, 3):
        ch.send("basic.publish", exchange="", routing_key=queue)
        odd = header[:13] + bytes((header[13] | bits,)) + header[14:]
        ch.client.send_frame(HEADER, ch.number, odd)
        ch.client.send_frame(BODY, ch.number, b"m")
        message = ch.got(queue)
        assert message.properties == {"headers": {"a": 1}, "priority": 3}
        assert message.property_bytes == odd[12:]


def test_lowest_bits_of_the_property_flags_are_lost_by_an_edit(ch: RawChannel) -> None:
    queue = ch.own_queue()
    header = encode_header({"headers": {"a": 1, "BCC": []}, "priority": 3}, 0)
    ch.send("basic.publish", exchange="", routing_key=queue)
    ch.client.send_frame(HEADER, ch.number, header[:13] + b"\x03" + header[14:])
    edited = encode_header({"headers": {"a": 1}, "priority": 3}, 0)
    assert ch.got(queue).property_bytes == edited[12:]


def test_property_bytes_survive_an_exchange_that_reads_headers(
    ch: RawChannel, names: Names
) -> None:
    exchange, queue = names.new(), ch.own_queue()
    ch.declare_exchange(exchange, "headers")
    ch.bind(queue, exchange, "", {"x-match": "any", "string": "text"})
    header = encode_header({"headers": ALL_TYPES}, 0)
    ch.send("basic.publish", exchange=exchange)
    ch.client.send_frame(HEADER, ch.number, header)
    ch.ping()
    assert ch.got(queue).property_bytes == header[12:]


def test_header_types_survive_an_edit_of_the_headers(ch: RawChannel) -> None:
    """The broker takes BCC out, and must write all the others again as they were."""
    queue = ch.own_queue()
    ch.publish(b"m", queue, headers={"BCC": ["x"], **ALL_TYPES})
    assert ch.got(queue).typed_headers == ALL_TYPES


def test_other_headers_keep_their_order_when_bcc_is_taken_out(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.publish(b"m", queue, headers={"z": 1, "BCC": [], "a": 2, "m": 3})
    assert list(ch.got(queue).headers) == ["z", "a", "m"]


def test_both_octets_for_64_bit_numbers_are_read(ch: RawChannel) -> None:
    """`L` passes through as it is, and becomes `l` when the broker writes the headers again."""
    queue = ch.own_queue()
    headers = {"n": Typed("L", -5)}
    ch.publish(b"m", queue, headers=headers)
    assert ch.got(queue).typed_headers == headers
    ch.publish(b"m", queue, headers={**headers, "BCC": []})
    assert ch.got(queue).typed_headers == {"n": Typed("l", -5)}


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 131064, 131065, 1_000_000])
def test_bodies_of_all_sizes_arrive_whole(ch: RawChannel, size: int) -> None:
    queue = ch.own_queue()
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    ch.publish(body, queue)
    assert ch.got(queue).body == body


def test_publishing_to_a_missing_exchange_is_not_found(
    ch: RawChannel, names: Names, vhost: str
) -> None:
    exchange = names.new()
    ch.publish(b"m", "key", exchange)
    ch.expect_close(404, f"no exchange '{exchange}' in vhost '{vhost}'", offender=PUBLISH)


def test_publishing_to_a_missing_queue_drops_silently(ch: RawChannel, names: Names) -> None:
    ch.publish(b"m", names.new())
    ch.expect_silence()


def test_immediate_is_not_implemented(ch: RawChannel) -> None:
    ch.send("basic.publish", routing_key="key", immediate=True)
    ch.client.send_frame(HEADER, ch.number, encode_header({}, 0))
    ch.client.expect_close(540, "immediate=true", offender=PUBLISH)


def test_mandatory_message_nobody_wants_is_returned(ch: RawChannel) -> None:
    ch.publish(b"body", "nowhere", "amq.direct", mandatory=True, **ALL_PROPERTIES)
    returned = ch.expect("basic.return")
    assert returned.fields == {
        "reply_code": 312,
        "reply_text": "NO_ROUTE",
        "exchange": "amq.direct",
        "routing_key": "nowhere",
    }
    assert (returned.body, returned.properties) == (b"body", ALL_PROPERTIES)


def test_returned_message_comes_without_bcc(ch: RawChannel) -> None:
    headers = {"CC": ["nowhere"], "BCC": ["nowhere else"], "a": 1}
    ch.publish(b"m", "nowhere", mandatory=True, headers=headers)
    assert ch.expect("basic.return").headers == {"CC": ["nowhere"], "a": 1}


def test_one_key_with_a_queue_is_enough_for_mandatory(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.publish(b"m", "nowhere", mandatory=True, headers={"CC": [queue]})
    ch.expect_silence(queue)
    assert ch.bodies(queue) == [b"m"]


def test_large_message_is_returned_whole(ch: RawChannel) -> None:
    body = b"x" * 300_000
    ch.publish(body, "nowhere", mandatory=True)
    assert ch.expect("basic.return").body == body


def test_returned_messages_come_in_order(ch: RawChannel) -> None:
    for number in range(20):
        ch.publish(b"%d" % number, "nowhere", mandatory=True)
    assert [ch.expect("basic.return").body for _ in range(20)] == [b"%d" % n for n in range(20)]


def test_user_id_of_somebody_else_is_refused(ch: RawChannel) -> None:
    ch.publish(b"m", ch.own_queue(), user_id="somebody")
    ch.expect_close(
        406,
        f"user_id property set to 'somebody' but authenticated user was '{ch.client.broker.user}'",
        offender=PUBLISH,
    )


def test_unknown_delivery_mode_is_refused(ch: RawChannel) -> None:
    ch.publish(b"m", ch.own_queue(), delivery_mode=3)
    ch.expect_close(406, "invalid message: {delivery_mode_unknown,3}", offender=PUBLISH)


def test_bad_exchange_is_reported_before_a_bad_user_id(
    ch: RawChannel, names: Names, vhost: str
) -> None:
    exchange = names.new()
    ch.publish(b"m", "key", exchange, user_id="somebody", expiration="abc")
    ch.expect_close(404, f"no exchange '{exchange}' in vhost '{vhost}'")


def test_bad_user_id_is_reported_before_a_bad_expiration(ch: RawChannel) -> None:
    ch.publish(b"m", "key", user_id="somebody", expiration="abc", delivery_mode=3)
    assert ch.expect("channel.close")["reply_text"].startswith("PRECONDITION_FAILED - user_id")


def test_bad_expiration_is_reported_before_a_bad_delivery_mode(ch: RawChannel) -> None:
    ch.publish(b"m", "key", expiration="abc", delivery_mode=3)
    ch.expect_close(406, "invalid expiration 'abc': no_integer")


def test_properties_that_are_not_utf_8_are_forwarded(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.publish(b"m", queue, message_id=b"\xff\xfe", headers={"k": b"\xff"})
    message = ch.got(queue)
    assert message.properties == {"message_id": b"\xff\xfe", "headers": {"k": b"\xff"}}


def test_routing_keys_that_are_not_utf_8_are_forwarded(ch: RawChannel, names: Names) -> None:
    queue, exchange = ch.own_queue(), names.new()
    ch.declare_exchange(exchange, "topic")
    ch.bind(queue, exchange, "a.#")
    for key in (b"a.\xff\xfe", b"a.\xe9t\xe9", b"\xff"):
        ch.publish(key, key, exchange)
    ch.ping()
    found = [ch.got(queue) for _ in range(2)]
    assert [message["routing_key"] for message in found] == [message.body for message in found]
    ch.publish(b"back", b"\xff", "", mandatory=True)
    assert ch.expect("basic.return")["routing_key"] == b"\xff"


def test_an_exchange_whose_name_is_not_utf_8_is_not_found(ch: RawChannel) -> None:
    ch.publish(b"m", "key", b"\xff")
    assert ch.expect("channel.close")["reply_code"] == 404


def test_order_of_one_channel_is_kept(ch: RawChannel) -> None:
    queue = ch.own_queue()
    bodies = [b"%d" % number for number in range(500)]
    for body in bodies:
        ch.publish(body, queue, delivery_mode=1 + int(body) % 2)
    other = ch.client.channel()
    ch.ping()
    other.consume(queue, no_ack=True)
    assert [other.delivery().body for _ in bodies] == bodies


def test_ordinary_client_publishes_and_consumes(channel: Any, names: Names) -> None:
    queue = names.new()
    channel.queue_declare(queue)
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number)
    taken = []
    for method, _, body in channel.consume(queue, inactivity_timeout=5):
        assert method is not None, "ten messages were published"
        taken.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(taken) == 10:
            break
    channel.cancel()
    assert taken == [b"%d" % number for number in range(10)]
