"""Quorum queues: dead letters, times to live, length limits (quorum queue reference 4)."""

import time
from typing import Any

import pytest

from warren.compat_tests.api import Api
from warren.compat_tests.methods import Method
from warren.compat_tests.names import Names
from warren.compat_tests.quorum import contents, fill, quorum_queue, shown, take
from warren.compat_tests.raw_client import RawChannel

AREA = "Quorum queues: limits and dead letters"

AT_LEAST_ONCE = {"x_dead_letter_strategy": "at-least-once", "x_overflow": "reject-publish"}


def dying_into(ch: RawChannel, names: Names, dead: str, **arguments: Any) -> str:
    return quorum_queue(
        ch, names, x_dead_letter_exchange="", x_dead_letter_routing_key=dead, **arguments
    )


def died(ch: RawChannel, dead: str, reason: str, count: int = 1) -> list[Method]:
    letters = ch.arriving(dead, count)
    assert [letter.headers["x-death"][0]["reason"] for letter in letters] == [reason] * count
    return letters


@pytest.mark.parametrize("how", [{}, AT_LEAST_ONCE], ids=["at-most-once", "at-least-once"])
def test_rejected_message_goes_to_the_dead_letter_exchange(
    ch: RawChannel, names: Names, how: dict[str, str]
) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, names, dead, **how)
    ch.publish(b"m", queue, headers={"a": 1})
    ch.becomes_ready(queue, 1)
    (tag,) = take(ch, queue, 1)
    ch.nack(tag, requeue=False)
    (letter,) = died(ch, dead, "rejected")
    assert letter.headers["a"] == 1
    assert letter.headers["x-death"][0]["queue"] == queue
    assert letter.headers["x-first-death-queue"] == queue
    assert "x-delivery-count" not in letter.headers


def test_dead_letter_of_a_quorum_queue_in_another_one(ch: RawChannel, names: Names) -> None:
    dead = quorum_queue(ch, names)
    queue = dying_into(ch, names, dead)
    fill(ch, queue, 1)
    (tag,) = take(ch, queue, 1)
    ch.nack(tag)
    ch.becomes_ready(queue, 1)
    (tag,) = take(ch, queue, 1)
    ch.nack(tag, requeue=False)
    (letter,) = died(ch, dead, "rejected")
    assert letter.headers["x-delivery-count"] == 0


def test_expired_message(ch: RawChannel, names: Names) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, names, dead, x_message_ttl=50)
    ch.publish(b"m", queue)
    died(ch, dead, "expired")
    assert ch.ready(queue) == 0


def test_only_the_head_expires(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    ch.publish(b"long", queue, expiration="60000")
    ch.publish(b"short", queue, expiration="50")
    ch.becomes_ready(queue, 2)
    time.sleep(0.3)
    assert ch.ready(queue) == 2
    assert ch.got(queue).body == b"long"
    ch.becomes_ready(queue, 0)


def test_nothing_expires_while_it_is_out(ch: RawChannel, names: Names) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, names, dead, x_message_ttl=100)
    ch.publish(b"m", queue)
    ch.becomes_ready(queue, 1)
    (tag,) = take(ch, queue, 1)
    time.sleep(0.3)
    assert ch.get(dead) is None
    ch.nack(tag)
    died(ch, dead, "expired")


def test_time_to_live_of_nothing(ch: RawChannel, names: Names) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, names, dead)
    ch.publish(b"gone", queue, expiration="0")
    died(ch, dead, "expired")
    ch.consume(queue)
    ch.publish(b"caught", queue, expiration="0")
    ch.delivery(b"caught")


def test_oldest_is_dropped(ch: RawChannel, names: Names) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, names, dead, x_max_length=3)
    ch.call("confirm.select")
    for number in range(5):
        ch.publish(b"%d" % number, queue)
    assert {verdict for verdict, _ in ch.confirms(5)} == {"ack"}
    letters = died(ch, dead, "maxlen", 2)
    assert [letter.body for letter in letters] == [b"0", b"1"]
    assert contents(ch, queue, 3) == [b"2", b"3", b"4"]


def test_length_in_bytes(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names, x_max_length_bytes=100)
    for number in range(5):
        ch.publish(b"%d" % number * 40, queue)
    assert contents(ch, queue, 2) == [b"3" * 40, b"4" * 40]


def test_what_is_out_does_not_count(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names, x_max_length=2)
    fill(ch, queue, 2)
    tags = take(ch, queue, 2)
    fill(ch, queue, 2)
    assert ch.ready(queue) == 2
    ch.nack(tags[0])
    # The queue has no delivery limit, so the requeued message goes to its end.
    assert contents(ch, queue, 2) == [b"1", b"0"]


def test_reject_publish_dlx_is_drop_head(ch: RawChannel, names: Names) -> None:
    dead = ch.own_queue()
    queue = dying_into(ch, names, dead, x_max_length=1, x_overflow="reject-publish-dlx")
    ch.publish(b"0", queue)
    ch.publish(b"1", queue)
    assert died(ch, dead, "maxlen")[0].body == b"0"
    assert contents(ch, queue, 1) == [b"1"]


def published(ch: RawChannel, queue: str) -> str:
    """Publish a message; returns `ack` or `nack`."""
    ch.publish(b"m", queue)
    ((verdict, _),) = ch.confirms(1)
    return verdict


def test_publishes_are_refused_above_the_limit(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names, x_max_length=10, x_overflow="reject-publish")
    ch.call("confirm.select")
    verdicts: list[str] = []
    while "nack" not in verdicts and len(verdicts) < 30:
        verdicts.append(published(ch, queue))
    kept = verdicts.count("ack")
    assert kept >= 10
    # The queue takes publishes again when its length has fallen to 80 % of the limit.
    while ch.ready(queue) > 9:
        ch.got(queue)
    assert published(ch, queue) == "nack"
    ch.got(queue)
    time.sleep(0.3)
    assert published(ch, queue) == "ack"


def test_publishes_are_refused_from_the_one_that_was_too_much(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names, x_max_length=10, x_overflow="reject-publish")
    ch.call("confirm.select")
    assert [published(ch, queue) for _ in range(11)] == ["ack"] * 11
    time.sleep(0.3)
    # As long as no publish was refused, the queue takes publishes below its limit, not only below
    # 80 %.
    ch.got(queue)
    time.sleep(0.3)
    assert published(ch, queue) == "nack"


# At least once


@pytest.mark.slow
def test_dead_letter_without_a_route_is_kept(
    ch: RawChannel, names: Names, api: Api, vhost: str
) -> None:
    nowhere = names.new()
    queue = dying_into(ch, names, nowhere, **AT_LEAST_ONCE)
    fill(ch, queue, 2)
    (tag,) = take(ch, queue, 1)
    ch.reject(tag, requeue=False)
    # RabbitMQ's statistics show the two counts at different times.
    shown(api, vhost, queue, "messages_dlx", 1)
    row = shown(api, vhost, queue, "messages", 2)
    assert row["messages_ready"] == 1
    assert (row["messages_dlx"], row["message_bytes_dlx"]) == (1, 1)
    assert ch.ready(queue) == 1
    assert ch.call("queue.purge", queue=queue)["message_count"] == 1
    assert ch.call("queue.purge", queue=queue)["message_count"] == 0
    assert ch.get(queue) is None
    row = shown(api, vhost, queue, "messages", 1)
    assert row["messages_dlx"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "missing",
    [{"x_dead_letter_strategy": "at-most-once"}, {"x_overflow": "drop-head"}],
    ids=str,
)
def test_dead_letter_without_a_route_goes_otherwise(
    ch: RawChannel, names: Names, api: Api, vhost: str, missing: dict[str, str]
) -> None:
    nowhere = names.new()
    queue = dying_into(ch, names, nowhere, **{**AT_LEAST_ONCE, **missing})
    fill(ch, queue, 1)
    shown(api, vhost, queue, "messages", 1)
    (tag,) = take(ch, queue, 1)
    ch.reject(tag, requeue=False)
    row = shown(api, vhost, queue, "messages", 0)
    assert row["messages_dlx"] == 0


@pytest.mark.slow
def test_unused_queue_goes(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names, x_expires=200)
    deadline = time.monotonic() + 15
    # A look at the queue would be a use of it.
    other = ch.client.channel()
    kept = quorum_queue(other, names, x_expires=200)
    other.consume(kept)
    time.sleep(11)
    assert time.monotonic() < deadline + 15
    assert not ch.queue_exists(queue)
    assert ch.queue_exists(kept)


def test_what_comes_back_is_offered_to_consumers_before_the_limit_is_looked_at(
    ch: RawChannel, names: Names
) -> None:
    queue = quorum_queue(ch, names, x_max_length=1)
    ch.call("basic.qos", prefetch_count=1)
    ch.consume(queue)
    ch.publish(b"1", queue)
    first = ch.delivery(b"1")
    ch.publish(b"2", queue)
    ch.becomes_ready(queue, 1)
    ch.nack(first["delivery_tag"])
    second = ch.delivery(b"2")
    ch.ack(second["delivery_tag"])
    ch.delivery(b"1")
