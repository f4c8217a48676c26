"""Transactions: reference 7."""

import pytest

from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Transactions"


@pytest.fixture
def tx(ch: RawChannel) -> RawChannel:
    """A channel in a transaction."""
    ch.call("tx.select")
    return ch


def others_ready(channel: RawChannel, queue: str) -> int:
    """The number of messages that another channel sees."""
    other = channel.client.channel()
    count = other.ready(queue)
    other.close()
    return count


def test_select_may_be_said_twice(tx: RawChannel) -> None:
    tx.call("tx.select")


@pytest.mark.parametrize("method", ["tx.commit", "tx.rollback"])
def test_without_select_there_is_nothing_to_end(ch: RawChannel, method: str) -> None:
    ch.refused(406, "channel is not transactional", method)


def test_confirms_and_transactions_exclude_each_other(ch: RawChannel) -> None:
    ch.call("tx.select")
    ch.refused(406, "cannot switch from tx to confirm mode", "confirm.select")
    ch.call("confirm.select")
    ch.refused(406, "cannot switch from confirm to tx mode", "tx.select")


def test_publishes_are_seen_after_commit(tx: RawChannel) -> None:
    queue = tx.own_queue()
    tx.publish(b"1", queue)
    tx.publish(b"2", queue)
    tx.ping()
    assert others_ready(tx, queue) == 0
    tx.call("tx.commit")
    assert others_ready(tx, queue) == 2
    assert tx.bodies(queue) == [b"1", b"2"]


def test_rollback_drops_publishes(tx: RawChannel) -> None:
    queue = tx.own_queue()
    tx.publish(b"m", queue)
    tx.call("tx.rollback")
    tx.call("tx.commit")
    assert others_ready(tx, queue) == 0


def test_next_transaction_starts_at_once(tx: RawChannel) -> None:
    queue = tx.own_queue()
    for number in range(3):
        tx.publish(b"m", queue)
        assert others_ready(tx, queue) == number
        tx.call("tx.commit")
    assert others_ready(tx, queue) == 3


def test_acks_count_after_commit(tx: RawChannel) -> None:
    queue = tx.own_queue()
    for number in range(2):
        tx.publish(b"%d" % number, queue)
    tx.call("tx.commit")
    tx.ack(tx.got(queue, no_ack=False)["delivery_tag"])
    tx.ack(tx.got(queue, no_ack=False)["delivery_tag"])
    tx.call("tx.commit")
    tx.close()
    assert others_ready(tx, queue) == 0


def test_acks_without_commit_are_undone_by_close(tx: RawChannel) -> None:
    queue = tx.own_queue()
    tx.publish(b"m", queue)
    tx.call("tx.commit")
    tx.ack(tx.got(queue, no_ack=False)["delivery_tag"])
    tx.close()
    assert others_ready(tx, queue) == 1


def test_tag_acked_in_the_transaction_is_unknown(tx: RawChannel) -> None:
    queue = tx.own_queue()
    tx.publish(b"m", queue)
    tx.call("tx.commit")
    tag = tx.got(queue, no_ack=False)["delivery_tag"]
    tx.ack(tag)
    tx.refused(406, f"unknown delivery tag {tag}", "basic.ack", delivery_tag=tag)


def test_rollback_makes_acked_tags_outstanding_again(tx: RawChannel) -> None:
    queue = tx.own_queue()
    tx.publish(b"m", queue)
    tx.call("tx.commit")
    tag = tx.got(queue, no_ack=False)["delivery_tag"]
    tx.ack(tag)
    tx.call("tx.rollback")
    assert others_ready(tx, queue) == 0
    tx.ack(tag)
    tx.call("tx.commit")
    tx.close()
    assert others_ready(tx, queue) == 0


def test_rollback_delivers_nothing_again(tx: RawChannel) -> None:
    queue = tx.own_queue()
    tx.client.channel().publish(b"m", queue)
    tx.consume(queue)
    tx.ack(tx.delivery(b"m")["delivery_tag"])
    tx.call("tx.rollback")
    tx.expect_silence(queue)


def test_nacks_count_after_commit(tx: RawChannel) -> None:
    queue = tx.own_queue()
    tx.publish(b"m", queue)
    tx.call("tx.commit")
    tx.nack(tx.got(queue, no_ack=False)["delivery_tag"])
    tx.ping()
    assert others_ready(tx, queue) == 0
    tx.call("tx.commit")
    tx.becomes_ready(queue, 1)
    assert tx.got(queue, b"m")["redelivered"] is True


def test_closing_the_channel_rolls_back(tx: RawChannel) -> None:
    queue = tx.own_queue()
    tx.publish(b"m", queue)
    tx.close()
    assert others_ready(tx, queue) == 0


def test_bad_publish_is_refused_at_once(tx: RawChannel, names: Names, vhost: str) -> None:
    exchange = names.new()
    tx.publish(b"m", "key", exchange)
    tx.expect_close(404, f"no exchange '{exchange}' in vhost '{vhost}'")


def test_returns_come_at_commit_and_before_commit_ok(tx: RawChannel) -> None:
    tx.publish(b"m", "nowhere", mandatory=True)
    tx.expect_silence()
    tx.send("tx.commit")
    assert tx.expect("basic.return").body == b"m"
    tx.expect("tx.commit-ok")


def test_returns_of_a_rollback_do_not_come(tx: RawChannel) -> None:
    tx.publish(b"m", "nowhere", mandatory=True)
    tx.call("tx.rollback")
    tx.expect_silence()


def test_reject_by_a_length_limit_fails_the_commit(tx: RawChannel) -> None:
    queue = tx.own_queue(x_max_length=1, x_overflow="reject-publish")
    tx.publish(b"1", queue)
    tx.call("tx.commit")
    tx.publish(b"2", queue)
    tx.refused(406, "partial tx completion", "tx.commit")


def test_persistent_messages_are_committed(tx: RawChannel, names: Names) -> None:
    queue = names.new()
    tx.declare(queue, durable=True)
    for _ in range(10):
        tx.publish(b"m", queue, delivery_mode=2)
    tx.call("tx.commit")
    assert others_ready(tx, queue) == 10


def test_empty_commit_is_answered(tx: RawChannel) -> None:
    for _ in range(3):
        tx.call("tx.commit")
        tx.call("tx.rollback")


def test_transaction_of_one_channel_does_not_bind_another(tx: RawChannel) -> None:
    queue = tx.own_queue()
    other = tx.client.channel()
    other.publish(b"m", queue)
    other.ping()
    assert tx.ready(queue) == 1


def test_commit_finds_a_queue_of_the_same_name(tx: RawChannel, names: Names) -> None:
    """The binding is looked up at publish; the queue by its name, at commit."""
    queue = names.new()
    tx.declare(queue, exclusive=True)
    tx.publish(b"m", queue)
    tx.call("queue.delete", queue=queue)
    tx.declare(queue, exclusive=True)
    tx.call("tx.commit")
    assert tx.ready(queue) == 1


def test_mandatory_message_whose_queue_is_gone_at_commit_is_returned(
    tx: RawChannel, names: Names
) -> None:
    queue = names.new()
    tx.declare(queue, exclusive=True)
    tx.publish(b"m", queue, mandatory=True)
    tx.call("queue.delete", queue=queue)
    tx.send("tx.commit")
    assert tx.expect("basic.return").body == b"m"
    tx.expect("tx.commit-ok")
