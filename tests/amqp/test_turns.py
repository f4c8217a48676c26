"""What one client asks for goes on in turns where it is much, and others are served in between."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest
from pamqp import commands
from pipe import Broker, Client, method_frame, publish_frames
from stores import SlowQueues

from warren.amqp.publishing import QUEUES_AT_ONCE
from warren.amqp.settling import SETTLED_AT_ONCE
from warren.core.access.clients_elsewhere import OpenCounts
from warren.core.field import Field, long, longstr
from warren.core.queues.consumers import Consumer
from warren.core.queues.local_queue import LocalQueue
from warren.core.scheduling.turns import TURN_US
from warren.core.vhosts.ending import BINDINGS_AT_ONCE
from warren.core.vhosts.ending import QUEUES_AT_ONCE as QUEUES_ENDED_AT_ONCE

CHANNELS = 300
MANY = 3 * SETTLED_AT_ONCE + 7


@pytest.fixture
def other(broker: Broker) -> Client:
    """Somebody else, with a queue of its own."""
    other = broker.connects()
    other.opens_channel(1)
    other.declares("other")
    return other


def declare_bound_to_fanout(client: Client, count: int, prefix: str = "q") -> None:
    for number in range(count):
        client.sends(commands.Queue.Declare, queue=f"{prefix}{number}", nowait=True)
        client.sends(
            commands.Queue.Bind, queue=f"{prefix}{number}", exchange="amq.fanout", nowait=True
        )
    client.broker.settle()
    client.receives_nothing()


def ready(broker: Broker, count: int, prefix: str = "q") -> int:
    """Messages in that many queues."""
    return sum(len(broker.queue(f"{prefix}{number}")) for number in range(count))


def filled(client: Client, queue: str, count: int) -> None:
    """A queue with messages numbered from 0."""
    client.declares(queue)
    for number in range(count):
        client.publishes(queue, b"%d" % number)


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body) for body in bodies]


def test_a_publish_to_very_many_queues_is_interrupted_by_others(
    broker: Broker, client: Client, other: Client
) -> None:
    count = 4 * QUEUES_AT_ONCE
    declare_bound_to_fanout(client, count)
    client.selects_confirms()
    client.publishes("", exchange="amq.fanout")
    client.publishes("q0", b"after")
    assert ready(broker, count) < count
    other.publishes("other")
    assert len(broker.queue("other")) == 1
    assert ready(broker, count) < count
    assert [client.receives(commands.Basic.Ack).delivery_tag for _ in range(2)] == [1, 2]
    assert ready(broker, count) == count + 1


def test_such_a_publish_reaches_all_queues_though_its_client_is_gone(
    broker: Broker, client: Client
) -> None:
    count = 4 * QUEUES_AT_ONCE
    declare_bound_to_fanout(client, count)
    client.publishes("", exchange="amq.fanout")
    assert ready(broker, count) < count
    client.vanishes()
    assert ready(broker, count) == count


def test_such_a_publish_is_confirmed_when_all_queues_have_it_safe() -> None:
    queues = SlowQueues()
    broker = Broker(new_backing_queue=queues.new)
    client = broker.connects()
    client.opens_channel(1)
    count = 2 * QUEUES_AT_ONCE
    for number in range(count):
        client.sends(commands.Queue.Declare, queue=f"q{number}", durable=True, nowait=True)
        client.sends(commands.Queue.Bind, queue=f"q{number}", exchange="amq.fanout", nowait=True)
    broker.settle()
    client.selects_confirms()
    client.publishes("", exchange="amq.fanout", delivery_mode=2)
    client.receives_nothing()
    while queues.unsafe:
        queues.settle()
    assert client.receives(commands.Basic.Ack).delivery_tag == 1


def test_many_publishes_to_many_queues_are_read_in_turns(broker: Broker, client: Client) -> None:
    declare_bound_to_fanout(client, 100)
    client.sends_octets(publish_frames(1, "amq.fanout", "", b"x") * 500)
    assert 0 < ready(broker, 100) < 50_000
    broker.settle()
    assert ready(broker, 100) == 50_000


def test_a_run_of_publishes_to_a_queue_whose_messages_die_is_read_in_turns(
    broker: Broker, client: Client
) -> None:
    client.declares("dead")
    dying: dict[str, Any] = {
        "x-dead-letter-exchange": longstr(""),
        "x-dead-letter-routing-key": longstr("dead"),
        "x-message-ttl": long(0),
    }
    client.declares("q", arguments=dying)
    client.sends_octets(publish_frames(1, "", "q", b"x") * 1000)
    assert 0 < broker.queue("q").published < 1000
    broker.settle()
    assert len(broker.queue("dead")) == 1000


@pytest.mark.parametrize("verdict", ["ack", "reject"])
def test_a_verdict_on_very_many_messages_is_carried_out_in_turns(
    broker: Broker, client: Client, verdict: str
) -> None:
    filled(client, "q", MANY)
    client.consumes("q")
    assert len(client.receives_deliveries()) == MANY
    if verdict == "ack":
        client.acks(MANY, multiple=True)
    else:
        client.nacks(MANY, multiple=True, requeue=False)
    assert 0 < broker.queue("q").unacked < MANY
    broker.settle()
    assert broker.queue("q").unacked == 0


def test_it_is_carried_out_to_its_end_though_the_client_is_gone(
    broker: Broker, client: Client
) -> None:
    filled(client, "q", MANY)
    client.consumes("q")
    assert len(client.receives_deliveries()) == MANY
    client.acks(MANY, multiple=True)
    assert broker.queue("q").unacked
    client.vanishes()
    queue = broker.queue("q")
    assert (queue.unacked, len(queue), queue.acked) == (0, 0, MANY)
    assert not broker.node.giving_back


def test_messages_that_come_back_in_turns_are_not_overtaken(
    broker: Broker, client: Client, other: Client
) -> None:
    filled(client, "q", MANY)
    client.sets_prefetch(MANY)
    client.consumes("q")
    assert len(client.receives_deliveries()) == MANY
    client.publishes("q", b"%d" % MANY)
    other.consumes("q", no_ack=True)
    assert numbers(other.receives_bodies()) == [MANY]
    client.publishes("q", b"%d" % (MANY + 1))
    assert numbers(other.receives_bodies()) == [MANY + 1]
    client.nacks(MANY, multiple=True)
    assert not broker.node.giving_back
    client.sends(commands.Basic.Cancel, consumer_tag="c", nowait=True)
    redelivered = other.receives_bodies() + client.receives_bodies()
    assert sorted(numbers(redelivered)) == list(range(MANY))


def test_a_client_that_vanishes_with_very_many_messages_gives_them_back_in_order(
    broker: Broker, client: Client, other: Client
) -> None:
    filled(client, "q", MANY)
    client.consumes("q")
    assert len(client.receives_deliveries()) == MANY
    other.consumes("q", no_ack=True)
    queue = broker.queue("q")
    client.pipe.lose()
    other.publishes("q", b"%d" % MANY)
    assert len(broker.node.unacked_of(queue)) + len(queue) == MANY + 1
    assert list(broker.node.giving_back)
    assert numbers(other.receives_bodies()) == list(range(MANY + 1))
    assert queue.unacked == 0 and not broker.node.giving_back


def test_other_nodes_are_told_once_of_a_connection_that_ends(broker: Broker) -> None:
    told: list[OpenCounts] = []
    broker.node.vhost_limits.elsewhere.tell = lambda place, more: told.append(more)
    client = broker.connects()
    for number in range(1, CHANNELS + 1):
        client.opens_channel(number)
    client.pipe.lose()
    broker.settle()
    assert told == [(1, 0), *[(0, 1)] * CHANNELS, (-1, -CHANNELS)]


@pytest.mark.parametrize("end", ["is lost", "is closed"])
def test_a_connection_of_very_many_channels_ends_in_turns(broker: Broker, end: str) -> None:
    client = broker.connects()
    for number in range(1, CHANNELS + 1):
        client.opens_channel(number)
    filled(client, "q", 1)
    assert client.gets("q", channel=CHANNELS) is not None
    queue, counts = broker.queue("q"), broker.node.counts
    if end == "is lost":
        client.pipe.lose()
    else:
        closing = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}
        client.sends(commands.Connection.Close, 0, **closing)
    assert counts.channels_closed < CHANNELS
    assert len(broker.node.unacked_of(queue)) == queue.unacked == 1
    broker.settle()
    assert counts.channels_closed == CHANNELS and not broker.node.giving_back
    assert (queue.unacked, len(queue)) == (0, 1)


def test_a_large_transaction_is_committed_in_turns_and_whole(
    broker: Broker, client: Client, other: Client
) -> None:
    count = 2 * TURN_US
    client.sends(commands.Tx.Select)
    client.receives(commands.Tx.SelectOk)
    client.declares("q")
    client.sends_octets(publish_frames(1, "", "q", b"x") * count)
    broker.settle()
    client.sends(commands.Tx.Commit)
    assert 0 < len(broker.queue("q")) < count
    client.vanishes()
    assert len(broker.queue("q")) == count


def test_a_large_transaction_of_verdicts_is_committed_in_turns(
    broker: Broker, client: Client
) -> None:
    filled(client, "q", MANY)
    client.sends(commands.Tx.Select)
    client.receives(commands.Tx.SelectOk)
    client.consumes("q")
    assert len(client.receives_deliveries()) == MANY
    client.acks(MANY, multiple=True)
    broker.settle()
    assert broker.queue("q").unacked == MANY
    client.sends(commands.Tx.Commit)
    assert 0 < broker.queue("q").unacked < MANY
    assert len(broker.node.unacked_of(broker.queue("q"))) == broker.queue("q").unacked
    client.receives(commands.Tx.CommitOk)
    assert broker.queue("q").unacked == 0


def bind_often(client: Client, queue: str, count: int) -> None:
    for number in range(count):
        client.sends(
            commands.Queue.Bind,
            queue=queue,
            exchange="amq.direct",
            routing_key=str(number),
            nowait=True,
        )
    client.broker.settle()


def test_a_queue_with_very_many_bindings_is_deleted_in_turns(
    broker: Broker, client: Client
) -> None:
    count = 10 * BINDINGS_AT_ONCE
    client.declares("q")
    bind_often(client, "q", count)
    client.sends(commands.Queue.Delete, queue="q")
    broker.clock.turn()
    assert 0 < len(broker.vhost.bindings_to("queue", "q")) < count
    client.receives(commands.Queue.DeleteOk)
    assert "q" not in broker.vhost.queues and not list(broker.vhost.bindings())


def test_such_a_queue_keeps_its_bindings_when_it_may_not_be_deleted_after_all(
    broker: Broker, client: Client, other: Client
) -> None:
    count = 10 * BINDINGS_AT_ONCE
    client.declares("q")
    bind_often(client, "q", count)
    client.sends(commands.Queue.Delete, queue="q", if_unused=True)
    assert "q" in broker.vhost.queues
    other.sends(commands.Basic.Consume, queue="q", consumer_tag="c")
    client.receives_close(406)
    assert len(broker.vhost.bindings_to("queue", "q")) == count


def test_an_exchange_with_very_many_bindings_is_deleted_in_turns(
    broker: Broker, client: Client
) -> None:
    count = 10 * BINDINGS_AT_ONCE
    client.declares("q")
    client.sends(commands.Exchange.Declare, exchange="x", exchange_type="direct")
    client.receives(commands.Exchange.DeclareOk)
    for number in range(count):
        client.sends(
            commands.Queue.Bind, queue="q", exchange="x", routing_key=str(number), nowait=True
        )
    broker.settle()
    client.sends(commands.Exchange.Delete, exchange="x")
    broker.clock.turn()
    assert 0 < len(broker.vhost.exchanges["x"].bindings) < count
    client.receives(commands.Exchange.DeleteOk)
    assert "x" not in broker.vhost.exchanges


def test_very_many_exclusive_queues_go_in_turns(broker: Broker, client: Client) -> None:
    count = 20 * QUEUES_ENDED_AT_ONCE
    for number in range(count):
        client.sends(commands.Queue.Declare, queue=f"q{number}", exclusive=True, nowait=True)
    broker.settle()
    client.pipe.lose()
    assert 0 < len(broker.vhost.queues) < count
    broker.settle()
    assert not broker.vhost.queues


def test_very_many_queues_follow_a_policy_in_turns_and_the_last_one_counts(
    broker: Broker, client: Client
) -> None:
    for number in range(500):
        client.sends(commands.Queue.Declare, queue=f"q{number}", nowait=True)
    broker.settle()
    queues = [broker.queue(f"q{number}") for number in range(500)]
    broker.node.policies.set("/", "p", "^q", {"max-length": 1})
    assert 0 < sum(queue.settings.max_length == 1 for queue in queues) < 500
    broker.node.policies.set("/", "p", "^q", {"max-length": 2})
    broker.settle()
    assert all(queue.settings.max_length == 2 for queue in queues)


def test_a_channel_with_many_consumers_of_a_queue_leaves_it_at_once(
    broker: Broker, client: Client, other: Client
) -> None:
    client.declares("q", arguments={"x-single-active-consumer": Field("t", True)})
    for number in range(300):
        client.consumes("q", f"c{number}")
    other.consumes("q", "last")
    client.vanishes()
    queue = broker.queue("q")
    assert [consumer.tag for consumer in queue.consumers] == ["last"]
    other.publishes("q", b"x")
    assert other.receives_bodies() == [b"x"]


def test_a_queue_looks_once_for_the_consumers_of_a_connection_with_many_channels(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    remove = LocalQueue.remove_consumers

    def counted(queue: LocalQueue, consumers: Collection[Consumer]) -> None:
        left.append(len(consumers))
        remove(queue, consumers)

    monkeypatch.setattr(LocalQueue, "remove_consumers", counted)
    client = broker.connects()
    for number in range(1, 31):
        client.opens_channel(number)
        client.declares("q", channel=number)
        client.consumes("q", tag="c", channel=number)
    client.vanishes()
    assert left == [30]
    assert not broker.queue("q").consumers


def test_acknowledgements_are_read_in_turns_where_a_limit_holds_back_very_many_consumers(
    broker: Broker, client: Client, other: Client
) -> None:
    limit, a_turn = 200, 20
    client.declares("q")
    client.sends(commands.Basic.Qos, prefetch_count=limit, global_=True)
    client.receives(commands.Basic.QosOk)
    for number in range(4000):
        client.sends(commands.Basic.Consume, queue="q", consumer_tag=f"c{number}", nowait=True)
    for number in range(2 * limit):
        other.publishes("q", b"%d" % number)
    broker.settle()
    queue = broker.queue("q")
    acks = [method_frame(1, commands.Basic.Ack, delivery_tag=1 + tag) for tag in range(limit)]
    client.sends_octets(b"".join(acks))
    acked = [0, queue.acked]
    while acked[-1] < limit:
        broker.clock.turn()
        acked.append(queue.acked)
    assert max(after - before for before, after in pairwise(acked)) <= a_turn
    broker.settle()
    assert (queue.unacked, len(queue)) == (limit, 0)
    assert numbers(client.receives_bodies()) == list(range(2 * limit))
