"""Publishes that come in one piece: what differs between them is not lost, and what refuses one of
them is told to its channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pamqp import commands
from pipe import Broker, Client, publish_frames

from warren.core.field import Table, long, longstr
from warren.core.messages.message import Envelope
from warren.core.queues.classic_queue import ClassicQueue


def binds(client: Client, exchange: str, queues: list[str], arguments: Table) -> None:
    """Declare a fanout exchange and its queues."""
    client.sends(commands.Exchange.Declare, exchange=exchange, exchange_type="fanout")
    client.receives(commands.Exchange.DeclareOk)
    for queue in queues:
        client.declares(queue, arguments=arguments)
        client.sends(commands.Queue.Bind, queue=queue, exchange=exchange, nowait=True)


def test_mandatory_publishes_among_others_in_a_transaction_are_returned() -> None:
    client = Broker().connects()
    client.opens_channel(1)
    client.declares("q")
    client.sends(commands.Tx.Select)
    client.receives(commands.Tx.SelectOk)
    client.sends_octets(
        b"".join(
            publish_frames(1, "", "q", b"%d" % number, mandatory=number % 2 == 0)
            for number in range(4)
        )
    )
    client.sends(commands.Queue.Delete, queue="q")
    client.receives(commands.Queue.DeleteOk)
    client.sends(commands.Tx.Commit)
    returned = [client.receives_content(commands.Basic.Return).body for _ in range(2)]
    assert returned == [b"0", b"2"]
    client.receives(commands.Tx.CommitOk)


def test_each_message_of_a_read_lives_as_long_as_its_own_expiration_says() -> None:
    """Also where a header is like the one before, and for another queue."""
    broker = Broker()
    client = broker.connects()
    client.opens_channel(1)
    for queue in ("a", "b"):
        client.declares(queue)
    client.sends_octets(
        b"".join(
            publish_frames(1, "", queue, b"x", expiration=expiration, message_id=f"{number}")
            for queue, expiration in (("a", "5000"), ("b", "5000"), ("b", None), ("a", "20000"))
            for number in range(3)
        )
    )
    assert [client.counts(queue)[0] for queue in ("a", "b")] == [6, 6]
    broker.clock.advance(6)
    assert [client.counts(queue)[0] for queue in ("a", "b")] == [3, 3]
    broker.clock.advance(15)
    assert [client.counts(queue)[0] for queue in ("a", "b")] == [0, 3]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages queues have got in each call of `publish_many`."""
    counts: list[int] = []
    publish_many = ClassicQueue.publish_many

    def counted(queue: ClassicQueue, envelopes: Sequence[Envelope], *rest: Any) -> Any:
        counts.append(len(envelopes))
        return publish_many(queue, envelopes, *rest)

    monkeypatch.setattr(ClassicQueue, "publish_many", counted)
    return counts


@pytest.mark.parametrize(
    ("queue_arguments", "body", "properties"),
    [
        pytest.param({}, b"x", {}, id="nothing unusual"),
        pytest.param({}, b"x", {"expiration": "60000"}, id="an expiration"),
        pytest.param({}, b"x", {"user_id": "guest"}, id="a user id"),
        pytest.param({}, b"", {}, id="no body"),
        pytest.param({"x-message-ttl": long(60000)}, b"x", {}, id="a queue with a time to live"),
    ],
)
def test_publishes_of_one_read_are_handed_over_together(
    queue_arguments: Table,
    body: bytes,
    properties: dict[str, str],
    together: list[int],
) -> None:
    client = Broker().connects()
    client.opens_channel(1)
    client.declares("q", arguments=queue_arguments)
    publishes = [
        publish_frames(1, "", "q", body, message_id=f"{number:03}", **properties)
        for number in range(100)
    ]
    client.sends_octets(b"".join(publishes))
    assert together == [100]
    assert client.counts("q")[0] == 100


@pytest.mark.parametrize(("size", "calls"), [(10, [30, 30]), (5000, [])])
def test_persistent_messages_for_several_queues_are_handed_over_together_unless_they_are_large(
    size: int, calls: list[int], together: list[int]
) -> None:
    """A large one is on disk once, and for that the queues get it one after the other."""
    client = Broker().connects()
    client.opens_channel(1)
    for queue in ("q1", "q2"):
        client.declares(queue, durable=True)
        client.sends(commands.Queue.Bind, queue=queue, exchange="amq.fanout", routing_key="")
        client.receives(commands.Queue.BindOk)
    client.selects_confirms()
    publishes = [
        publish_frames(1, "amq.fanout", "", bytes(size), message_id=f"{number}", delivery_mode=2)
        for number in range(10, 40)
    ]
    client.sends_octets(b"".join(publishes))
    assert together == calls
    assert client.receives(commands.Basic.Ack).delivery_tag == 30
    assert [client.counts(queue)[0] for queue in ("q1", "q2")] == [30, 30]


def test_a_quota_that_dead_letters_use_up_closes_the_channel_whose_publish_is_refused() -> None:
    """Three queues send each message on to the fourth, so a publish to all of them adds four."""
    broker = Broker()
    client = broker.connects()
    for channel in (1, 2, 3):
        client.opens_channel(channel)
    binds(
        client,
        "all",
        ["dead1", "dead2", "dead3"],
        {
            "x-message-ttl": long(0),
            "x-dead-letter-exchange": longstr(""),
            "x-dead-letter-routing-key": longstr("limited"),
        },
    )
    binds(client, "all", ["limited"], {})
    client.declares("free")
    broker.node.vhost_limits.replace("/", {"max-queue-messages": 10})
    client.sends_octets(
        publish_frames(3, "", "free", b"3")
        + publish_frames(2, "", "free", b"2")
        + b"".join(publish_frames(1, "all", "", b"x") for _ in range(5))
    )
    close = client.receives_close(406)
    assert "message limit (10) of queues" in close.reply_text
    assert (close.class_id, close.method_id) == (60, 40)
    assert sorted(client.connection.channels) == [2, 3]
    assert client.counts("limited", 3)[0] == 12
    assert [client.gets("free", 3).body for _ in range(2)] == [b"3", b"2"]  # type: ignore[union-attr]
    assert client.gets("free", 3) is None


def test_a_quota_counts_publishes_that_were_gathered_for_other_queues() -> None:
    for limit in range(15, 30):
        broker = Broker()
        client = broker.connects()
        for channel in (1, 2):
            client.opens_channel(channel)
        queues = [f"q{number}" for number in range(10)]
        binds(client, "all", queues, {})
        client.declares("alone")
        broker.node.vhost_limits.replace("/", {"max-messages": limit})
        client.sends_octets(
            b"".join(publish_frames(1, "", "alone", b"%d" % number) for number in range(15))
            + publish_frames(2, "all", "", b"1")
            + publish_frames(2, "all", "", b"2")
        )
        client.broker.settle()
        assert 1 in client.connection.channels, limit
        assert len(broker.queue("alone")) == 15, limit
        assert len(broker.queue("q0")) == (limit >= 25), limit


def test_a_publish_that_reaches_no_queue_is_not_refused_when_a_quota_is_exceeded() -> None:
    broker = Broker()
    client = broker.connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.declares("q")
    client.publishes("q", b"1")
    client.publishes("q", b"2")
    client.broker.settle()
    client.frames()
    broker.node.vhost_limits.replace("/", {"max-messages": 1})
    client.publishes("nowhere", b"3", mandatory=True)
    assert client.receives_content(commands.Basic.Return).body == b"3"
    assert client.receives(commands.Basic.Ack).delivery_tag == 3
