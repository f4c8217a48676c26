"""Transactions: nothing happens before commit, and commit-ok means that all of it is safe."""

from __future__ import annotations

import pytest
from pamqp import commands
from pipe import Broker, Client, publish_frames
from stores import SlowQueues

from warren.core.field import Field, longstr


@pytest.fixture
def client(broker: Broker) -> Client:
    """A client whose channel 1 is transactional; channel 2 is not."""
    return transactional(broker)


def transactional(broker: Broker) -> Client:
    client = broker.connects()
    client.opens_channel(1)
    client.opens_channel(2)
    client.sends(commands.Tx.Select)
    client.receives(commands.Tx.SelectOk)
    client.declares("q")
    return client


def commits(client: Client) -> None:
    client.sends(commands.Tx.Commit)
    client.receives(commands.Tx.CommitOk)


def rolls_back(client: Client) -> None:
    client.sends(commands.Tx.Rollback)
    client.receives(commands.Tx.RollbackOk)


def test_publishes_reach_their_queues_at_commit(client: Client) -> None:
    client.publishes("q", b"1")
    client.publishes("q", b"2")
    assert client.counts("q", 2) == (0, 0)
    commits(client)
    assert client.counts("q", 2) == (2, 0)


def test_publishes_that_are_rolled_back_never_happened(client: Client) -> None:
    client.publishes("q")
    rolls_back(client)
    commits(client)
    assert client.counts("q", 2) == (0, 0)


def test_returns_are_written_at_commit(client: Client) -> None:
    client.publishes("nobody", b"back", mandatory=True)
    client.receives_nothing()
    client.sends(commands.Tx.Commit)
    assert client.receives_content(commands.Basic.Return).body == b"back"
    client.receives(commands.Tx.CommitOk)


def test_a_missing_exchange_is_reported_at_the_publish(client: Client) -> None:
    client.publishes("q", exchange="nowhere")
    client.receives_close(404)


def test_rollback_makes_judged_messages_outstanding_again(client: Client) -> None:
    for body in (b"1", b"2", b"3", b"4"):
        client.publishes("q", body, channel=2)
    client.consumes("q")
    assert client.receives_bodies() == [b"1", b"2", b"3", b"4"]
    client.acks(2)
    client.nacks(1)
    client.acks(4, multiple=True)
    rolls_back(client)
    client.receives_nothing()
    client.acks(4, multiple=True)
    commits(client)
    assert client.broker.queue("q").unacked == 0
    assert client.counts("q", 2) == (0, 1)


def test_a_tag_acknowledged_in_the_transaction_is_not_outstanding(client: Client) -> None:
    client.publishes("q", channel=2)
    client.gets("q")
    client.acks(1)
    client.acks(1)
    assert "unknown delivery tag 1" in client.receives_close(406).reply_text


def test_rolling_back_many_acknowledgements_takes_no_longer_than_making_them(
    client: Client,
) -> None:
    """Each may come alone; putting them back one by one took time by their square."""
    count = 3000
    for _ in range(count):
        client.publishes("q", channel=2)
    client.consumes("q")
    client.receives_deliveries()
    sorts = 0
    channel = client.connection.channels[1]
    put_back = type(channel).put_back
    for tag in range(1, count + 1):
        client.acks(tag)

    def counted(channel: object, unacked: dict[int, object]) -> None:
        nonlocal sorts
        sorts += 1
        put_back(channel, unacked)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(channel), "put_back", counted)
        rolls_back(client)
    assert sorts <= 1
    assert sorted(channel.unacked) == list(range(1, count + 1))


def test_nacked_messages_go_back_at_commit(client: Client) -> None:
    client.publishes("q", b"1", channel=2)
    client.gets("q")
    client.nacks(1)
    assert client.counts("q", 2) == (0, 0)
    commits(client)
    fetched = client.gets("q")
    assert fetched is not None and fetched.method.redelivered


def test_a_message_a_full_queue_refuses_fails_the_commit(client: Client) -> None:
    arguments = {"x-max-length": Field("l", 0), "x-overflow": longstr("reject-publish")}
    client.declares("full", arguments=arguments)
    client.publishes("full")
    client.publishes("q")
    client.sends(commands.Tx.Commit)
    assert "partial tx completion" in client.receives_close(406).reply_text
    assert client.counts("q", 2) == (1, 0)


def test_a_commit_that_a_queue_refuses_acknowledges_nothing(client: Client) -> None:
    arguments = {"x-max-length": Field("l", 0), "x-overflow": longstr("reject-publish")}
    client.declares("full", arguments=arguments)
    client.publishes("q", b"moved", channel=2)
    assert client.gets("q") is not None
    client.publishes("full", b"moved")
    client.acks(1)
    client.sends(commands.Tx.Commit)
    assert "partial tx completion" in client.receives_close(406).reply_text
    again = client.gets("q", channel=2)
    assert again is not None and again.body == b"moved" and again.method.redelivered


def test_a_queue_deleted_before_the_commit_gets_nothing(client: Client) -> None:
    client.declares("brief", arguments={"x-message-ttl": Field("l", 1000)})
    queue = client.broker.queue("brief")
    client.publishes("brief")
    client.sends(commands.Queue.Delete, 2, queue="brief")
    client.receives(commands.Queue.DeleteOk)
    commits(client)
    assert queue.backing.length == 0
    assert not client.broker.clock.timers


@pytest.mark.parametrize("kind", [commands.Tx.Commit, commands.Tx.Rollback])
def test_a_channel_that_is_not_transactional_cannot(client: Client, kind: type) -> None:
    client.sends(kind, 2)
    assert "channel is not transactional" in client.receives_close(406).reply_text


def test_a_channel_confirms_or_is_transactional(client: Client) -> None:
    client.sends(commands.Confirm.Select)
    assert "cannot switch from tx to confirm mode" in client.receives_close(406).reply_text
    client.selects_confirms(2)
    client.sends(commands.Tx.Select, 2)
    assert "cannot switch from confirm to tx mode" in client.receives_close(406).reply_text


class TestOnASlowDisk:
    @pytest.fixture
    def queues(self) -> SlowQueues:
        return SlowQueues()

    @pytest.fixture
    def client(self, queues: SlowQueues) -> Client:
        return transactional(Broker(new_backing_queue=queues.new, consumer_timeout_s=60.0))

    def test_commit_ok_waits_until_every_message_is_safe(
        self, client: Client, queues: SlowQueues
    ) -> None:
        for _ in range(2):
            client.publishes("q", delivery_mode=2)
        client.publishes("q")
        client.sends(commands.Tx.Commit)
        queues.settle()
        client.receives_nothing()
        queues.settle()
        client.receives(commands.Tx.CommitOk)

    def test_nothing_is_read_before_commit_ok(self, client: Client, queues: SlowQueues) -> None:
        client.publishes("q", delivery_mode=2)
        client.sends(commands.Tx.Commit)
        client.sends(commands.Queue.Declare, 2, queue="q", passive=True)
        client.receives_nothing()
        assert not client.pipe.reading
        queues.settle()
        client.receives(commands.Tx.CommitOk)
        assert client.receives(commands.Queue.DeclareOk).message_count == 1

    def test_a_commit_that_failed_says_nothing_when_the_rest_is_safe(
        self, client: Client, queues: SlowQueues
    ) -> None:
        arguments = {"x-max-length": Field("l", 0), "x-overflow": longstr("reject-publish")}
        client.declares("full", channel=2, arguments=arguments)
        client.publishes("q", delivery_mode=2)
        client.publishes("full", delivery_mode=2)
        client.sends(commands.Tx.Commit)
        client.receives_close(406)
        queues.settle()
        client.receives_nothing()
        assert client.pipe.reading

    def test_a_channel_closed_during_its_commit_says_no_commit_ok(
        self, client: Client, queues: SlowQueues
    ) -> None:
        client.publishes("q", channel=2)
        client.gets("q")
        client.publishes("q", delivery_mode=2)
        client.sends(commands.Tx.Commit)
        client.broker.advance(200)
        client.receives_close(406)
        queues.settle()
        client.broker.settle()
        assert client.pipe.reading
        client.receives_nothing()
        client.opens_channel(1)


def test_messages_that_came_together_are_committed_in_order_whatever_way_they_go(
    client: Client,
) -> None:
    client.declares("limited", arguments={"x-max-length": Field("l", 1000)})
    client.sends(commands.Queue.Bind, queue="q", exchange="amq.fanout", nowait=True)
    client.sends(commands.Queue.Bind, queue="limited", exchange="amq.fanout", nowait=True)
    octets, both = b"", []
    for number in range(900):
        body = b"%d" % number
        if number % 300 < 200:
            octets += publish_frames(1, "", "q", body)
        elif number % 10 == 0:
            octets += publish_frames(1, "", "q", body, expiration="100000")
        else:
            octets += publish_frames(1, "amq.fanout", "", body)
            both.append(body)
    client.sends_octets(octets)
    client.broker.settle()
    channel = client.connection.channels[1]
    assert channel.transaction is not None and channel.transaction.published == 900
    assert client.counts("q", 2) == (0, 0)
    commits(client)
    assert channel.transaction.published == 0
    client.consumes("q", "c", 2, no_ack=True)
    assert client.receives_bodies() == [b"%d" % number for number in range(900)]
    client.consumes("limited", "l", 2, no_ack=True)
    assert client.receives_bodies() == both


def test_a_queue_that_is_deleted_before_the_commit_gets_nothing_and_one_of_its_name_does(
    client: Client,
) -> None:
    client.declares("gone")
    client.publishes("q", b"1")
    client.publishes("gone", b"2", mandatory=True)
    client.publishes("q", b"3")
    client.sends(commands.Queue.Delete, 2, queue="gone", nowait=True)
    client.sends(commands.Queue.Delete, 2, queue="q", nowait=True)
    client.declares("q", 2)
    client.sends(commands.Tx.Commit)
    assert client.receives_content(commands.Basic.Return).body == b"2"
    client.receives(commands.Tx.CommitOk)
    assert client.counts("q", 2) == (2, 0)
