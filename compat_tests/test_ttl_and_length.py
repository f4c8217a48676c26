"""Message expiry and length limits: reference 4.3."""

import time
from typing import Any

import pytest

from warren.compat_tests.raw_client import RawChannel

AREA = "Queues: time to live and length limits"

# A time to live that is surely longer than a round trip, and short enough to wait for.
SHORT_MS = 300


def wait_out(ttl_ms: int = SHORT_MS) -> None:
    time.sleep((ttl_ms + 50) / 1000)


def fill(ch: RawChannel, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        ch.publish(body, queue, **properties)
    ch.ping()


def test_queue_ttl_drops_messages(ch: RawChannel) -> None:
    queue = ch.own_queue(x_message_ttl=SHORT_MS)
    fill(ch, queue, b"1", b"2")
    assert ch.ready(queue) == 2
    wait_out()
    ch.becomes_ready(queue, 0)


def test_expiration_property_drops_a_message(ch: RawChannel) -> None:
    queue = ch.own_queue()
    fill(ch, queue, b"m", expiration=str(SHORT_MS))
    assert ch.ready(queue) == 1
    wait_out()
    ch.becomes_ready(queue, 0)


@pytest.mark.parametrize(("queue_ms", "message_ms"), [(SHORT_MS, 60000), (60000, SHORT_MS)])
def test_shorter_of_queue_and_message_ttl_counts(
    ch: RawChannel, queue_ms: int, message_ms: int
) -> None:
    queue = ch.own_queue(x_message_ttl=queue_ms)
    fill(ch, queue, b"m", expiration=str(message_ms))
    wait_out()
    ch.becomes_ready(queue, 0)


def test_only_the_head_expires(ch: RawChannel) -> None:
    """A dead message behind one that lives longer counts, but is never delivered."""
    queue = ch.own_queue()
    fill(ch, queue, b"long", expiration="60000")
    fill(ch, queue, b"short", expiration=str(SHORT_MS // 3))
    fill(ch, queue, b"last")
    wait_out(SHORT_MS // 3)
    assert ch.ready(queue) == 3
    assert ch.bodies(queue) == [b"long", b"last"]


def test_expiration_stays_in_the_properties(ch: RawChannel) -> None:
    queue = ch.own_queue()
    fill(ch, queue, b"m", expiration="+60000")
    assert ch.got(queue).properties == {"expiration": "+60000"}


def test_count_of_get_ok_is_without_what_expired_behind_the_message(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.publish(b"stays", queue)
    ch.publish(b"goes", queue, expiration="1")
    ch.publish(b"stays too", queue)
    time.sleep(0.05)
    assert ch.got(queue, b"stays")["message_count"] == 1


def test_unacked_messages_do_not_expire_until_requeued(ch: RawChannel) -> None:
    queue = ch.own_queue(x_message_ttl=SHORT_MS)
    fill(ch, queue, b"acked", b"requeued")
    acked, requeued = (ch.got(queue, no_ack=False)["delivery_tag"] for _ in range(2))
    wait_out()
    ch.ack(acked)
    ch.nack(requeued)
    ch.becomes_ready(queue, 0)
    assert ch.get(queue) is None


def test_requeue_does_not_start_the_ttl_anew(ch: RawChannel) -> None:
    queue = ch.own_queue(x_message_ttl=4 * SHORT_MS)
    fill(ch, queue, b"m")
    started = time.monotonic()
    wait_out()
    ch.nack(ch.got(queue, b"m", no_ack=False)["delivery_tag"])
    ch.becomes_ready(queue, 1)
    ch.becomes_ready(queue, 0)
    assert time.monotonic() - started < 7 * SHORT_MS / 1000


def test_ttl_zero_means_now_or_never(ch: RawChannel) -> None:
    queue = ch.own_queue(x_message_ttl=0)
    fill(ch, queue, b"never")
    assert ch.get(queue) is None
    ch.consume(queue, no_ack=True)
    fill(ch, queue)
    ch.publish(b"now", queue)
    ch.delivery(b"now")


def test_expiration_zero_means_now_or_never(ch: RawChannel) -> None:
    queue = ch.own_queue()
    fill(ch, queue, b"never", expiration="0")
    assert ch.get(queue) is None
    other = ch.client.channel()
    other.consume(queue, no_ack=True)
    ch.publish(b"now", queue, expiration="0")
    other.delivery(b"now")


def test_expiration_zero_behind_another_message_stays_until_it_is_the_head(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = ch.own_queue(x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    ch.publish(b"1", queue)
    ch.publish(b"2", queue, expiration="0")
    ch.becomes_ready(queue, 2)
    assert ch.ready(dead) == 0
    ch.got(queue, b"1")
    ch.becomes_ready(dead, 1)
    assert ch.ready(queue) == 0


def test_message_that_dies_at_once_was_routed(ch: RawChannel) -> None:
    queue = ch.own_queue(x_message_ttl=0)
    ch.publish(b"m", queue, mandatory=True)
    ch.expect_silence(queue)


@pytest.mark.parametrize(
    ("expiration", "reason"),
    [
        ("abc", "no_integer"),
        ("", "no_integer"),
        (" 10", "no_integer"),
        ("1.5", '{leftover_string,".5"}'),
        ("10 ", '{leftover_string," "}'),
        ("-1", "{value_negative,-1}"),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_bad_expiration_is_refused(ch: RawChannel, expiration: str, reason: str) -> None:
    ch.publish(b"m", ch.own_queue(), expiration=expiration)
    ch.expect_close(406, f"invalid expiration '{expiration}': {reason}", offender=(60, 40))


def test_length_limit_drops_the_oldest(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_length=3)
    fill(ch, queue, b"1", b"2", b"3", b"4", b"5")
    assert ch.ready(queue) == 3
    assert ch.bodies(queue) == [b"3", b"4", b"5"]


def test_byte_limit_counts_bodies_and_drops_the_oldest(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_length_bytes=10)
    fill(ch, queue, b"aaaa", b"bbbb", b"cc", headers={"padding": "x" * 1000})
    assert ch.ready(queue) == 3
    fill(ch, queue, b"d")
    assert ch.bodies(queue) == [b"bbbb", b"cc", b"d"]


@pytest.mark.parametrize(("length", "length_bytes", "left"), [(2, 100, 2), (100, 3, 3)])
def test_either_limit_triggers(ch: RawChannel, length: int, length_bytes: int, left: int) -> None:
    queue = ch.own_queue(x_max_length=length, x_max_length_bytes=length_bytes)
    fill(ch, queue, *[b"x"] * 6)
    assert ch.ready(queue) == left


def test_message_larger_than_the_byte_limit_evicts_all_and_itself(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_length_bytes=5)
    fill(ch, queue, b"1", b"2", b"too large")
    assert ch.bodies(queue) == []


def test_length_limit_counts_ready_messages_only(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_length=2)
    fill(ch, queue, b"1", b"2")
    for _ in range(2):
        ch.got(queue, no_ack=False)
    fill(ch, queue, b"3", b"4")
    assert ch.bodies(queue) == [b"3", b"4"]


def test_requeue_over_the_limit_drops_the_oldest(ch: RawChannel) -> None:
    """The oldest is the requeued message itself: it returns to its place at the head."""
    queue = ch.own_queue(x_max_length=2)
    fill(ch, queue, b"1", b"2")
    tag = ch.got(queue, b"1", no_ack=False)["delivery_tag"]
    fill(ch, queue, b"3")
    ch.nack(tag)
    ch.becomes_ready(queue, 2)
    assert ch.bodies(queue) == [b"2", b"3"]


def test_limit_zero_lets_through_what_is_consumed_at_once(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_length=0)
    fill(ch, queue, b"dropped")
    assert ch.ready(queue) == 0
    other = ch.client.channel()
    other.consume(queue, no_ack=True)
    ch.publish(b"taken", queue)
    other.delivery(b"taken")


def test_reject_publish_keeps_the_old_and_nacks_the_new(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_length=1, x_overflow="reject-publish")
    ch.call("confirm.select")
    ch.publish(b"1", queue)
    assert ch.confirms(1) == [("ack", 1)]
    ch.publish(b"2", queue)
    assert ch.confirms(1) == [("nack", 2)]
    assert ch.bodies(queue) == [b"1"]


def test_reject_publish_by_bytes(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_length_bytes=4, x_overflow="reject-publish")
    ch.call("confirm.select")
    for number, (body, verdict) in enumerate([(b"abc", "ack"), (b"d", "ack"), (b"e", "nack")]):
        ch.publish(body, queue)
        assert ch.confirms(1) == [(verdict, number + 1)]


def test_reject_publish_without_confirms_drops_silently(ch: RawChannel) -> None:
    queue = ch.own_queue(x_max_length=1, x_overflow="reject-publish")
    fill(ch, queue, b"1", b"2", b"3", mandatory=True)
    ch.expect_silence(queue)
    assert ch.bodies(queue) == [b"1"]


def test_reject_publish_of_length_zero_refuses_even_what_a_consumer_could_take(
    ch: RawChannel,
) -> None:
    queue = ch.own_queue(x_max_length=0, x_overflow="reject-publish")
    other = ch.client.channel()
    other.consume(queue, no_ack=True)
    ch.call("confirm.select")
    ch.publish(b"m", queue)
    assert ch.confirms(1) == [("nack", 1)]
    other.expect_silence(queue)


def test_reject_publish_dlx_nacks_and_dead_letters(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = ch.own_queue(
        x_max_length=1,
        x_overflow="reject-publish-dlx",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead,
    )
    ch.call("confirm.select")
    ch.publish(b"1", queue)
    ch.publish(b"2", queue)
    assert sorted(ch.confirms(2)) == [("ack", 1), ("nack", 2)]
    (message,) = ch.arriving(dead, 1)
    assert message.body == b"2"
    assert message.headers["x-first-death-reason"] == "maxlen"
    assert ch.bodies(queue) == [b"1"]


def test_message_that_becomes_the_head_by_a_drop_expires(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = ch.own_queue(x_max_length=2, x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    fill(ch, queue, b"dropped")
    fill(ch, queue, b"expires", expiration=str(SHORT_MS))
    fill(ch, queue, b"stays")
    assert [message.body for message in ch.arriving(dead, 2)] == [b"dropped", b"expires"]
    assert ch.bodies(queue) == [b"stays"]
