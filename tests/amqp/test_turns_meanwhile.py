"""What happens while something goes on in turns: queues move, clients vanish, others use it."""

from __future__ import annotations

import pytest
from pamqp import commands
from pipe import Broker, Client, content_header, method_frame, publish_frames

from warren.amqp.publishing import QUEUES_AT_ONCE
from warren.amqp.settling import SETTLED_AT_ONCE
from warren.core.definitions.records import ExchangeRecord
from warren.core.exchanges import topic
from warren.core.field import Table, long, longstr
from warren.core.messages.message import Envelope
from warren.core.scheduling.turns import TURN_US
from warren.core.vhosts.ending import BINDINGS_AT_ONCE


def filled(client: Client, queue: str, count: int) -> None:
    client.declares(queue)
    for _ in range(count):
        client.publishes(queue, b"x")


def bound(client: Client, queue: str, exchange: str, count: int) -> None:
    for number in range(count):
        client.sends(
            commands.Queue.Bind,
            queue=queue,
            exchange=exchange,
            routing_key=f"{number}",
            nowait=True,
        )
    client.broker.settle()


def test_publish_to_many_reaches_a_queue_that_moved_meanwhile(
    broker: Broker, client: Client
) -> None:
    count = 4 * QUEUES_AT_ONCE
    for number in range(count):
        client.sends(commands.Queue.Declare, queue=f"q{number}", nowait=True)
        client.sends(commands.Queue.Bind, queue=f"q{number}", exchange="amq.fanout", nowait=True)
    broker.settle()
    client.selects_confirms()
    client.publishes("", exchange="amq.fanout")
    pending = [n for n in range(count) if not len(broker.queue(f"q{n}"))]
    assert pending
    name = f"q{pending[-1]}"
    broker.vhost._placement.move_in = lambda queue, moving: queue.move_in(moving.consumers)
    broker.vhost.renew_queue(broker.queue(name))
    assert client.receives(commands.Basic.Ack).delivery_tag == 1
    assert len(broker.queue(name)) == 1


def test_recover_in_turns_keeps_track_of_what_is_delivered_meanwhile(
    broker: Broker, client: Client
) -> None:
    many = 3 * SETTLED_AT_ONCE
    filled(client, "q", many)
    client.declares("remote")
    client.consumes("remote", "r")
    client.sends(commands.Basic.Consume, queue="q", consumer_tag="c", nowait=True)
    assert len(client.receives_deliveries()) == many
    channel = client.connection.channels[1]
    broker.node.turns.spend(TURN_US)
    client.sends(commands.Basic.Recover, requeue=True)
    assert channel._under_way is not None
    # What a RemoteQueue does (`delivered`): its leader does not know of the pause.
    queue = broker.queue("remote")
    message = queue.backing.publish_delivered(
        Envelope("", "remote", content_header(1), False, 0, None), b"x", None, None, 0
    )
    queue.unacked += 1
    channel.consumers["r"].take(message)
    tag = channel.last_delivery_tag
    client.sends(commands.Basic.Cancel, consumer_tag="c", nowait=True)
    client.frames()
    assert tag in channel.unacked
    client.acks(tag, multiple=True)
    broker.settle()
    assert tag not in channel.unacked


def test_channels_that_end_together_give_back_in_turns(broker: Broker, client: Client) -> None:
    channels = 50
    for number in range(2, channels + 2):
        client.opens_channel(number)
    for number in range(2, channels + 2):
        client.sets_prefetch(SETTLED_AT_ONCE, number)
    filled(client, "q", channels * SETTLED_AT_ONCE)
    for number in range(2, channels + 2):
        client.sends(
            commands.Basic.Consume, number, queue="q", consumer_tag=f"c{number}", nowait=True
        )
    broker.settle()
    assert broker.queue("q").unacked == channels * SETTLED_AT_ONCE
    turns = broker.node.turns
    turns.left_us = TURN_US
    client.pipe.ended = True
    client.connection.connection_lost()
    assert broker.queue("q").unacked > 0


def test_acknowledging_many_times_some_is_read_in_turns(broker: Broker, client: Client) -> None:
    count = 40
    filled(client, "q", count * SETTLED_AT_ONCE)
    client.consumes("q")
    assert len(client.receives_deliveries()) == count * SETTLED_AT_ONCE
    octets = b"".join(
        method_frame(1, commands.Basic.Ack, delivery_tag=(n + 1) * SETTLED_AT_ONCE, multiple=True)
        for n in range(count)
    )
    broker.node.turns.left_us = TURN_US
    client.sends_octets(octets)
    assert broker.queue("q").unacked > 0


def test_publishes_to_one_queue_after_the_other_are_read_in_turns(
    broker: Broker, client: Client
) -> None:
    names = [f"q{number}" for number in range(1000)]
    for name in names:
        client.sends(commands.Queue.Declare, queue=name, nowait=True)
    broker.settle()
    octets = b"".join([publish_frames(1, "", name, b"x") for name in names])
    broker.node.turns.left_us = TURN_US
    client.sends_octets(octets)
    assert len(broker.queue(names[0])) == 1
    assert len(broker.queue(names[-1])) == 0
    broker.settle()
    assert len(broker.queue(names[-1])) == 1


def test_alternate_exchanges_in_a_long_chain_cost_a_turn(broker: Broker, client: Client) -> None:
    count = 2000
    for number in range(count):
        alternate = {"alternate-exchange": longstr(f"x{number + 1}")}
        record = ExchangeRecord("direct", auto_delete=False, internal=False, arguments=alternate)
        broker.vhost._following.add_exchange(f"x{number}", record)
    client.declares("q")
    broker.node.turns.left_us = TURN_US
    octets = [publish_frames(1, "x0", f"k{number}", b"x") for number in range(5)]
    client.sends_octets(b"".join([*octets, publish_frames(1, "", "q", b"x")]))
    assert len(broker.queue("q")) == 0
    broker.settle()
    assert len(broker.queue("q")) == 1


def test_a_refused_delete_leaves_an_auto_delete_exchange(broker: Broker, client: Client) -> None:
    client.sends(commands.Exchange.Declare, exchange="x", exchange_type="direct", auto_delete=True)
    client.receives(commands.Exchange.DeclareOk)
    client.declares("q")
    bound(client, "q", "x", 3 * BINDINGS_AT_ONCE)
    other = broker.connects()
    other.opens_channel(1)
    broker.node.turns.left_us = -1
    client.sends(commands.Queue.Delete, queue="q", if_empty=True)
    assert "q" in broker.vhost.queues
    other.publishes("q")
    close = client.receives(commands.Channel.Close)
    assert "x" in broker.vhost.exchanges
    assert len(broker.vhost.bindings_to("queue", "q")) == 3 * BINDINGS_AT_ONCE
    assert close.reply_code == 406


def test_a_delete_whose_client_vanishes_is_whole_or_not_at_all(
    broker: Broker, client: Client
) -> None:
    client.declares("q")
    bound(client, "q", "amq.direct", 3 * BINDINGS_AT_ONCE)
    broker.node.turns.left_us = -1
    client.sends(commands.Queue.Delete, queue="q")
    assert "q" in broker.vhost.queues
    client.vanishes()
    left = len(broker.vhost.bindings_to("queue", "q"))
    assert ("q" in broker.vhost.queues) == (left > 2 * BINDINGS_AT_ONCE), left


def test_a_delete_with_condition_refused_after_the_client_vanished(
    broker: Broker, client: Client
) -> None:
    client.declares("q")
    bound(client, "q", "amq.direct", 3 * BINDINGS_AT_ONCE)
    broker.node.turns.left_us = -1
    client.sends(commands.Queue.Delete, queue="q", if_empty=True)
    broker.queue("q").publish(Envelope("", "q", content_header(1), False, 0, None), b"x", None, 0)
    client.vanishes()
    assert "q" in broker.vhost.queues
    assert len(broker.vhost.bindings_to("queue", "q")) == 3 * BINDINGS_AT_ONCE


def test_an_exchange_in_use_keeps_the_bindings_to_it(broker: Broker, client: Client) -> None:
    client.sends(commands.Exchange.Declare, exchange="x", exchange_type="direct")
    client.receives(commands.Exchange.DeclareOk)
    for number in range(2 * BINDINGS_AT_ONCE):
        client.sends(
            commands.Exchange.Bind,
            source="amq.direct",
            destination="x",
            routing_key=f"{number}",
            nowait=True,
        )
    client.declares("q")
    other = broker.connects()
    other.opens_channel(1)
    broker.node.turns.left_us = -1
    client.sends(commands.Exchange.Delete, exchange="x", if_unused=True)
    assert "x" in broker.vhost.exchanges
    other.sends(commands.Queue.Bind, queue="q", exchange="x", routing_key="k")
    client.receives(commands.Channel.Close)
    assert len(broker.vhost.bindings_to("exchange", "x")) == 2 * BINDINGS_AT_ONCE


def test_an_auto_delete_queue_in_use_again_stays(broker: Broker, client: Client) -> None:
    client.declares("q", auto_delete=True)
    bound(client, "q", "amq.direct", 3 * BINDINGS_AT_ONCE)
    client.consumes("q")
    other = broker.connects()
    other.opens_channel(1)
    broker.node.turns.left_us = -1
    client.sends(commands.Basic.Cancel, consumer_tag="c")
    assert "q" in broker.vhost.queues
    other.sends(commands.Basic.Consume, queue="q", consumer_tag="d")
    other.receives(commands.Basic.ConsumeOk)
    other.receives_nothing()
    assert "q" in broker.vhost.queues


def test_ttl_0_reaches_a_waiting_consumer_while_others_recover(
    broker: Broker, client: Client
) -> None:
    many = 3 * SETTLED_AT_ONCE
    filled(client, "q", many)
    client.consumes("q")
    assert len(client.receives_deliveries()) == many
    other = broker.connects()
    other.opens_channel(1)
    channel = client.connection.channels[1]
    channel.may_have_from(broker.queue("q"))
    other.declares("live")
    # The recovering channel got from it once, and has nothing of it any more.
    channel.may_have_from(broker.queue("live"))
    other.consumes("live", no_ack=True)
    broker.node.turns.left_us = -1
    client.sends(commands.Basic.Recover, requeue=True)
    assert channel._under_way is not None
    broker.queue("live").publish(
        Envelope("", "live", content_header(1), False, 0, 0), b"n", None, 0
    )
    assert other.receives_bodies() == [b"n"]


def test_a_commit_reaches_a_queue_that_moved_meanwhile(broker: Broker, client: Client) -> None:
    for number in range(3):
        client.declares(f"q{number}")
        client.sends(commands.Queue.Bind, queue=f"q{number}", exchange="amq.fanout", nowait=True)
    client.sends(commands.Tx.Select)
    client.receives(commands.Tx.SelectOk)
    client.publishes("", exchange="amq.fanout")
    broker.settle()
    broker.node.turns.left_us = 34  # tx.commit, one publish, one queue
    client.sends(commands.Tx.Commit)
    name = next((f"q{n}" for n in range(3) if not len(broker.queue(f"q{n}"))), None)
    if name is None:
        raise RuntimeError("commit was at once")
    broker.vhost._placement.move_in = lambda queue, moving: queue.move_in(moving.consumers)
    broker.vhost.renew_queue(broker.queue(name))
    client.receives(commands.Tx.CommitOk)
    assert [len(broker.queue(f"q{n}")) for n in range(3)] == [1, 1, 1]


def test_policies_reach_exchanges_in_turns(broker: Broker) -> None:
    for number in range(20_000):
        broker.vhost._following.add_exchange(
            f"x{number}", ExchangeRecord("direct", auto_delete=False, internal=False, arguments={})
        )
    broker.settle()
    turns = broker.node.turns
    turns.left_us = TURN_US
    broker.vhost.apply_policies()
    assert turns.left_us < TURN_US - 1000


def test_publishes_whose_queues_are_found_in_turns_keep_their_order(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "WIDE", 0)
    monkeypatch.setattr(topic, "NODES_A_TURN", 1)
    client.declares("q")
    for pattern in ("#.a", "a.#", "*.b.#.a"):
        client.sends(
            commands.Queue.Bind, queue="q", exchange="amq.topic", routing_key=pattern, nowait=True
        )
    for number, key in enumerate(["a", "b.b.a.a", "b.b", "x.b.c.a"]):
        client.publishes(key, b"topic %d" % number, exchange="amq.topic")
        client.publishes("q", b"direct %d" % number)
    broker.settle()
    client.consumes("q")
    broker.settle()
    assert client.receives_bodies() == [
        b"topic 0",
        b"direct 0",
        b"topic 1",
        b"direct 1",
        b"direct 2",
        b"topic 3",
        b"direct 3",
    ]


@pytest.mark.parametrize("lives", [{}, {"x-message-ttl": long(0)}])
def test_dead_letters_whose_queues_are_found_in_turns_keep_their_order(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, lives: Table
) -> None:
    monkeypatch.setattr(topic, "WIDE", 0)
    monkeypatch.setattr(topic, "NODES_A_TURN", 1)
    client.declares("new")
    client.sends(
        commands.Queue.Bind, queue="new", exchange="amq.topic", routing_key="#.a.#", nowait=True
    )
    arguments = {
        "x-dead-letter-exchange": longstr("amq.topic"),
        "x-dead-letter-routing-key": longstr("b.a.a"),
        **lives,
    }
    client.declares("old", arguments=arguments)
    bodies = [b"%d" % number for number in range(20)]
    for body in bodies:
        client.publishes("old", body)
    if not lives:
        client.consumes("old")
        client.receives_deliveries()
        client.nacks(len(bodies), multiple=True, requeue=False)
    broker.settle()
    client.consumes("new", "n")
    broker.settle()
    assert client.receives_bodies() == bodies


def test_dead_letters_for_very_many_queues_reach_all_in_order_and_others_come_in_between(
    broker: Broker, client: Client
) -> None:
    count = 5 * QUEUES_AT_ONCE
    for number in range(count):
        client.sends(commands.Queue.Declare, queue=f"q{number}", nowait=True)
        client.sends(commands.Queue.Bind, queue=f"q{number}", exchange="amq.fanout", nowait=True)
    client.declares("old", arguments={"x-dead-letter-exchange": longstr("amq.fanout")})
    client.publishes("old", b"1")
    client.publishes("old", b"2")
    client.consumes("old")
    broker.settle()
    client.receives_deliveries()
    client.nacks(2, multiple=True, requeue=False)
    had = [len(broker.queue(f"q{number}")) for number in range(count)]
    assert 0 in had, "the turn does not hold all of it"
    client.sends(commands.Queue.Delete, queue=f"q{count - 1}", nowait=True)
    broker.settle()
    for number in range(count - 1):
        client.consumes(f"q{number}", f"{number}")
        broker.settle()
        assert client.receives_bodies() == [b"1", b"2"]
    assert not len(broker.queue("old"))
