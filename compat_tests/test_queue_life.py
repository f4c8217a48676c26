"""Auto-delete, expiry, deletion and purge: reference 4.1 and x-expires in 4.3."""

import time

import pytest

from warren.compat_tests.factory import Raw
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import PATIENCE_S

AREA = "Queues: life and death"


def vanishes(ch: RawChannel, queue: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while ch.queue_exists(queue):
        assert time.monotonic() < deadline, f"{queue} is still there"
        time.sleep(0.02)


def expires(ch: RawChannel, queue: str) -> None:
    """Wait until the queue is gone. Looking for it would renew its lease; a publish does not."""
    publisher = ch.client.channel()
    publisher.call("confirm.select")
    deadline = time.monotonic() + PATIENCE_S
    publisher.publish(b"", queue, mandatory=True)
    while publisher.next_method().name != "basic.return":
        assert time.monotonic() < deadline, f"{queue} is still there"
        time.sleep(0.02)
        publisher.publish(b"", queue, mandatory=True)
    publisher.expect("basic.ack")
    publisher.close()


def test_auto_delete_queue_goes_with_its_last_consumer(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    ch.declare(queue, auto_delete=True)
    ch.consume(queue, "one")
    ch.consume(queue, "two")
    ch.call("basic.cancel", consumer_tag="one")
    assert ch.queue_exists(queue)
    ch.call("basic.cancel", consumer_tag="two")
    vanishes(ch, queue)


def test_auto_delete_queue_waits_for_its_first_consumer(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    other = ch.client.channel()
    other.declare(queue, auto_delete=True)
    other.close()
    assert ch.queue_exists(queue)


def test_get_does_not_count_as_a_consumer(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    ch.declare(queue, auto_delete=True)
    ch.publish(b"m", queue)
    ch.got(queue, b"m")
    assert ch.queue_exists(queue)


def test_auto_delete_queue_goes_with_the_connection_of_its_consumer(
    raw: Raw, ch: RawChannel, names: Names
) -> None:
    queue = names.new()
    ch.declare(queue, auto_delete=True)
    other = raw()
    other.channel().consume(queue)
    other.abandon()
    vanishes(ch, queue)


def test_queue_of_another_connection_outlives_it(raw: Raw, ch: RawChannel, names: Names) -> None:
    queue = names.new()
    other = raw()
    other.channel().declare(queue)
    other.close()
    assert ch.queue_exists(queue)


def test_purge_drops_ready_messages_and_counts_them(ch: RawChannel, queue: str) -> None:
    for number in range(5):
        ch.publish(b"%d" % number, queue)
    first = ch.got(queue, b"0", no_ack=False)
    assert ch.call("queue.purge", queue=queue)["message_count"] == 4
    assert ch.ready(queue) == 0
    ch.nack(first["delivery_tag"])
    ch.becomes_ready(queue, 1)
    ch.got(queue, b"0")


def test_purge_of_an_empty_queue_counts_zero(ch: RawChannel) -> None:
    assert ch.call("queue.purge", queue=ch.own_queue())["message_count"] == 0


def test_purge_of_a_missing_queue_is_not_found(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = names.new()
    ch.refused(404, f"no queue '{queue}' in vhost '{vhost}'", "queue.purge", queue=queue)


def test_purged_messages_are_not_dead_lettered(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = ch.own_queue(x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    ch.publish(b"m", queue)
    ch.call("queue.purge", queue=queue)
    assert ch.ready(dead) == 0


def test_delete_counts_ready_messages(ch: RawChannel, queue: str) -> None:
    for _ in range(3):
        ch.publish(b"m", queue)
    ch.got(queue, no_ack=False)
    assert ch.call("queue.delete", queue=queue)["message_count"] == 2
    assert not ch.queue_exists(queue)


def test_deleting_a_missing_queue_counts_zero(ch: RawChannel, names: Names) -> None:
    assert ch.call("queue.delete", queue=names.new())["message_count"] == 0


def test_deleted_messages_are_not_dead_lettered(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = ch.own_queue(x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    ch.publish(b"m", queue)
    ch.call("queue.delete", queue=queue)
    assert ch.ready(dead) == 0


def test_if_unused_refuses_while_there_are_consumers(
    ch: RawChannel, queue: str, vhost: str
) -> None:
    other = ch.client.channel()
    tag = other.consume(queue)
    text = f"queue '{queue}' in vhost '{vhost}' in use"
    ch.refused(406, text, "queue.delete", queue=queue, if_unused=True)
    other.call("basic.cancel", consumer_tag=tag)
    ch.call("queue.delete", queue=queue, if_unused=True)


def test_if_empty_refuses_while_there_are_ready_messages(
    ch: RawChannel, queue: str, vhost: str
) -> None:
    ch.publish(b"m", queue)
    text = f"queue '{queue}' in vhost '{vhost}' not empty"
    ch.refused(406, text, "queue.delete", queue=queue, if_empty=True)
    ch.call("queue.purge", queue=queue)
    ch.call("queue.delete", queue=queue, if_empty=True)


def test_if_empty_does_not_mind_unacked_messages(ch: RawChannel, queue: str) -> None:
    ch.publish(b"m", queue)
    ch.got(queue, no_ack=False)
    ch.call("queue.delete", queue=queue, if_empty=True)


def test_not_empty_is_reported_before_in_use(ch: RawChannel, queue: str, vhost: str) -> None:
    other = ch.client.channel()
    other.call("basic.qos", prefetch_count=1)
    other.consume(queue)
    for _ in range(2):
        ch.publish(b"m", queue)
    other.delivery()
    ch.refused(
        406,
        f"queue '{queue}' in vhost '{vhost}' not empty",
        "queue.delete",
        queue=queue,
        if_unused=True,
        if_empty=True,
    )


def test_delete_cancels_consumers_after_delete_ok(ch: RawChannel, queue: str) -> None:
    other = ch.client.channel()
    mine, theirs = ch.consume(queue), other.consume(queue)
    ch.call("queue.delete", queue=queue)
    for channel, tag in ((ch, mine), (other, theirs)):
        cancel = channel.expect("basic.cancel")
        assert (cancel["consumer_tag"], cancel["nowait"]) == (tag, True)
    ch.ping()


def test_clients_without_the_capability_are_not_told_of_a_cancel(
    raw: Raw, ch: RawChannel, queue: str
) -> None:
    other = raw(capabilities={"consumer_cancel_notify": False}).channel()
    other.consume(queue)
    ch.call("queue.delete", queue=queue)
    other.expect_silence()


def test_messages_unacked_in_a_deleted_queue_may_still_be_acked(ch: RawChannel, queue: str) -> None:
    ch.publish(b"m", queue)
    tag = ch.got(queue, no_ack=False)["delivery_tag"]
    ch.call("queue.delete", queue=queue)
    ch.ack(tag)
    ch.ping()


def test_unused_queue_expires(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    ch.declare(queue, arguments={"x-expires": 100})
    expires(ch, queue)


def test_consumer_keeps_a_queue_from_expiring(client: RawClient, names: Names) -> None:
    ch, other = client.channel(), client.channel()
    queue = names.new()
    ch.declare(queue, arguments={"x-expires": 300})
    tag = other.consume(queue)
    time.sleep(0.7)
    assert ch.queue_exists(queue)
    other.call("basic.cancel", consumer_tag=tag)
    deadline = time.monotonic() + PATIENCE_S
    # Each look at the queue gives it another term, so they must be further apart than that.
    while ch.queue_exists(queue):
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.parametrize("use", ["declare", "passive declare", "get"])
def test_use_of_a_queue_gives_it_another_term(ch: RawChannel, names: Names, use: str) -> None:
    queue = names.new()
    # A busy machine may be half a second late.
    arguments = {"x-expires": 1200}
    ch.declare(queue, arguments=arguments)
    for _ in range(4):
        time.sleep(0.4)
        if use == "get":
            ch.get(queue)
        else:
            ch.declare(queue, passive=use == "passive declare", arguments=arguments)
    assert ch.queue_exists(queue)


def test_publishing_is_not_use_of_a_queue(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    ch.declare(queue, arguments={"x-expires": 300})
    for _ in range(6):
        time.sleep(0.1)
        ch.publish(b"m", queue)
    expires(ch, queue)


def test_expired_queue_dead_letters_nothing(ch: RawChannel, names: Names) -> None:
    dead, queue = ch.own_queue(), names.new()
    ch.declare(
        queue,
        arguments={
            "x-expires": 100,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
    )
    ch.publish(b"m", queue)
    expires(ch, queue)
    assert ch.ready(dead) == 0
